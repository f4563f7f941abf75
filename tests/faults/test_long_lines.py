"""Lines longer than one call looks through: nobody is hidden behind those who cannot be served."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Permit, Semaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, hub_of, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, NOISE, in_background, until, waits_in_line

MANY = 1100  # more than one call of a script looks at
LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one


@pytest.fixture
async def crowd() -> AsyncIterator["list[asyncio.Task[Permit]]"]:
    """Waiters that the test leaves behind."""
    waiters: list[asyncio.Task[Permit]] = []
    yield waiters
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)


async def join(
    crowd: "list[asyncio.Task[Permit]]", semaphore: FairSemaphore, *, permits: int = 1
) -> None:
    """Have many wait, and all of them in line."""
    before = (await semaphore.status(0)).waiting
    crowd += [in_background(semaphore.acquire(permits=permits)) for _ in range(MANY)]

    async def in_line() -> bool:
        return (await semaphore.status(0)).waiting == before + MANY

    await until(in_line, "all of them wait", within=20)


async def cut_off(proxy: Proxy, semaphore: FairSemaphore, admin: Redis) -> None:
    """Cut off the process that is first in line, and wait until the server has noticed."""
    hub = (await semaphore.status(1)).waiters[0].client.id
    proxy.refusing = True
    proxy.drop()

    async def nobody_listens() -> bool:
        [(_, listeners)] = await admin.pubsub_numsub(f"redsem:@{hub}")
        return listeners == 0

    await until(nobody_listens, "the server has noticed")


@pytest.mark.fault(48)
async def test_a_light_request_is_not_hidden_behind_heavy_ones(
    client_a: Redis, client_b: Redis, crowd: "list[asyncio.Task[Permit]]"
) -> None:
    """The limit was lowered below what they ask for, and may stay there for long."""
    there = FairSemaphore(client_b, "jobs", 2, lease=LEASE)
    here = FairSemaphore(client_a, "jobs", 2, lease=LEASE)
    holder = await there.acquire(permits=2)
    await join(crowd, there, permits=2)
    light = await waits_in_line(here, place=MANY + 1)
    await there.set_limit(1)
    assert await holder.release()
    permit = await asyncio.wait_for(light, 1.0)
    status = await here.status(MANY)
    assert (status.held, status.waiting) == (1, MANY)
    places = [waiter.position for waiter in status.waiters]
    assert places == sorted(places), "they are listed in the order of their tickets"
    assert await permit.release()
    # Newcomers pass, too; and once the limit is raised, the first of the heavy ones is served.
    async with here.acquire(timeout=1.0):
        pass
    await here.set_limit(None)
    first = await asyncio.wait_for(crowd[0], 5.0)
    assert not any(waiter.done() for waiter in crowd[1:])
    late = in_background(here.acquire())
    assert await first.release()
    second = await asyncio.wait_for(crowd[1], 5.0)
    assert not late.done(), "who came later waits for its turn"
    assert await second.release()
    late.cancel()


async def test_newcomers_overtake_nobody_who_was_not_looked_at(
    proxied: Redis,
    proxy: Proxy,
    client_a: Redis,
    client_b: Redis,
    admin: Redis,
    crowd: "list[asyncio.Task[Permit]]",
) -> None:
    """A call looks at part of the line, and knows nothing of who waits behind that."""
    here = FairSemaphore(proxied, "jobs", 2, lease=LEASE)
    there = FairSemaphore(client_b, "jobs", 2, lease=LEASE)
    holder = await FairSemaphore(client_a, "jobs", 2, lease=LEASE).acquire(permits=2)
    await join(crowd, here, permits=2)
    light = await waits_in_line(here, place=MANY + 1)
    _ = proxy.stop("heartbeat")  # nobody looks at the line before the newcomer does
    await admin.set(key_of(here, "limit"), 1)
    await holder.detach(0.1)

    async def nothing_is_held() -> bool:
        return (await there.status(0)).held == 0

    await until(nothing_is_held, "it has expired")
    assert await there.try_acquire() is None
    permit = await asyncio.wait_for(light, 5.0)
    assert (await there.status(0)).held == 1
    proxy.drop()
    assert await permit.release()


@pytest.mark.fault(48)
async def test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed(
    proxied: Redis,
    proxy: Proxy,
    client_a: Redis,
    client_b: Redis,
    admin: Redis,
    crowd: "list[asyncio.Task[Permit]]",
) -> None:
    """And one that was only cut off comes back to its place."""
    dead = FairSemaphore(proxied, "jobs", 1, lease=LEASE)
    here, there = (FairSemaphore(redis, "jobs", 1, lease=LEASE) for redis in (client_a, client_b))
    holder = await here.acquire()
    await join(crowd, dead)
    waiters = [await waits_in_line(there, place=MANY + 1 + i) for i in range(2)]
    await cut_off(proxy, here, admin)
    assert await holder.release()
    permit = await asyncio.wait_for(waiters[0], 1.0)
    # It is heard from again: all of its requests are older than what waits here.
    proxy.refusing = False

    async def heard_from() -> bool:
        connected = len(proxy.operations("heartbeat")) >= 2
        return connected and (await here.status(0)).waiting == MANY + 1

    await until(heard_from, "it asks about its waiters", within=10)
    assert await permit.release()
    first = await asyncio.wait_for(crowd[0], 5.0)
    assert not waiters[1].done()
    assert await first.release()
    waiters[1].cancel()
    await asyncio.wait([waiters[1]])


@pytest.mark.fault(48)
async def test_requests_of_a_process_that_is_dead_are_dropped_from_where_they_were_set_aside(
    connect: Connect,
    server: EmbeddedRedis,
    client_a: Redis,
    admin: Redis,
    crowd: "list[asyncio.Task[Permit]]",
) -> None:
    """They count as waiting until then, and `max_waiters` goes by that."""
    async with Proxy(server.port) as proxy:
        dead = FairSemaphore(connect(proxy.url), "jobs", 1, lease=0.3)
        here = FairSemaphore(client_a, "jobs", 1, lease=0.3)
        holder = await here.acquire()
        crowd += [await waits_in_line(dead)]
        waiter = await waits_in_line(here, place=2)
        await cut_off(proxy, here, admin)
        assert await holder.release()  # the first in line hears nothing
        permit = await asyncio.wait_for(waiter, 1.0)
        last = await waits_in_line(here, place=2)
        assert (await here.status(0)).waiting == 2

        async def one_waits() -> bool:
            return (await here.status(0)).waiting == 1

        await until(one_waits, "the dead one is dropped", within=3 * 1.25 + 1.0 + NOISE)
        assert await permit.release()
        assert await (await asyncio.wait_for(last, 1.0)).release()
        proxy.refusing = False


@pytest.mark.fault(49)
async def test_a_hint_goes_to_who_can_use_it(
    proxied: Redis, proxy: Proxy, client_b: Redis, connect: Connect, server: EmbeddedRedis
) -> None:
    """A process whose own limit leaves no room is passed over, and not told in vain (zset)."""
    lease = 9.0
    holders = Semaphore(connect(server.url), "jobs", 2, lease=lease)
    permits = [await holders.acquire(), await holders.acquire()]
    narrow = await waits_in_line(Semaphore(proxied, "jobs", 1, lease=lease), place=1)
    wide = await waits_in_line(Semaphore(client_b, "jobs", 2, lease=lease), place=2)
    asked = len(proxy.operations("acquire"))
    assert await permits[0].release()
    granted = await asyncio.wait_for(wide, 2 * EPSILON + NOISE)
    assert not narrow.done()
    assert len(proxy.operations("acquire")) == asked
    assert await permits[1].release()
    assert await granted.release()
    assert await (await asyncio.wait_for(narrow, 2 * EPSILON + NOISE)).release()


async def test_a_hint_that_nobody_here_wants_is_passed_on(
    proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Its process has left the line meanwhile; who waits still hears of it (zset)."""
    here = Semaphore(proxied, "jobs", 1, lease=LEASE)
    permit = await here.acquire()
    hub = hub_of(permit)
    assert await permit.release()
    holder = await Semaphore(client_b, "jobs", 1, lease=LEASE).acquire()
    waiter = await waits_in_line(Semaphore(client_a, "jobs", 1, lease=LEASE))
    await admin.zrem(key_of(here, "holders"), holder.id)  # of which nobody is told but this one
    proxy.inject(_push(f"redsem:@{hub}", "hint 1 jobs"))
    granted = await asyncio.wait_for(waiter, 5)
    assert await granted.release()
    assert not await holder.release()


