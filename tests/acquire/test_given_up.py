"""Acquires that are given up, at any moment: nothing leaks, and the next one is served."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, Permit
from tests.harness.clients import Kind
from tests.harness.inside import requests_of
from tests.harness.proxy import Proxy
from tests.harness.wait import all_free, cancelled, in_background, until, waits_in_queue


@pytest.mark.fault(13)
@pytest.mark.parametrize("when", ["at once", "while connecting"])
async def test_an_acquire_cancelled_before_it_was_sent_leaves_no_trace(
    kind: Kind, proxied: Redis, proxy: Proxy, when: str
) -> None:
    """There is no trace of it, on the wire or on the server."""
    semaphore = kind(proxied, "jobs", 1)
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
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The server grants it all the same, so it is given back, in one round trip."""
    semaphore = kind(proxied, "jobs", 1)
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
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """The grant is here, and the task has not run yet when it is cancelled."""
    semaphore, there = kind(client_a, "jobs", 1, lease=30.0), kind(client_b, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    waiter = await waits_in_queue(semaphore)
    [request] = requests_of(semaphore)
    # A Semaphore serves the process that releases first, so there the next one is in this one.
    next_one = in_background((there if kind is FairSemaphore else semaphore).acquire(timeout=30))
    loop = asyncio.get_running_loop()
    met = False

    def cancel_when_granted() -> None:
        nonlocal met
        if request.done() or waiter.done():
            met = not waiter.done()
            waiter.cancel()
        else:
            loop.call_soon(cancel_when_granted)

    cancel_when_granted()
    assert await holder.release()
    await asyncio.wait([waiter])
    assert met, "the task ran before it could be cancelled"
    assert waiter.cancelled()
    permit = await asyncio.wait_for(next_one, 1.0)
    status = await semaphore.status()
    assert [entry.id for entry in status.holders] == [permit.id]
    assert await permit.release()
    await all_free(semaphore, within=0.5)


@pytest.mark.fault(16)
async def test_a_grant_that_meets_its_deadline_is_a_permit_or_a_timeout(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Whichever it is, nothing leaks.

    The release comes earlier after a timeout, and later after a permit, so that it stays at the
    deadline.
    """
    here, there = kind(client_a, "jobs", 1), kind(client_b, "jobs", 1)
    await here.reap()
    released_after, changes, last = 0.01, 0, None
    for _ in range(100):
        holder = await there.acquire(timeout=2)
        acquiring = in_background(here.acquire(timeout=0.01))
        await asyncio.sleep(released_after)
        assert await holder.release()
        [ended] = await asyncio.gather(acquiring, return_exceptions=True)
        granted = isinstance(ended, Permit)
        if isinstance(ended, Permit):
            assert await ended.release()
        else:
            assert isinstance(ended, AcquireTimeout)
        released_after = max(0.0, released_after + (0.0005 if granted else -0.0005))
        changes += granted is not last
        last = granted
    assert changes > 2, "no grant met its deadline"
    await all_free(here, within=0.5)


@pytest.mark.fault(14)
@pytest.mark.parametrize("cancellations", [1, 5])
async def test_a_cancelled_release_is_confirmed_first(
    kind: Kind, proxied: Redis, client_b: Redis, proxy: Proxy, cancellations: int
) -> None:
    """However often. Then its task ends as cancelled, and the permit is free."""
    semaphore = kind(proxied, "jobs", 1)

    async def work() -> None:
        permit = await semaphore.acquire()
        await permit.release()
        await asyncio.sleep(10)  # where a swallowed cancellation would leave it

    fault = proxy.hold("release")
    working = asyncio.create_task(work())
    await asyncio.wait_for(fault.struck.wait(), 2)
    for _ in range(cancellations):
        working.cancel()
        await asyncio.sleep(0)
    assert not working.done(), "it did not wait for the release to be confirmed"
    fault.lift()
    await asyncio.wait([working], timeout=1)
    assert working.cancelled()
    permit = await kind(client_b, "jobs", 1).try_acquire()
    assert permit is not None
    assert await permit.release()
