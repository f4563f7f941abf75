"""Acquires that are given up, at any moment: nothing leaks, and the next one is served."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, Permit
from tests.harness.clients import MakePair
from tests.harness.inside import requests_of
from tests.harness.memory import Gated
from tests.harness.proxy import Proxy
from tests.harness.wait import all_free, cancelled, give_back, in_background, queue_up, soon, until
from tests.worlds.simulated_time import simulated


@pytest.mark.fault(13)
@pytest.mark.parametrize("when", ["at once", "while connecting"])
async def test_an_acquire_cancelled_before_it_was_sent_leaves_no_trace(
    proxied: Redis, proxy: Proxy, when: str
) -> None:
    """There is no trace of it, on the wire or on the server."""
    semaphore = FairSemaphore(proxied, "jobs", 1)
    if when == "at once":
        await semaphore.reap()
    proxy.delay = 0.05
    acquiring = in_background(semaphore.acquire())
    if when == "while connecting":
        await until(lambda: proxy.sent, "the handshake is under way")
    await cancelled(acquiring)
    assert acquiring.cancelled()
    proxy.delay = 0.0
    assert not await semaphore.exists()
    assert not proxy.operations("acquire")
    assert not proxy.operations("abandon")


@pytest.mark.fault(14)
async def test_an_acquire_cancelled_after_it_was_sent_is_given_back(
    proxied: Redis, proxy: Proxy
) -> None:
    """The server grants it all the same, so it is given back, in one round trip."""
    semaphore = FairSemaphore(proxied, "jobs", 1)
    await semaphore.reap()
    fault = proxy.hold("acquire")
    acquiring = in_background(semaphore.acquire())
    await fault.struck.wait()  # the server has granted it
    acquiring.cancel()
    await asyncio.wait([acquiring], timeout=1)
    assert acquiring.cancelled()
    await until(lambda: proxy.operations("abandon"), "it is given back", within=0.5)
    fault.lift()
    await all_free(semaphore, within=0.5)


@pytest.mark.fault(15)
async def test_a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick(
    pair: MakePair,
) -> None:
    """The grant is here, and the task has not run yet when it is cancelled."""
    here, there = pair(1, lease=30.0)
    holder = await there.acquire()
    waiter, next_one = await queue_up(here), await queue_up(there)
    [request] = requests_of(here)
    releasing = in_background(holder.release())
    while not request.done():  # noqa: ASYNC110 - the very turn of the loop
        await asyncio.sleep(0)
    assert not waiter.done(), "the task ran before it could be cancelled"
    await cancelled(waiter)
    assert waiter.cancelled()
    assert await releasing
    permit = await soon(next_one)
    assert [entry.id for entry in (await here.status()).holders] == [permit.id]
    await give_back(permit)
    await all_free(here)


@pytest.mark.fault(16)
@simulated
async def test_a_grant_that_meets_its_deadline_is_a_permit_or_a_timeout(pair: MakePair) -> None:
    """Whichever it is, nothing leaks."""
    here, there = pair(1, lease=30.0)
    ends = set[bool]()
    for nanoseconds in range(-5, 6):
        holder = await there.acquire()
        acquiring = in_background(here.acquire(timeout=0.01))
        await asyncio.sleep(0.01 + nanoseconds * 1e-9)
        assert await holder.release()
        [ended] = await asyncio.gather(acquiring, return_exceptions=True)
        assert isinstance(ended, Permit | AcquireTimeout), repr(ended)
        ends.add(isinstance(ended, Permit))
        if isinstance(ended, Permit):
            await give_back(ended)
        await all_free(here)
    assert ends == {True, False}, "no grant met its deadline"


@pytest.mark.fault(14)
@pytest.mark.parametrize("cancellations", [1, 5])
async def test_a_cancelled_release_is_confirmed_first(cancellations: int) -> None:
    """However often. Then its task ends as cancelled, and the permit is free."""
    backend = Gated()
    semaphore = FairSemaphore(backend, "jobs", 1)

    async def work() -> None:
        permit = await semaphore.acquire()
        backend.shut = True
        await permit.release()
        await asyncio.sleep(10)  # where a swallowed cancellation would leave it

    working = asyncio.create_task(work())
    await until(lambda: backend.shut and backend.kept, "it is sent")
    for _ in range(cancellations):
        working.cancel()
        await asyncio.sleep(0)
    assert not working.done(), "it did not wait for the release to be confirmed"
    backend.open()
    await asyncio.wait([working])
    assert working.cancelled()
    await give_back(await semaphore.acquire(timeout=0))