@pytest.mark.fault(49)
async def test_a_hint_that_came_too_late_for_its_process_is_passed_on(
    proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis
) -> None:
    """What it was told of was free for its limit then, and is for another's now (zset)."""
    lease = 9.0
    holder = Semaphore(client_b, "jobs", 2, lease=lease)
    permits = [await holder.acquire(), await holder.acquire()]
    narrow = await waits_in_line(Semaphore(proxied, "jobs", 1, lease=lease), place=1)
    wide = await waits_in_line(Semaphore(client_a, "jobs", 2, lease=lease), place=2)
    # It is told of one permit although its limit leaves no room for it.
    hub = next(w.client.id for w in (await holder.status()).waiters)
    assert await permits[0].detach(expires_in=0.05)
    proxy.inject(_push(f"redsem:@{hub}", "hint 1 jobs"))
    granted = await asyncio.wait_for(wide, 2 * EPSILON + NOISE)
    assert not narrow.done()
    assert await permits[1].release()
    assert await granted.release()
    assert await (await asyncio.wait_for(narrow, 2 * EPSILON + NOISE)).release()


def _push(channel: str, text: str) -> bytes:
    parts = (b"message", channel.encode(), text.encode())
    return b">3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.fault(49)
async def test_a_hint_that_fits_nobody_does_not_go_round_for_ever(
    kind: Kind,
    client_a: Redis,
    client_b: Redis,
    connect: Connect,
    server: EmbeddedRedis,
    admin: Redis,
) -> None:
    """Two processes wait for two permits each, and one is free: each is told once, at most."""
    lease = 9.0
    holder = kind(connect(server.url), "jobs", 2, lease=lease)
    permits = [await holder.acquire(), await holder.acquire()]
    waiters = [
        in_background(kind(redis, "jobs", 2, lease=lease).acquire(permits=2))
        for redis in (client_a, client_b)
    ]

    async def both_wait() -> bool:
        return (await holder.status(0)).waiting == 2

    await until(both_wait, "both wait")
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
