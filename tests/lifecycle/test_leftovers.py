"""What is over keeps no timer, no task and no memory."""

import asyncio
import gc
import weakref

from redsem_async import FairSemaphore, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.inside import remote_of
from tests.harness.wait import cancelled, in_background, takes_at_most, until


async def test_after_a_detach_nothing_is_left_of_a_semaphore() -> None:
    """Not even the timer of a deadline that is over."""
    backend = MemoryBackend()
    semaphore = FairSemaphore(backend, "jobs", 1)
    remote = weakref.ref(remote_of(semaphore))
    permit = await semaphore.acquire(timeout=3600)
    await permit.detach(30.0)
    del permit, semaphore
    gc.collect()
    assert remote() is None
    await aclose(backend)


async def test_aclose_does_not_wait_for_a_permit_that_is_detached() -> None:
    backend = MemoryBackend()
    permit = await FairSemaphore(backend, "jobs", 1).acquire()
    with takes_at_most(1.0):
        closing = in_background(aclose(backend, drain=30.0))
        await asyncio.sleep(0)
        await permit.detach(30.0)
        await closing


async def test_a_waiter_that_leaves_during_an_outage_keeps_no_timer() -> None:
    backend = MemoryBackend()
    backend.down()
    semaphore = FairSemaphore(backend, "jobs", 1)
    waiter = in_background(semaphore.acquire(timeout=3600))
    remote = remote_of(semaphore)
    await until(lambda: remote.timer is not None, "its deadline is watched")
    await cancelled(waiter)
    assert remote.timer is None


async def test_an_adoption_that_is_given_up_during_an_outage_keeps_no_hub() -> None:
    backend = MemoryBackend()
    backend.down()
    semaphore = FairSemaphore(backend, "jobs", 1)
    adopting = in_background(semaphore.adopt("0" * 32 + ".7"))
    remote = remote_of(semaphore)
    await until(lambda: bool(remote.calls), "it is to be written")
    assert remote.active
    await cancelled(adopting)
    assert not remote.active


async def test_deadlines_of_the_past_are_cleaned_up() -> None:
    """Without a look at all of them each time."""
    many = 200
    semaphore = FairSemaphore(MemoryBackend(), "jobs", many + 1)
    held = await semaphore.acquire()
    for _ in range(many):
        await (await semaphore.acquire(timeout=3600)).release()
    deadlines = remote_of(semaphore).deadlines
    assert len(deadlines) < many / 2
    await held.release()
    assert not deadlines
