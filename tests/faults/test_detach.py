"""A detach that is lost, late, cancelled or repeated: trust ends before the server lets go."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    Permit,
    PermitLost,
)
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import EPSILON, all_free, in_background, until, waits_in_line

pytestmark = pytest.mark.one_mode

LEASE = 3.0
SHORT = 0.4


@asynccontextmanager
async def nobody_enters_beside(permit: Permit, other: AnySemaphore) -> AsyncGenerator[list[float]]:
    """Somebody waits for *permit*; at the moment of entering, its first holder trusts it no more.

    Gives the moments at which somebody entered, by the clock that trust is counted by.
    """
    entered: list[float] = []
    overlaps: list[float] = []

    async def enter() -> None:
        async with other.acquire(timeout=30):
            entered.append(time.monotonic())
            if permit.expires_in > 0:
                overlaps.append(permit.expires_in)

    entering = in_background(enter())

    async def in_line() -> bool:
        return (await other.status(0)).waiting == 1

    await until(in_line, "somebody waits")
    try:
        yield entered
    finally:
        entering.cancel()
        await asyncio.wait([entering])
        assert not overlaps, f"the first holder trusted its permit for {overlaps[0]:.3f} s more"


@pytest.mark.fault(45)
async def test_a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The server shortened the expiry, and its reply is lost: somebody else enters meanwhile."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
        proxy.mute()
        with pytest.raises((PermitLost, BackendUnavailable)):
            await permit.detach(expires_in=SHORT)
        await until(lambda: bool(entered), "somebody else entered")
        with pytest.raises(PermitLost):
            permit.check()


@pytest.mark.fault(45)
async def test_a_detach_that_is_cancelled_leaves_the_permit_held(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Cancelled while its reply is on its way: the holder goes on, and the server agrees."""
    # With a refresh every ten seconds: it takes one that is sent because of this.
    semaphore = kind(proxied, "jobs", 1, lease=30.0)
    permit = await semaphore.acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=30.0)) as entered:
        fault = proxy.hold("detach")
        detaching = in_background(permit.detach(expires_in=2 * SHORT))
        await fault.struck.wait()
        detaching.cancel()
        await asyncio.wait([detaching])
        assert permit.expires_in < 2 * SHORT, "the server may let go by then"
        fault.lift()
        await until(lambda: permit.expires_in > 2 * SHORT, "a refresh was answered")
        await asyncio.sleep(3 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


@pytest.mark.fault(45)
async def test_a_detach_that_is_cancelled_and_never_answered(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The refreshes that follow it are not answered either: trust ends with the short expiry."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
        proxy.mute()
        detaching = in_background(permit.detach(expires_in=SHORT))
        await until(lambda: bool(proxy.operations("detach")), "it was sent")
        detaching.cancel()
        await asyncio.wait([detaching])
        lost = await asyncio.wait_for(permit.wait_lost(), SHORT + EPSILON)
        assert lost.permit_id == permit.id
        await until(lambda: bool(entered), "somebody else entered")


@pytest.mark.fault(45)
async def test_a_detach_that_nobody_asks_for_any_more_is_made_void(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """Its bytes may lie somewhere still: arriving late they shorten nothing."""
    semaphore = kind(proxied, "jobs", 1, lease=LEASE)
    permit = await semaphore.acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
        fault = proxy.cut("detach")  # the server has not seen it
        detaching = in_background(permit.detach(expires_in=SHORT))
        await fault.struck.wait()
        detaching.cancel()
        await asyncio.wait([detaching])
        await until(lambda: bool(proxy.operations("abandon")), "it is made void")
        await until(lambda: permit.expires_in > SHORT, "a later refresh was answered")
        assert fault.sent is not None
        assert "VOID" in str(await say_again(server.port, fault.sent))
        await asyncio.sleep(2 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


async def test_a_refresh_that_was_sent_before_a_detach_renews_no_trust(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It is answered after the detach was written, which may shorten what it made longer."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
        answer = proxy.hold("refresh")
        refreshing = in_background(permit.refresh())
        await answer.struck.wait()
        go_on = proxy.stop("detach")
        detaching = in_background(permit.detach(expires_in=2 * SHORT))
        await until(lambda: bool(proxy.operations("detach")), "it was sent")
        answer.lift()
        await asyncio.wait([refreshing])
        assert permit.expires_in < 2 * SHORT
        proxy.mute()
        go_on.set()
        await until(lambda: bool(entered), "somebody else entered")
        with pytest.raises((PermitLost, BackendUnavailable)):
            await detaching


async def test_a_refresh_of_the_threads_that_was_sent_before_a_detach_renews_no_trust(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The same where the thread sent it, over its own connection: nothing keeps them in order."""
    options: dict[str, Any] = {"lease": LEASE, "refresh_interval": 0.9 * LEASE}
    semaphore = kind(proxied, "jobs", 2, heartbeat="thread", **options)
    permit, beside = await semaphore.acquire(), await semaphore.acquire()
    answer = proxy.hold("refresh")
    await answer.struck.wait()
    assert answer.sent is not None
    assert answer.sent.connection != proxy.operations("acquire")[0].connection, "the loop sent it"
    go_on = proxy.stop("detach")
    detaching = in_background(permit.detach(expires_in=2 * SHORT))
    await until(lambda: bool(proxy.operations("detach")), "it was sent")
    answer.lift()
    await until(lambda: beside.expires_in > LEASE / 2, "the thread has read the answer")
    assert permit.expires_in < 2 * SHORT
    go_on.set()
    assert await semaphore.release(await detaching)
    assert await beside.release()


async def test_no_refresh_renews_trust_while_a_detach_may_arrive_late(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """Its bytes lie somewhere, and it is not void yet: it may be carried out after the refresh."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
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
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The first was carried out, and its reply lost: the second gives the job all of its time."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    fault = proxy.swallow("detach")
    identity = await permit.detach(expires_in=LEASE)
    assert fault.struck.is_set()
    assert len(proxy.operations("detach")) >= 2
    [entry] = (await kind(client_b, "jobs", 1, lease=LEASE).status()).holders
    assert entry.id == identity
    assert entry.expires_in > 0.9 * LEASE
    adopted = await kind(client_b, "jobs", 1, lease=LEASE).adopt(identity)
    assert await adopted.release()


@pytest.mark.fault(45)
async def test_a_detach_that_is_refused_leaves_the_permit_held(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The user may not do that, say: it is told so, and trusts its permit as before."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    async with nobody_enters_beside(permit, kind(client_b, "jobs", 1, lease=LEASE)) as entered:
        proxy.answer("detach", "NOPERM this user has no permissions to run the 'evalsha' command")
        with pytest.raises(BackendError, match="NOPERM"):
            await permit.detach(expires_in=SHORT)
        await until(lambda: permit.expires_in > SHORT, "a later refresh was answered", within=1)
        await asyncio.sleep(2 * SHORT)
        permit.check()
        assert not entered
    assert await permit.release()


@pytest.mark.fault(45)
async def test_a_permit_that_is_released_while_it_is_detached(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Two tasks part with it in two ways: it is given back, and no id is given to anybody."""
    permit = await kind(proxied, "jobs", 1, lease=LEASE).acquire()
    fault = proxy.hold("detach")
    detaching = in_background(permit.detach(expires_in=LEASE))
    await fault.struck.wait()
    releasing = in_background(permit.release())
    await asyncio.sleep(0)
    fault.lift()
    with pytest.raises(PermitLost):
        await detaching
    assert await releasing
    await all_free(kind(client_b, "jobs", 1))


@pytest.mark.fault(45)
async def test_of_two_detaches_one_gives_the_id(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Two tasks let go of one permit at the same time."""
    permit = await kind(client_a, "jobs", 1, lease=LEASE).acquire()
    both = await asyncio.gather(
        permit.detach(expires_in=LEASE), permit.detach(expires_in=SHORT), return_exceptions=True
    )
    assert [type(one) for one in both] == [str, PermitLost]
    with pytest.raises(PermitLost):
        await permit.detach()
    adopted = await kind(client_b, "jobs", 1, lease=LEASE).adopt(str(both[0]))
    assert await adopted.release()


@pytest.mark.fault(45)
async def test_a_detach_after_one_that_was_cancelled(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The holder thought better of it, and then of that."""
    semaphore = kind(proxied, "jobs", 1, lease=LEASE)
    permit = await semaphore.acquire()
    fault = proxy.hold("detach")
    detaching = in_background(permit.detach(expires_in=SHORT))
    await fault.struck.wait()
    detaching.cancel()
    await asyncio.wait([detaching])
    second = in_background(permit.detach(expires_in=2 * LEASE))
    fault.lift()
    identity = await second
    there = kind(client_b, "jobs", 1, lease=LEASE)
    [entry] = (await there.status()).holders
    assert (entry.id, entry.expires_in > LEASE) == (identity, True)
    assert await there.release(identity)
    await all_free(there)


async def test_a_waiter_is_told_of_a_nearer_expiry(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """It would look again when the lease would have ended."""
    permit = await kind(client_a, "jobs", 1, lease=30.0).acquire()
    waiter = await waits_in_line(kind(client_b, "jobs", 1, lease=30.0))
    began = time.monotonic()
    await permit.detach(expires_in=SHORT)
    granted = await asyncio.wait_for(waiter, 5)
    assert time.monotonic() - began >= SHORT - 0.01
    assert await granted.release()


async def test_a_nearer_expiry_is_told_past_who_does_not_hear(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """The first in line is cut off, and the server has not noticed: it is told nothing."""
    permit = await kind(client_a, "jobs", 1, lease=30.0).acquire()
    there = kind(client_b, "jobs", 1, lease=30.0)
    first = await waits_in_line(kind(proxied, "jobs", 1, lease=30.0))
    second = await waits_in_line(there, place=2)
    channels = await admin.pubsub_channels("redsem:@*")
    proxy.refusing = True
    proxy.drop()

    async def one_listens_less() -> bool:
        return len(await admin.pubsub_channels("redsem:@*")) == len(channels) - 1

    await until(one_listens_less, "the server has noticed")
    await permit.detach(expires_in=SHORT)
    granted = await asyncio.wait_for(second, 5)
    assert await granted.release()
    first.cancel()
