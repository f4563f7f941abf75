"""Hints to waiting processes (ZSET mode): each free permit reaches one that can use it."""

import asyncio
import math
from contextlib import nullcontext

import pytest
from redis.asyncio import Redis

from redsem_async import BackendError, Semaphore
from redsem_async._hub import window
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, hub_of, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    EPSILON,
    NOISE,
    in_background,
    takes_at_most,
    waiting,
    waits_in_line,
)

LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one


def hint_to(hub: str) -> bytes:
    """A hint of one permit, as the server sends it."""
    parts = (b"message", f"redsem:@{hub}".encode(), b"hint 1 jobs")
    return b">3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.fault(49)
@pytest.mark.parametrize("how", ["released", "expired"])
async def test_a_hint_goes_to_who_can_use_it(
    proxied: Redis,
    proxy: Proxy,
    client_b: Redis,
    connect: Connect,
    server: EmbeddedRedis,
    how: str,
) -> None:
    """A process whose own limit leaves no room is passed over, or passes the hint on."""
    holder = Semaphore(connect(server.url), "jobs", 2, lease=9.0)
    permits = [await holder.acquire(), await holder.acquire()]
    narrow = await waits_in_line(Semaphore(proxied, "jobs", 1, lease=9.0), place=1)
    wide = await waits_in_line(Semaphore(client_b, "jobs", 2, lease=9.0), place=2)
    asked = len(proxy.operations("acquire"))
    if how == "released":
        assert await permits[0].release()
    else:  # the permit was free for its limit when the hint was sent, and is for another's now
        hub = (await holder.status()).waiters[0].client.id
        assert await permits[0].detach(expires_in=0.05)
        proxy.inject(hint_to(hub))
    granted = await asyncio.wait_for(wide, 2 * EPSILON + NOISE)
    assert not narrow.done()
    if how == "released":
        assert len(proxy.operations("acquire")) == asked
    assert await permits[1].release()
    assert await granted.release()
    assert await (await asyncio.wait_for(narrow, 2 * EPSILON + NOISE)).release()


async def test_a_hint_that_nobody_here_wants_is_passed_on(
    proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Its process has left the line meanwhile; the next one still gets it."""
    here = Semaphore(proxied, "jobs", 1, lease=LEASE)
    permit = await here.acquire()
    hub = hub_of(permit)
    assert await permit.release()
    holder = await Semaphore(client_b, "jobs", 1, lease=LEASE).acquire()
    waiter = await waits_in_line(Semaphore(client_a, "jobs", 1, lease=LEASE))
    await admin.zrem(key_of(here, "holders"), holder.id)  # without a message to anybody
    proxy.inject(hint_to(hub))
    granted = await asyncio.wait_for(waiter, 5)
    assert await granted.release()
    assert not await holder.release()


@pytest.mark.fault(49)
async def test_a_hint_that_fits_nobody_does_not_go_round_for_ever(
    kind: Kind,
    client_a: Redis,
    client_b: Redis,
    connect: Connect,
    server: EmbeddedRedis,
    admin: Redis,
) -> None:
    """Two processes wait for two permits each, and one is free: each gets one message, at most."""
    holder = kind(connect(server.url), "jobs", 2, lease=9.0)
    permits = [await holder.acquire(), await holder.acquire()]
    waiters = [
        in_background(kind(redis, "jobs", 2, lease=9.0).acquire(permits=2))
        for redis in (client_a, client_b)
    ]
    await waiting(holder, 2)
    await admin.config_resetstat()
    assert await permits[0].release()
    # A hint that goes round does so in less than a millisecond.
    await asyncio.sleep(0.3)
    stats = await admin.info("commandstats")
    assert stats.get("cmdstat_publish", {"calls": 0})["calls"] <= 4
    assert not any(waiter.done() for waiter in waiters)
    assert await permits[1].release()
    for waiter in asyncio.as_completed(waiters, timeout=5):
        assert await (await waiter).release()


@pytest.mark.fault(23, 29, 33)
@pytest.mark.parametrize("how", ["NOSCRIPT No matching script.", "cut", "OOM no"])
async def test_a_hint_survives_the_acquire_that_carries_it(
    proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis, how: str
) -> None:
    """Two permits are free, for a hub that announced two waiters and has one, and for the next."""
    here, there, beside = (
        Semaphore(redis, "jobs", 2, lease=LEASE) for redis in (proxied, client_b, client_a)
    )
    holder = await beside.acquire(permits=2)
    first = await waits_in_line(here)
    second = await waits_in_line(here, place=2)
    last = await waits_in_line(there, place=3)
    second.cancel()
    await asyncio.sleep(0.05)
    if how == "cut":
        proxy.cut("acquire")
    else:
        proxy.answer("acquire", how)
    assert await holder.release()
    with takes_at_most(0.5):
        permit = await last
    assert await permit.release()
    with pytest.raises(BackendError) if how == "OOM no" else nullcontext():
        assert await (await first).release()


async def test_a_kept_permit_whose_taker_leaves_is_passed_on(
    proxied: Redis, proxy: Proxy, client_b: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands are on their way, and a waiter gives up: without any fault."""
    monkeypatch.setattr(window, "FAR", math.inf)  # on a busy machine there would be more of them
    here, there = (Semaphore(redis, "jobs", 1, lease=LEASE) for redis in (proxied, client_b))
    beside = [Semaphore(proxied, f"beside {n}", 1, lease=LEASE) for n in range(2)]
    for semaphore in beside:
        await semaphore.reap()
    permit = await here.acquire()
    own = await waits_in_line(here)
    waiter = await waits_in_line(there, place=2)
    fault = proxy.hold("status")
    asking = [in_background(semaphore.status()) for semaphore in beside]
    await fault.struck.wait()
    releasing = in_background(permit.release())
    await asyncio.sleep(0.05)
    own.cancel()
    await asyncio.sleep(0.05)
    fault.lift()
    assert await releasing
    await asyncio.gather(*asking)
    with takes_at_most(0.5):
        permit = await waiter
    assert await permit.release()
