"""A detach that is lost, late, cancelled or repeated: trust ends before the server lets go."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendError, BackendUnavailable, Permit, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind, cut_off
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import (
    EPSILON,
    NOISE,
    all_free,
    cancelled,
    in_background,
    until,
    waiting,
    waits_in_queue,
)

pytestmark = pytest.mark.one_mode

LEASE = 3.0
SHORT = 0.4


@pytest.fixture
async def permit(kind: Kind, proxied: Redis) -> Permit:
    """A permit of a process behind the proxy."""
    return await kind(proxied, "jobs", 1, lease=LEASE).acquire()


@pytest.fixture
def there(kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return kind(client_b, "jobs", 1, lease=LEASE)


@asynccontextmanager
async def no_overlap(permit: Permit, other: AnySemaphore) -> AsyncGenerator[list[float]]:
    """A waiter of *other*, which enters only when the first holder trusts *permit* no more.

    Gives the moments at which the waiter entered, by the clock that trust is counted by.
    """
    entered: list[float] = []
    overlaps: list[float] = []

    async def enter() -> None:
        async with other.acquire(timeout=30):
            entered.append(time.monotonic())
            if permit.expires_in > 0:
                overlaps.append(permit.expires_in)

    entering = in_background(enter())
    await waiting(other, 1)
    try:
        yield entered
    finally:
        await cancelled(entering)
        assert not overlaps, f"the first holder trusted its permit for {overlaps[0]:.3f} s more"


@pytest.mark.fault(45)
@pytest.mark.parametrize("cancel", [False, True], ids=["waited-for", "cancelled"])
async def test_a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for(
    permit: Permit, there: AnySemaphore, proxy: Proxy, cancel: bool
) -> None:
    """The server shortened the expiry, and no reply arrives, nor those to later refreshes."""
    async with no_overlap(permit, there) as entered:
        proxy.mute()
        detaching = in_background(permit.detach(expires_in=SHORT))
        if cancel:
            await until(lambda: proxy.operations("detach"), "it was sent")
            await cancelled(detaching)
            await asyncio.wait_for(permit.wait_lost(), SHORT + EPSILON + NOISE)
        else:
            with pytest.raises((PermitLost, BackendUnavailable)):
                await detaching
        await until(lambda: entered, "the waiter entered")
        with pytest.raises(PermitLost):
            permit.check()


@pytest.mark.fault(45)
async def test_a_detach_that_is_cancelled_leaves_the_permit_held(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Cancelled while its reply is on its way: the holder goes on, and the server agrees."""
    # With a refresh every ten seconds: it takes one that is sent because of this.
    permit = await kind(proxied, "jobs", 1, lease=30.0).acquire()
    async with no_overlap(permit, kind(client_b, "jobs", 1, lease=30.0)) as entered:
        fault = proxy.hold("detach")
        detaching = in_background(permit.detach(expires_in=2 * SHORT))
        await fault.struck.wait()
        await cancelled(detaching)
        assert permit.expires_in < 2 * SHORT, "the server may let go by then"
        fault.lift()
        await until(lambda: permit.expires_in > 2 * SHORT, "a refresh was answered")
        await asyncio.sleep(3 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


@pytest.mark.fault(45)
@pytest.mark.parametrize("maxmemory", [0, 1], ids=["with memory", "at maxmemory"])
async def test_a_cancelled_detach_that_did_not_arrive_is_made_void(
    permit: Permit,
    there: AnySemaphore,
    proxy: Proxy,
    server: EmbeddedRedis,
    admin: Redis,
    maxmemory: int,
) -> None:
    """Its bytes may lie somewhere still: arriving late they shorten nothing."""
    async with no_overlap(permit, there) as entered:
        await admin.config_set("maxmemory", str(maxmemory))
        fault = proxy.cut("detach")  # the server has not seen it
        detaching = in_background(permit.detach(expires_in=2 * SHORT))
        await fault.struck.wait()
        await cancelled(detaching)
        await until(lambda: proxy.operations("abandon"), "it is made void")
        await until(lambda: permit.expires_in > 2 * SHORT or permit.lost, "it was refreshed")
        await admin.config_set("maxmemory", "0")
        assert fault.sent is not None
        assert "VOID" in str(await say_again(server.port, fault.sent))
        await asyncio.sleep(3 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


async def test_a_refresh_that_was_sent_before_a_detach_renews_no_trust(
    permit: Permit, there: AnySemaphore, proxy: Proxy
) -> None:
    """It is answered after the detach was written, which may shorten what it made longer."""
    async with no_overlap(permit, there) as entered:
        answer = proxy.hold("refresh")
        refreshing = in_background(permit.refresh())
        await answer.struck.wait()
        go_on = proxy.stop("detach")
        detaching = in_background(permit.detach(expires_in=2 * SHORT))
        await until(lambda: proxy.operations("detach"), "it was sent")
        answer.lift()
        await asyncio.wait([refreshing])
        assert permit.expires_in < 2 * SHORT
        proxy.mute()
        go_on.set()
        await until(lambda: entered, "the waiter entered")
        with pytest.raises((PermitLost, BackendUnavailable)):
            await detaching


async def test_no_refresh_renews_trust_while_a_detach_may_arrive_late(
    permit: Permit, there: AnySemaphore, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """Its bytes lie somewhere, and it is not void yet: it may be carried out after the refresh."""
    async with no_overlap(permit, there) as entered:
        go_on = proxy.stop("abandon")
        fault = proxy.cut("detach")
        detaching = in_background(permit.detach(expires_in=1.0))
        await fault.struck.wait()
        detaching.cancel()
        await permit.refresh()
        assert permit.expires_in < 1.0
        assert fault.sent is not None
        assert isinstance(await say_again(server.port, fault.sent), list), "it was carried out"
        go_on.set()
        await until(lambda: permit.expires_in > 1.0, "a later refresh was answered")
        assert not entered
    assert await permit.release()


@pytest.mark.fault(45)
async def test_a_detach_that_is_sent_again_counts_once_more(
    permit: Permit, there: AnySemaphore, proxy: Proxy
) -> None:
    """The first was carried out, and its reply lost: the second gives the job all of its time."""
    fault = proxy.swallow("detach")
    identity = await permit.detach(expires_in=LEASE)
    assert fault.struck.is_set()
    assert len(proxy.operations("detach")) >= 2
    [entry] = (await there.status()).holders
    assert entry.id == identity
    assert entry.expires_in > 0.9 * LEASE
    assert await (await there.adopt(identity)).release()


@pytest.mark.fault(45)
async def test_a_detach_that_is_refused_leaves_the_permit_held(
    permit: Permit, there: AnySemaphore, proxy: Proxy
) -> None:
    """The user may not do that, say: the permit is trusted as before."""
    async with no_overlap(permit, there) as entered:
        proxy.answer("detach", "NOPERM this user has no permissions to run the 'evalsha' command")
        with pytest.raises(BackendError, match="NOPERM"):
            await permit.detach(expires_in=SHORT)
        await until(lambda: permit.expires_in > SHORT, "a later refresh was answered", within=1)
        await asyncio.sleep(2 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


@pytest.mark.fault(45)
async def test_of_two_detaches_one_gives_the_id(permit: Permit, there: AnySemaphore) -> None:
    """Two tasks let go of one permit at the same time."""
    both = await asyncio.gather(
        permit.detach(expires_in=LEASE), permit.detach(expires_in=SHORT), return_exceptions=True
    )
    assert [type(one) for one in both] == [str, PermitLost]
    assert await (await there.adopt(str(both[0]))).release()


@pytest.mark.fault(45)
async def test_a_detach_after_one_that_was_cancelled(
    permit: Permit, there: AnySemaphore, proxy: Proxy
) -> None:
    """The holder thought better of it, and then of that."""
    fault = proxy.hold("detach")
    detaching = in_background(permit.detach(expires_in=SHORT))
    await fault.struck.wait()
    await cancelled(detaching)
    second = in_background(permit.detach(expires_in=2 * LEASE))
    fault.lift()
    identity = await second
    [entry] = (await there.status()).holders
    assert (entry.id, entry.expires_in > LEASE) == (identity, True)
    assert await there.release(identity)
    await all_free(there)


@pytest.mark.parametrize("ahead", ["nothing", "one that is cut off", "one that leaves"])
async def test_a_waiter_is_told_of_a_nearer_expiry(
    kind: Kind,
    client_a: Redis,
    client_b: Redis,
    proxied: Redis,
    proxy: Proxy,
    admin: Redis,
    ahead: str,
) -> None:
    """It would look again when the lease would have ended, and so would what is ahead of it."""
    here, there, beyond = (
        kind(client, "jobs", 1, lease=30.0) for client in (client_a, client_b, proxied)
    )
    permit = await here.acquire()
    first = None if ahead == "nothing" else await waits_in_queue(beyond)
    waiter = await waits_in_queue(there, place=2 if first else 1)
    if ahead == "one that is cut off":
        await cut_off(proxy, here, admin)
    began = time.monotonic()
    asked = proxy.hold("heartbeat")
    await permit.detach(expires_in=SHORT)
    if first is not None and ahead == "one that leaves":
        await asyncio.wait_for(asked.struck.wait(), 5)  # it was told, and looks again
        await cancelled(first)
        asked.lift()
    granted = await asyncio.wait_for(waiter, 5)
    assert time.monotonic() - began >= SHORT - 0.01
    assert await granted.release()
    if first is not None:
        await cancelled(first)


async def test_trust_that_ends_while_a_detach_is_unanswered_is_told(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The permit is lost when its trusted time is over, and not when the detach gives up."""
    permit = await kind(proxied, "jobs", 1, lease=6.0).acquire()
    ends = time.monotonic() + permit.expires_in
    proxy.refusing = True
    proxy.drop()
    losing = in_background(permit.wait_lost())
    await asyncio.sleep(ends - 0.6 - time.monotonic())
    detaching = in_background(permit.detach(expires_in=60))
    await asyncio.wait([losing], timeout=10)
    assert time.monotonic() - ends < EPSILON + NOISE
    await asyncio.wait([detaching])
