"""Connections that break, fall silent or are slow: no permit is lost, and no waiter forgotten."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster

import redsem_async
import redsem_async._redis.dial as dialling
from redsem_async import AnySemaphore, BackendError, BackendUnavailable, FairSemaphore
from redsem_async._redis.dial import Destination
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import connection_of, key_of, kill_connection, kill_connections
from tests.harness.inside import lease_of
from tests.harness.proxy import Proxy
from tests.harness.servers import stopped
from tests.harness.topologies import Cluster, embedded_cluster, tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    soon,
    takes_at_most,
    until,
    waits_in_queue,
)

LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one


@pytest.fixture
def here(proxied: Redis) -> AnySemaphore:
    return FairSemaphore(proxied, "jobs", 1, lease=LEASE)


@pytest.fixture
def there(client_b: Redis) -> AnySemaphore:
    return FairSemaphore(client_b, "jobs", 1, lease=LEASE)


@pytest.mark.fault(23)
@pytest.mark.parametrize("killed", [["here"], ["there"], ["here", "there"]], ids="-".join)
async def test_the_connection_is_killed_during_a_release(
    client_a: Redis, there: AnySemaphore, admin: Redis, killed: list[str]
) -> None:
    """The waiter's or the releaser's: served after a reconnection and a trip."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=LEASE)
    for _ in range(3):
        holder = await there.acquire(timeout=1)
        waiter = await waits_in_queue(semaphore)
        releasing = in_background(holder.release())
        await asyncio.sleep(0)  # it is being written
        numbers = {name: await kill_connection(admin, name) for name in killed}
        assert await releasing
        with takes_at_most(EPSILON):
            permit = await waiter
        for name, number in numbers.items():
            # One that has nothing to say any more need not come back.
            assert await connection_of(admin, name) != number
        assert await permit.release()


@pytest.mark.fault(23)
async def test_a_killed_connection_costs_a_holder_nothing(client_a: Redis, admin: Redis) -> None:
    """Time and again, while it is refreshed."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=3.0, refresh_interval=0.1)
    async with semaphore as permit:
        for _ in range(4):
            number = await kill_connection(admin, "here")

            async def back(number: int = number) -> bool:
                return await connection_of(admin, "here") not in (number, None)

            await until(back, "it is back", within=0.5)
            trusted = lease_of(permit).trusted_until
            await until(lambda: lease_of(permit).trusted_until > trusted, "it is refreshed")  # noqa: B023
        assert not permit.lost
        assert (await semaphore.status()).holders[0].id == permit.id


@pytest.mark.fault(23)
@pytest.mark.parametrize("lost", ["the message", "its refresh"])
async def test_a_grant_whose_message_was_lost_is_found(
    proxied: Redis, proxy: Proxy, client_b: Redis, lost: str
) -> None:
    """It went to a connection that broke: the new one asks, or renews (fair)."""
    here, there = (FairSemaphore(redis, "jobs", 1, lease=LEASE) for redis in (proxied, client_b))
    holder = await there.acquire()
    waiter = await waits_in_queue(here)
    if lost == "the message":
        proxy.mute()
    else:
        proxy.cut("refresh")
    assert await holder.release()
    status = await there.status()
    assert (status.held, status.waiting) == (1, 0), "it was handed over"
    if lost == "the message":
        assert not waiter.done()
        proxy.drop()
    with takes_at_most(0.2):
        permit = await waiter
    trusted = lease_of(permit).trusted_until
    assert [entry.id for entry in status.holders] == [permit.id]
    await until(lambda: lease_of(permit).trusted_until > trusted, "it is refreshed", within=0.5)
    assert len(proxy.connections) == 2
    assert await permit.release()


@pytest.mark.fault(25)
async def test_a_subscription_that_ends_unasked_is_made_anew(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, admin: Redis
) -> None:
    """Without it grants would go unnoticed."""
    holder = await there.acquire()
    waiter = await waits_in_queue(here)
    first = await connection_of(admin, "proxied")
    channel = proxy.operations("SUBSCRIBE")[0].arguments[1]
    proxy.inject(b">3\r\n$11\r\nunsubscribe\r\n$%d\r\n%s\r\n:0\r\n" % (len(channel), channel))

    async def has_another() -> bool:
        return await connection_of(admin, "proxied") not in (first, None)

    await until(has_another, "it subscribed on a new connection", within=1.0)
    assert await holder.release()
    await is_served(waiter, EPSILON, after=holder)


@pytest.mark.fault(26)
async def test_it_listens_before_it_asks(here: AnySemaphore, proxy: Proxy) -> None:
    """On each connection anew: a grant before the subscription would go unnoticed."""
    for number in range(2):
        assert await (await here.acquire()).release()
        spoken = [sent.operation for sent in proxy.sent if sent.connection == number]
        assert spoken.index("SUBSCRIBE") < spoken.index("acquire")
        proxy.drop()
        await until(lambda: not proxy.open_connections(), "the connection is closed")


@pytest.mark.parametrize("end", ["reset", "closed"])
async def test_a_connection_that_ended_before_it_was_ours_is_noticed(
    end: str, client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py's reader knew of its end, which is read nowhere: no caller may wait for answers."""
    made: list[Any] = []
    connected = dialling._connected

    async def ended(target: Destination, protocol: int) -> Any:
        connection = await connected(target, protocol)
        made.append(connection)
        if len(made) == 1:
            if end == "reset":
                connection._writer.transport.abort()
            else:
                await connection.send_command("QUIT")
                assert await connection.read_response() == b"OK"
            await until(connection._reader.at_eof, "its reader knows")
        return connection

    monkeypatch.setattr(dialling, "_connected", ended)
    await is_served(FairSemaphore(client_a, "jobs", 1).acquire(), 0.2)
    assert len(made) == 2


