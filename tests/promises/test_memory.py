"""What a MemoryBackend can do to code under test."""

import asyncio
import time
from typing import Any

import pytest

from redsem_async import AnySemaphore, BackendUnavailable, FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Kind, MakePair
from tests.harness.wait import queue_up, soon


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def both(kind: Kind, backend: MemoryBackend) -> MakePair:
    """Makes a semaphore in this process, and one of the same name in another."""

    def both(limit: int = 1, **options: Any) -> tuple[AnySemaphore, AnySemaphore]:
        untyped: Any = kind
        clients = (backend, backend.peer())
        here, there = (untyped(client, "jobs", limit, **options) for client in clients)
        return here, there

    return both


async def test_lose_cancels_the_block(both: MakePair, backend: MemoryBackend) -> None:
    """Losing a permit is rare, and has to be tried on purpose."""
    sem, _ = both(1)
    with pytest.raises(PermitLost):
        async with sem as permit:
            backend.lose(permit)
            await asyncio.sleep(5)
    assert await sem.available() == 1


async def test_down_is_unreachable_and_up_goes_on(both: MakePair, backend: MemoryBackend) -> None:
    """A waiter rides out an outage, which costs it nothing."""
    sem, there = both(1)
    holder = await there.acquire()
    waiter = await queue_up(sem)
    backend.down()
    with pytest.raises(BackendUnavailable):
        await sem.try_acquire()
    assert not waiter.done()
    backend.up()
    assert await holder.release()
    assert await (await soon(waiter)).release()


async def test_a_lease_that_the_clock_ends_is_lost_and_served_at_once(
    both: MakePair, backend: MemoryBackend
) -> None:
    """What a suspended host finds when it wakes up: a waiter has the permit."""
    sem, there = both(1, lease=60)
    began = asyncio.get_running_loop().time()
    permit = await sem.acquire()
    waiter = await queue_up(there)
    with pytest.raises(PermitLost):
        async with permit:
            backend.advance(61.0)
            assert permit.lost
            await asyncio.sleep(60)
    taken = await soon(waiter)
    assert taken.fencing_token > permit.fencing_token
    assert await taken.release()
    assert asyncio.get_running_loop().time() - began < 5


async def test_time_in_steps_shorter_than_the_lease_ends_no_holder(
    both: MakePair, backend: MemoryBackend
) -> None:
    """Its process runs, and refreshes; what nothing refreshes ends."""
    sem, there = both(3)
    await (await there.acquire()).detach(25.0)
    async with sem as permit, there as theirs:
        waiter = await queue_up(both(3)[1])
        for _ in range(4):
            assert not waiter.done()
            backend.advance(6.0)
        assert await sem.available() == 0
        backend.advance(6.0)
        assert await (await soon(waiter)).release()
        permit.check()
        theirs.check()


async def test_waiters_keep_their_order_whatever_the_clock_says(backend: MemoryBackend) -> None:
    """Their processes live: an advance of the clock must not make them count as dead."""
    clients = [backend, backend.peer(), backend.peer()]
    holder = await FairSemaphore(backend.peer(), "jobs", 1).acquire()
    waiters = [await queue_up(FairSemaphore(client, "jobs", 1)) for client in clients]
    backend.advance(3600.0)
    assert holder.lost
    for number, waiter in enumerate(waiters):
        permit = await soon(waiter)
        assert not any(later.done() for later in waiters[number + 1 :])
        assert await permit.release()


async def test_an_outage_that_outlasts_the_lease_ends_a_holder(
    both: MakePair, backend: MemoryBackend
) -> None:
    """When trust ends, and not when the backend can be asked again."""
    sem, _ = both(1, lease=10)
    with pytest.raises(PermitLost):
        async with sem as permit, asyncio.timeout(2):
            backend.down()
            backend.advance(6.0)
            permit.check()
            backend.advance(3.8)
            permit.check()
            await asyncio.sleep(5)
    backend.up()
    assert await soon(sem.available()) == 1


@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("hours", [1, -1])
async def test_a_step_of_the_wall_clock_changes_no_lease(
    both: MakePair,
    backend: MemoryBackend,
    clock: str,
    hours: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test freezes or moves the wall clock for reasons of its own: leases do not follow it.

    Forward, no lease ends early and nobody else enters; back, no lease lasts longer.
    """
    sem, there = both(2, clock=clock)
    await (await there.acquire()).detach(30.0)
    async with sem as permit:
        really, really_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: really() + hours * 3600)
        monkeypatch.setattr(time, "time_ns", lambda: really_ns() + hours * 3600 * 10**9)
        assert abs(time.time() - really()) > 3500
        assert await there.try_acquire() is None
        assert (await there.status()).held == 2
        await permit.refresh()
        permit.check()
        waiter = await queue_up(there)
        for _ in range(5):
            assert not waiter.done()
            backend.advance(6.0)
        taken = await soon(waiter)  # of the permit that was detached for 30 s
        assert taken.fencing_token > permit.fencing_token
        assert abs(taken.fencing_token / 1e6 - really()) < 60
        assert await taken.release()
        permit.check()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_the_clock_does_not_go_back(backend: MemoryBackend, seconds: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        backend.advance(seconds)


async def test_memory_recovers_from_losses_that_it_never_has(both: MakePair) -> None:
    """The option may stay on in a test: nothing was lost, so nobody waits for a lease."""
    sem, _ = both(1, lease=10, recovery="grace")
    async with sem.acquire(timeout=1):
        assert await sem.try_acquire() is None
