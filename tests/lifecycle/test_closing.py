"""`aclose` in the midst of something: each call ends, and no permit is given that is not held."""

import asyncio
import gc
import weakref

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, SemaphoreClosed, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.inside import remote_of
from tests.harness.memory import Gated
from tests.harness.wait import soon
from tests.worlds.simulated_time import simulated


async def test_acquiring_works_after_a_close_that_came_at_once(client: MemoryBackend) -> None:
    """A hub that was closed before it came to connect must not keep the next one waiting."""
    sem = FairSemaphore(client, "jobs", 1)
    first = asyncio.create_task(sem.acquire())
    await asyncio.sleep(0)
    await aclose(client)
    with pytest.raises(SemaphoreClosed):
        await first
    await (await soon(sem.acquire())).release()


@simulated
async def test_closing_ends_a_release_without_a_reply() -> None:
    """A release is confirmed or fails, within a bounded time."""
    backend = Gated()
    permit = await FairSemaphore(backend, "jobs", 1).acquire()
    backend.shut = True
    release = asyncio.create_task(permit.release())
    await asyncio.sleep(0)
    await aclose(backend)
    with pytest.raises(SemaphoreClosed):
        await soon(release)


async def test_closing_ends_calls_that_were_not_sent(nowhere: Redis) -> None:
    """Whatever waits for a server that is not there ends with the client."""
    sem = FairSemaphore(nowhere, "jobs", 1, lease=30.0)
    calls = [sem.set_limit(2), sem.back_off(1.0), sem.adopt(f"{'a' * 32}.1")]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    await aclose(nowhere)
    ended = await soon(asyncio.gather(*waiting, return_exceptions=True))
    assert {type(error) for error in ended} == {SemaphoreClosed}


# -- what is over keeps no timer, no task and no memory


async def test_after_a_detach_nothing_is_left_of_a_semaphore(client: MemoryBackend) -> None:
    """Not even the timer of a deadline that is over."""
    semaphore = FairSemaphore(client, "jobs", 1)
    remote = weakref.ref(remote_of(semaphore))
    permit = await semaphore.acquire(timeout=3600)
    await permit.detach(30.0)
    del permit, semaphore
    gc.collect()
    assert remote() is None
    await aclose(client)


async def test_deadlines_of_the_past_are_cleaned_up(client: MemoryBackend) -> None:
    """Without a look at all of them each time."""
    many = 200
    semaphore = FairSemaphore(client, "jobs", many + 1)
    held = await semaphore.acquire()
    for _ in range(many):
        await (await semaphore.acquire(timeout=3600)).release()
    deadlines = remote_of(semaphore).deadlines
    assert len(deadlines) < many / 2
    await held.release()
    assert not deadlines
