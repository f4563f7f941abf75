"""What a MemoryBackend can do to code under test."""

import asyncio

import pytest

from redsem_async import BackendUnavailable, FairSemaphore, PermitLost, Semaphore
from redsem_async.testing import MemoryBackend
from tests.behaviour.conftest import queue_up, soon

KINDS = [Semaphore, FairSemaphore]


@pytest.mark.parametrize("kind", KINDS)
async def test_lose_cancels_the_block(kind: type[Semaphore | FairSemaphore]) -> None:
    """Losing a permit is rare, and has to be tried on purpose."""
    backend = MemoryBackend()
    with pytest.raises(PermitLost):
        async with kind(backend, "jobs", 1) as permit:
            backend.lose(permit)
            await asyncio.sleep(5)
    assert await kind(backend, "jobs", 1).available() == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_down_is_unreachable_and_up_goes_on(kind: type[Semaphore | FairSemaphore]) -> None:
    """An outage is ridden out by who waits, and costs it nothing."""
    backend = MemoryBackend()
    sem, there = kind(backend, "jobs", 1), kind(backend.peer(), "jobs", 1)
    holder = await there.acquire()
    waiter = await queue_up(sem)
    backend.down()
    with pytest.raises(BackendUnavailable):
        await sem.try_acquire()
    assert not waiter.done()
    backend.up()
    assert await holder.release()
    assert await (await soon(waiter)).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_advance_ends_leases(kind: type[Semaphore | FairSemaphore]) -> None:
    """Nobody wants to wait ten seconds in a unit test."""
    backend = MemoryBackend()
    sem = kind(backend, "jobs", 1)
    await (await kind(backend.peer(), "jobs", 1).acquire()).detach(30.0)
    assert await sem.try_acquire() is None
    backend.advance(31.0)
    permit = await sem.try_acquire()
    assert permit is not None
    assert await permit.release()


@pytest.mark.parametrize("kind", KINDS)
async def test_memory_recovers_from_losses_that_it_never_has(
    kind: type[Semaphore | FairSemaphore],
) -> None:
    """The option may stay on in a test: nothing was lost, so nobody waits for a lease."""
    semaphore = kind(MemoryBackend(), "jobs", 1, lease=10, recovery="grace")
    async with semaphore.acquire(timeout=1):
        assert await semaphore.try_acquire() is None
