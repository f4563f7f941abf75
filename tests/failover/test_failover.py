"""A master that dies or is demoted, and a replica that takes over with what it has."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, BackendUnavailable, FairSemaphore, Permit
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, key_of
from tests.harness.proxy import Proxy
from tests.harness.replicas import SERVICE, Flock, Replicated, contents
from tests.harness.topologies import in_sync, is_alive, settle, tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    noise,
    soon,
    takes_at_most,
    until,
    waiting,
    waits_in_queue,
)

PAUSE = 1.0  # seconds at most between two attempts to reach a server


@pytest.fixture
async def proxy(replicated: Replicated) -> AsyncIterator[Proxy]:
    """Where clients think that the master is, whichever it is."""
    async with Proxy(replicated.master.port) as proxy:
        yield proxy


@pytest.fixture
def here(proxy: Proxy, connect: Connect) -> Redis:
    return connect(proxy.url)


@pytest.fixture
def there(proxy: Proxy, connect: Connect) -> Redis:
    return connect(proxy.url)


async def take_over(replicated: Replicated, proxy: Proxy) -> EmbeddedRedis:
    """The replica becomes the master, with what it has; the master is killed."""
    new = await replicated.promote()
    proxy.lead_to(new.port)
    replicated.master.kill()
    proxy.drop()
    return new


async def demote(replicated: Replicated, *proxies: Proxy) -> EmbeddedRedis:
    """The replica has everything and becomes the master; the master becomes its replica."""
    await replicated.caught_up()
    new = await replicated.promote()
    for proxy in proxies:
        proxy.lead_to(new.port)
    await replicated.demote(replicated.master, new)
    return new


async def holders(server: EmbeddedRedis, semaphore: AnySemaphore) -> set[str]:
    return set(await tell(server, "ZRANGE", key_of(semaphore, "holders"), 0, -1))


@pytest.mark.release
@pytest.mark.fault(38)
async def test_a_grant_without_a_subscriber_is_not_told_by_a_demoted_master(
    replicated: Replicated, proxy: Proxy, here: Redis, connect: Connect
) -> None:
    """It repeats what its new master publishes, to clients that still subscribe to it."""
    old = replicated.master
    async with Proxy(old.port) as still:
        held = FairSemaphore(here, "jobs", 1, lease=30.0)
        permit = await held.acquire()
        waiter = await waits_in_queue(FairSemaphore(connect(still.url), "jobs", 1, lease=30.0))
        hub = (await held.status()).waiters[0].client.id
        new = await demote(replicated, proxy)
        settle(lambda: in_sync(old), "the old master follows the new one")
        async with Redis.from_url(old.url) as witness:
            published: Any = witness.pubsub()
            await published.subscribe(f"redsem:@{hub}", "the end")
            proxy.drop()
            assert await permit.release()
            assert await tell(new, "ZCARD", key_of(held, "queue")) == 0
            await tell(new, "PUBLISH", "the end", "")
            first = await anext(m async for m in published.listen() if m["type"] == "message")
            assert first["channel"] == b"the end", first
            await published.aclose()
        assert not waiter.done()
        assert await holders(new, held) == set()
        still.lead_to(new.port)
        still.drop()
        await is_served(waiter, after=permit)


@pytest.mark.fault(39)
async def test_a_failover_keeps_all_that_was_handed_over(
    replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """The script turns replication off for its message, and on again for what it writes then."""
    held, waits = (FairSemaphore(client, "jobs", 1, lease=30.0) for client in (here, there))
    permit = await held.acquire()
    waiters = [await waits_in_queue(waits, place=place) for place in (1, 2)]
    assert await permit.release()
    successor = await soon(waiters[0])
    await replicated.caught_up()

    async def agree() -> bool:
        return await contents(replicated.replicas[0]) == await contents(replicated.master)

    await until(agree, "the replica has what the master has")
    new = await take_over(replicated, proxy)
    await successor.refresh()
    assert await holders(new, waits) == {successor.id}
    assert await successor.release()
    await is_served(waiters[1], after=successor)
    await all_free(held)


@pytest.mark.release
@pytest.mark.fault(39)
@pytest.mark.parametrize("lost", [1, 3])
async def test_a_failover_that_loses_grants_lets_as_many_in_and_for_a_lease_at_most(
    lost: int, replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """K grants that are known nowhere: at most k holders too many, and tokens in order."""
    limit, lease = 4, 2.0
    old_hand = FairSemaphore(here, "jobs", limit, lease=lease)
    newcomer = FairSemaphore(there, "jobs", limit, lease=lease)
    permits = [await old_hand.acquire() for _ in range(limit - lost)]
    await replicated.cut_off()
    doomed = [await old_hand.acquire() for _ in range(lost)]
    assert await newcomer.try_acquire() is None
    assert len(await holders(replicated.master, old_hand)) == limit
    assert len(await holders(replicated.replicas[0], old_hand)) == limit - lost
    await take_over(replicated, proxy)

    taken = [await newcomer.acquire(timeout=PAUSE + 1) for _ in range(lost)]
    assert await newcomer.try_acquire() is None, "more than were lost"
    holding = [permit for permit in (*permits, *doomed, *taken) if not permit.lost]
    assert len(holding) <= limit + lost
    with takes_at_most(lease):
        await asyncio.wait_for(asyncio.gather(*(permit.wait_lost() for permit in doomed)), 10)
    assert not any(permit.lost for permit in (*permits, *taken))
    assert min(p.fencing_token for p in taken) > max(p.fencing_token for p in doomed)
    assert await asyncio.gather(*(permit.release() for permit in doomed)) == [False] * lost
    assert (await newcomer.status(0)).held == limit
    assert all(await asyncio.gather(*(permit.release() for permit in (*permits, *taken))))
    await all_free(newcomer)


@pytest.mark.release
@pytest.mark.fault(39)
async def test_a_failover_that_loses_releases_costs_a_lease_at_most(
    replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """The new master takes for held what was given back; waiters stand in line."""
    held = FairSemaphore(here, "jobs", 1, lease=2.0)
    waits = FairSemaphore(there, "jobs", 1, lease=2.0)
    permit = await held.acquire()
    await replicated.cut_off()
    await held.set_limit(0)
    assert await permit.release()
    waiters = [await waits_in_queue(waits, place=n) for n in (1, 2, 3)]
    assert not await tell(replicated.replicas[0], "EXISTS", key_of(waits, "queue"))
    new = await take_over(replicated, proxy)
    assert await holders(new, held) == {permit.id}
    tokens = [permit.fencing_token]
    with takes_at_most(2.0 + EPSILON):
        for task in asyncio.as_completed(waiters):
            successor = await task
            tokens.append(successor.fencing_token)
            assert await successor.release()
    assert tokens == sorted(set(tokens))
    await all_free(held)


LAG = 2  # min-replicas-max-lag, in seconds
LATE = 2.0  # seconds more until a master stops: it counts whole ones, and looks once in each
LEASE = 1.5


@pytest.fixture
async def link(replicated: Replicated) -> AsyncIterator[Proxy]:
    """Between the master and its replica."""
    async with Proxy(replicated.master.port) as link:
        await replicated.follow_through(link)
        yield link


async def takes_writes(server: EmbeddedRedis) -> bool:
    with suppress(errors.ResponseError):  # NOREPLICAS
        return bool(await tell(server, "SET", "something", "to write"))
    return False


async def are_lost(permits: list[Permit]) -> None:
    await asyncio.gather(*(permit.wait_lost() for permit in permits))


class Split(NamedTuple):
    """Clients of two masters of one name, and what each of them holds."""

    here: AnySemaphore  # at the old master
    held: list[Permit]
    there: AnySemaphore  # at the new one
    taken: list[Permit]
    parted: float  # when the two heard of each other for the last time

    def are_trusted(self) -> bool:
        return not any(permit.lost for permit in (*self.held, *self.taken))


async def split(replicated: Replicated, link: Proxy, connect: Connect) -> Split:
    """Replace a master that lives, and that does not hear of it."""
    here, there = (
        FairSemaphore(connect(server.url), "jobs", 2, lease=LEASE)
        for server in (replicated.master, replicated.replicas[0])
    )
    held = [await here.acquire() for _ in range(2)]
    await replicated.caught_up()
    await replicated.part(link)
    parted = time.monotonic()
    await replicated.promote()
    taken = [await soon(there.acquire(), 2 * LEASE) for _ in range(2)]
    both = Split(here, held, there, taken, parted)
    assert both.are_trusted(), "the fault did not happen: four permits, and a limit of two"
    return both


@pytest.mark.release
@pytest.mark.fault(39)
async def test_two_masters_exceed_the_limit_for_as_long_as_both_take_writes(
    replicated: Replicated, link: Proxy, connect: Connect
) -> None:
    """No client sees both: it is no promise, and docs/guarantees.md says so."""
    both = await split(replicated, link, connect)
    with pytest.raises(TimeoutError):  # in the time after which it is over in the next test
        async with asyncio.timeout_at(both.parted + LAG + LATE + LEASE):
            await are_lost(both.held)
    assert await takes_writes(replicated.master)
    assert await both.held.pop().release()
    both.held.append(await soon(both.here.acquire()))
    assert both.are_trusted()
    for permit in (*both.held, *both.taken):
        assert await permit.release()


@pytest.mark.release
@pytest.mark.fault(39)
async def test_a_master_that_needs_a_replica_ends_the_trust_in_it(
    replicated: Replicated, link: Proxy, connect: Connect
) -> None:
    """By taking no writes once it is alone. Refreshes fail then, and nothing is granted."""
    master = replicated.master

    async def takes() -> bool:
        return await takes_writes(master)

    async def stopped() -> bool:
        return not await takes_writes(master)

    await tell(master, "CONFIG", "SET", "min-replicas-max-lag", LAG)
    await tell(master, "CONFIG", "SET", "min-replicas-to-write", 1)
    await until(takes, "the master has counted its replica", LATE)
    both = await split(replicated, link, connect)
    await until(stopped, "the old master takes no writes", LAG + LATE)
    assert time.monotonic() - both.parted < LAG + LATE + noise()
    waits = in_background(both.here.acquire())
    with takes_at_most(0.4), pytest.raises(BackendUnavailable, match="NOREPLICAS"):
        await both.here.acquire(timeout=0.4)
    with pytest.raises(BackendUnavailable, match="NOREPLICAS"):
        await both.here.try_acquire()
    await soon(are_lost(both.held), LEASE)
    with pytest.raises(BackendUnavailable, match="NOREPLICAS"):
        await soon(waits, LEASE)
    for permit in both.taken:
        assert await permit.release()
    await all_free(both.there)


@pytest.mark.release
@pytest.mark.fault(38, 39)
@pytest.mark.parametrize("end", ["killed", "demoted"])
async def test_a_real_failover_is_ridden_out(flock: Flock, end: str) -> None:
    """Sentinels promote the replica: permits are kept, and waiters go on waiting."""
    watching = [flock.sentinel() for _ in range(2)]
    clients: list[Redis] = [sentinel.master_for(SERVICE) for sentinel in watching]
    held, waits = (FairSemaphore(client, "jobs", 1, lease=12.0) for client in clients)
    old = await flock.master()

    async def ended() -> bool:
        if end == "killed":
            return not is_alive(old)
        # Until then it takes writes, and loses them: no promise is made about these.
        with suppress(ConnectionError, errors.ConnectionError):  # it ends its clients' then
            return bool((await tell(old, "ROLE"))[0] == "slave")
        return False

    async with held as permit:
        waiter = await waits_in_queue(waits, timeout=60)
        await flock.servers.caught_up()
        if end == "killed":
            old.kill()
        else:
            assert await tell(flock.sentinels[0], "SENTINEL", "FAILOVER", SERVICE) == "OK"
        new = await flock.failed_over(old)
        await until(ended, f"the old master is {end}", within=20)
        await permit.refresh()
        assert not permit.lost
        assert await holders(new, held) == {permit.id}
        assert not waiter.done()
        await waiting(held, 1)
    with takes_at_most(10 / 3 + PAUSE + EPSILON):  # at worst it had not found the new one yet
        successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert await holders(new, held) == {successor.id}
    assert await successor.release()
    await all_free(held)
    for client in (*clients, *(each for sentinel in watching for each in sentinel.sentinels)):
        await redsem_async.aclose(client)
        await client.aclose()
