"""A master that dies or is demoted, and a replica that takes over with what it has."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Permit
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of
from tests.harness.proxy import Proxy
from tests.harness.replicas import SERVICE, Flock, Replicated
from tests.harness.topologies import in_sync, is_alive, settle, tell
from tests.harness.wait import EPSILON, all_free, takes_at_most, until, waits_in_line

pytestmark = pytest.mark.release

PAUSE = 1.0  # seconds at most between two attempts to reach a server


@pytest.fixture
async def proxy(replicated: Replicated) -> AsyncIterator[Proxy]:
    """Where clients think that the master is, whichever it is."""
    async with Proxy(replicated.master.port) as proxy:
        yield proxy


@pytest.fixture
def here(proxy: Proxy, connect: Connect) -> Redis:
    return connect(proxy.url, client_name="here")


@pytest.fixture
def there(proxy: Proxy, connect: Connect) -> Redis:
    return connect(proxy.url, client_name="there")


async def holders(server: EmbeddedRedis, semaphore: AnySemaphore) -> set[str]:
    return set(await tell(server, "ZRANGE", key_of(semaphore, "holders"), 0, -1))


async def expiry_of(permit: Permit, server: EmbeddedRedis) -> float:
    key = f"redsem:{{{permit.name}}}:holders"
    return float(await tell(server, "ZSCORE", key, permit.id))


async def refusals(server: EmbeddedRedis) -> int:
    """How many commands a server answered with an error so far."""
    stats: dict[str, int] = await tell(server, "INFO", "stats")
    return stats["total_error_replies"]


# -- a demoted master


@pytest.mark.fault(38)
async def test_a_demoted_master_is_left_for_the_new_one(
    kind: Kind, replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """It answers READONLY, in the wording of its version, and stays connected."""
    old = replicated.master
    held, waiting = kind(here, "jobs", 1, lease=3.0), kind(there, "jobs", 1, lease=3.0)
    async with held as permit:
        waiter = await waits_in_line(waiting)
        await replicated.caught_up()
        new = await replicated.promote()
        proxy.lead_to(new.port)
        before = await refusals(old)
        connections = len(proxy.open_connections())
        await replicated.demote(old, new)
        expiry = await expiry_of(permit, new)

        async def renewed() -> bool:
            return await expiry_of(permit, new) > expiry

        await until(renewed, "it is refreshed at the new master", within=2 * PAUSE + 1)
        assert await refusals(old) > before, "nobody was refused"
        assert len(proxy.connections) > connections
        assert not permit.lost
        assert not waiter.done()
    with takes_at_most(1.0 + PAUSE + EPSILON):  # a heartbeat is refused first
        successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    await all_free(held)
    assert await holders(new, held) == set()


@pytest.mark.fault(38)
async def test_a_grant_that_nobody_heard_is_not_told_by_a_demoted_master(
    replicated: Replicated, proxy: Proxy, here: Redis, connect: Connect
) -> None:
    """It repeats what its new master publishes, to those who still listen to it."""
    old = replicated.master
    async with Proxy(old.port) as still:
        held = FairSemaphore(here, "jobs", 1, lease=30.0)
        waiting = FairSemaphore(connect(still.url), "jobs", 1, lease=30.0)
        permit = await held.acquire()
        waiter = await waits_in_line(waiting)
        (who,) = (await held.status()).waiters
        deaf = who.client.id
        await replicated.caught_up()
        new = await replicated.promote()
        await replicated.demote(old, new)
        settle(lambda: in_sync(old), "the old master follows the new one")
        async with Redis.from_url(old.url) as witness:
            heard: Any = witness.pubsub()
            await heard.subscribe(f"redsem:@{deaf}", "the end")
            proxy.lead_to(new.port)
            proxy.drop()
            assert await permit.release()
            assert await tell(new, "HGET", key_of(held, "meta"), f"{deaf}:gone") == "1"
            await tell(new, "PUBLISH", "the end", "")
            told = await anext(m async for m in heard.listen() if m["type"] == "message")
            assert told["channel"] == b"the end", told
            await heard.aclose()
        assert not waiter.done()
        assert await holders(new, held) == set()
        still.lead_to(new.port)
        still.drop()
        successor = await waiter
        assert successor.fencing_token > permit.fencing_token
        assert await successor.release()


@pytest.mark.fault(38)
@pytest.mark.parametrize("operation", ["acquire", "release", "refresh", "status"])
async def test_whatever_a_demoted_master_refuses_is_done_by_the_new_one(
    kind: Kind, replicated: Replicated, proxy: Proxy, here: Redis, operation: str
) -> None:
    """Nobody sees the refusal who has time to wait."""
    semaphore = kind(here, "jobs", 2, lease=20.0)
    permit = await semaphore.acquire()
    await replicated.caught_up()
    new = await replicated.promote()
    proxy.lead_to(new.port)
    await replicated.demote(replicated.master, new)
    before = await refusals(replicated.master)
    with takes_at_most(PAUSE + EPSILON):
        if operation == "acquire":
            assert await (await semaphore.acquire(timeout=5)).release()
        elif operation == "release":
            assert await permit.release()
        elif operation == "refresh":
            await permit.refresh()
        else:
            assert (await semaphore.status()).held == 1
    if operation != "status":  # which a replica answers
        assert await refusals(replicated.master) > before
        assert not permit.lost or operation == "release"
        assert (permit.id in await holders(new, semaphore)) == (operation != "release")
    assert await permit.release() == (operation != "release")
    await all_free(semaphore)


# -- writes that are lost


@pytest.mark.fault(39)
@pytest.mark.parametrize("lost", [1, 3])
async def test_a_failover_that_loses_grants_lets_as_many_in_and_for_a_lease_at_most(
    kind: Kind, lost: int, replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """K grants that nobody knows of: at most k holders too many, and tokens in order."""
    limit, lease = 4, 2.0
    old_hand = kind(here, "jobs", limit, lease=lease)
    newcomer = kind(there, "jobs", limit, lease=lease)
    permits = [await old_hand.acquire() for _ in range(limit - lost)]
    await replicated.caught_up()
    await replicated.cut_off()
    doomed = [await old_hand.acquire() for _ in range(lost)]
    assert await newcomer.try_acquire() is None
    assert len(await holders(replicated.master, old_hand)) == limit
    assert len(await holders(replicated.replicas[0], old_hand)) == limit - lost
    new = await replicated.promote()
    proxy.lead_to(new.port)
    replicated.master.kill()
    proxy.drop()

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


@pytest.mark.fault(39)
async def test_a_failover_that_loses_releases_costs_a_lease_at_most(
    kind: Kind, replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """The new master takes for held what was given back: until its lease ends."""
    lease = 2.0
    semaphore, other = kind(here, "jobs", 1, lease=lease), kind(there, "jobs", 1, lease=lease)
    permit = await semaphore.acquire()
    await replicated.caught_up()
    await replicated.cut_off()
    assert await permit.release()
    new = await replicated.promote()
    proxy.lead_to(new.port)
    replicated.master.kill()
    proxy.drop()
    assert await holders(new, semaphore) == {permit.id}
    with takes_at_most(lease + EPSILON):
        successor = await other.acquire(timeout=10)
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    await all_free(other)


@pytest.mark.fault(39)
async def test_a_failover_that_loses_the_line_loses_no_waiter(
    kind: Kind, replicated: Replicated, proxy: Proxy, here: Redis, there: Redis
) -> None:
    """Waiters of whom the new master never heard stand in its line all the same."""
    held, waiting = kind(here, "jobs", 1, lease=3.0), kind(there, "jobs", 1, lease=3.0)
    holder = await held.acquire()
    await replicated.caught_up()
    await replicated.cut_off()
    waiters = [await waits_in_line(waiting, place=n) for n in (1, 2, 3)]
    line = "queue" if kind is redsem_async.FairSemaphore else "waiting"
    assert not await tell(replicated.replicas[0], "EXISTS", key_of(waiting, line))
    new = await replicated.promote()
    proxy.lead_to(new.port)
    replicated.master.kill()
    proxy.drop()
    tokens = [holder.fencing_token]
    async with asyncio.timeout(10):
        await until_waiting(held, 3)
        assert await holder.release()
        for task in asyncio.as_completed(waiters):
            permit = await task
            tokens.append(permit.fencing_token)
            assert await permit.release()
    assert tokens == sorted(set(tokens))
    await all_free(held)


async def until_waiting(semaphore: AnySemaphore, count: int) -> None:
    async def they_wait() -> bool:
        return (await semaphore.status(0)).waiting == count

    await until(they_wait, "they stand in line")


# -- sentinels


@pytest.fixture
async def follow() -> AsyncIterator[Callable[[Flock], Redis]]:
    """Makes clients that ask the sentinels who the master is."""
    async with AsyncExitStack() as stack:

        def client(flock: Flock) -> Redis:
            sentinel = flock.sentinel()
            for each in sentinel.sentinels:
                stack.push_async_callback(each.aclose)
            redis: Redis = sentinel.master_for(SERVICE)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield client


Do = Callable[[Flock, EmbeddedRedis], Coroutine[None, None, None]]


async def kill(flock: Flock, old: EmbeddedRedis) -> None:
    old.kill()


async def dead(flock: Flock, old: EmbeddedRedis) -> None:
    assert not is_alive(old)


async def ask_for_it(flock: Flock, old: EmbeddedRedis) -> None:
    assert await tell(flock.sentinels[0], "SENTINEL", "FAILOVER", SERVICE) == "OK"


async def demoted(flock: Flock, old: EmbeddedRedis) -> None:
    """Until then it takes writes, and loses them: no promise is made about these."""

    async def follows() -> bool:
        with suppress(ConnectionError, errors.ConnectionError):  # it ends its clients' then
            return bool((await tell(old, "ROLE"))[0] == "slave")
        return False

    await until(follows, "the old master is demoted", within=20)


@pytest.mark.fault(38, 39)
@pytest.mark.parametrize(
    ("end", "done"), [(kill, dead), (ask_for_it, demoted)], ids=["killed", "demoted"]
)
async def test_a_real_failover_is_ridden_out(
    kind: Kind,
    flock: Flock,
    follow: Callable[[Flock], Redis],
    end: Do,
    done: Do,
) -> None:
    """Sentinels promote the replica: who holds holds on, and who waits waits."""
    lease = 12.0
    held, waiting = kind(follow(flock), "jobs", 1, lease=lease), kind(follow(flock), "jobs", 1)
    async with held as permit:
        waiter = await waits_in_line(waiting, timeout=60)
        await flock.servers.caught_up()
        old = await flock.master()
        await end(flock, old)
        new = await flock.failed_over(old)
        assert new is not old
        await done(flock, old)
        await permit.refresh()
        assert not permit.lost
        assert await holders(new, held) == {permit.id}
        assert not waiter.done()
        await until_waiting(held, 1)
    with takes_at_most(10 / 3 + PAUSE + EPSILON):  # at worst it had not found the new one yet
        successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert await holders(new, held) == {successor.id}
    assert await successor.release()
    await all_free(held)


@pytest.mark.fault(39)
async def test_a_failover_longer_than_the_lease_is_a_loss_in_time(
    kind: Kind, flock: Flock, follow: Callable[[Flock], Redis]
) -> None:
    """Nobody could renew it: the body ends before the lease does, not afterwards."""
    lease = 0.6
    semaphore = kind(follow(flock), "jobs", 1, lease=lease)
    old = await flock.master()
    permit = await semaphore.acquire(timeout=5)
    with pytest.raises(redsem_async.PermitLost):
        async with permit:
            old.kill()
            with takes_at_most(lease):
                await asyncio.sleep(30)
    await flock.failed_over(old)
    successor = await semaphore.acquire(timeout=10)
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    await all_free(semaphore)