class _Otherwise(Connection):
    """A connection of a redis-py that does not keep a stream as asyncio has it."""

    async def connect(self) -> None:
        base, inside = cast("Any", Connection), cast("Any", self)
        await base.connect(self)
        inside._writer = SimpleNamespace(close=inside._writer.close)


async def test_a_redis_py_that_keeps_its_streams_otherwise_is_named(server: EmbeddedRedis) -> None:
    """At once, and with the versions that will do: no attempt would ever succeed."""
    pool = ConnectionPool(_Otherwise, host="127.0.0.1", port=server.port)
    with pytest.raises(BackendError, match=r"with redis-py \S+, .* than 5\.2 to ") as raised:
        await soon(FairSemaphore(Redis(connection_pool=pool), "jobs", 1).acquire())
    assert not isinstance(raised.value, BackendUnavailable)


@pytest.mark.fault(24)
async def test_the_shortest_lease_says_when_a_silent_connection_is_left(
    here: AnySemaphore, proxied: Redis, proxy: Proxy
) -> None:
    """Although a command without a reply is that of another semaphore."""
    await here.reap()
    _ = proxy.stop("acquire")
    acquiring = in_background(here.acquire(timeout=10))
    await until(lambda: bool(proxy.operations("acquire")), "it is in flight")
    proxy.before = None
    hasty = FairSemaphore(proxied, "others", 1, lease=1.0)
    await is_served(hasty.acquire(timeout=5), 2.0)
    await is_served(acquiring, EPSILON)
    assert len(proxy.connections) == 2


@pytest.mark.fault(24)
@pytest.mark.parametrize("waiting", [False, True], ids=["holding", "waiting"])
async def test_a_half_open_connection_is_noticed(
    proxied: Redis, proxy: Proxy, there: AnySemaphore, waiting: bool
) -> None:
    """Nothing comes and nothing ends: a question that stays unanswered tells."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=3.0)
    if waiting:
        holder = await there.acquire()
        waiter = await waits_in_queue(semaphore)
        proxy.half_open()
        assert await holder.release()
        # A heartbeat, and the patience for its answer.
        await is_served(waiter, 2.0 + EPSILON, after=holder)
        assert len(proxy.connections) == 2
    else:
        async with semaphore as permit:
            proxy.half_open()
            await until(lambda: len(proxy.connections) == 2, "it reconnected", within=2.5)
            await until(lambda: permit.expires_in > 2.5, "it is refreshed", within=1.0)
            assert not permit.lost
    await all_free(there)


@pytest.mark.release
async def test_silent_neighbours_cost_no_permit() -> None:
    """A lost connection is made again at once, although the other nodes of the cluster stall."""
    with embedded_cluster(node_timeout_ms=60_000) as cluster:
        first, *others = (shard.master.server for shard in cluster.shards)
        client = RedisCluster.from_url(cluster.url, client_name="here")
        semaphore = FairSemaphore(client, await cluster.name_on(cluster.shards[0]), 1, lease=2.0)
        permit = await semaphore.acquire(timeout=5)
        with ExitStack() as stalled:
            for other in others:
                stalled.enter_context(stopped(other))
            async with Redis.from_url(first.url) as admin:
                await kill_connections(admin, "here")
            await asyncio.sleep(3.0)  # longer than its lease
            assert not permit.lost
        await permit.release()
        await redsem_async.aclose(client)
        await client.aclose()


@pytest.mark.release
def test_the_end_of_a_program_releases_where_the_slot_went(cluster: Cluster) -> None:
    """asyncio.run ends, and only then is it learned that the slot has moved."""
    kept: list[object] = []

    async def main() -> str:
        name = await cluster.name_on(cluster.shards[0])
        client = RedisCluster.from_url(cluster.url)
        semaphore = FairSemaphore(client, name, 1, lease=30.0)
        kept.extend([client, await semaphore.acquire(timeout=5)])
        await cluster.move(name, cluster.shards[1].master)
        return key_of(semaphore, "holders")

    key = asyncio.run(main())
    assert asyncio.run(tell(cluster.shards[1].master.server, "ZCARD", key)) == 0
