"""Connections that break, fall silent or are slow: no permit is lost, and no waiter forgotten."""

import asyncio
import os
import signal
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
from tests.harness.clients import (
    Kind,
    connection_of,
    hub_of,
    key_of,
    kill_connection,
    kill_connections,
)
from tests.harness.inside import lease_of, remote_of
from tests.harness.proxy import Proxy
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
def here(kind: Kind, proxied: Redis) -> AnySemaphore:
    """A semaphore of a process behind the proxy."""
    return kind(proxied, "jobs", 1, lease=LEASE)


@pytest.fixture
def there(kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return kind(client_b, "jobs", 1, lease=LEASE)


# -- a connection that ends


@pytest.mark.fault(23)
@pytest.mark.parametrize("killed", [["here"], ["there"], ["here", "there"]], ids="-".join)
async def test_the_connection_is_killed_during_a_release(
    kind: Kind, client_a: Redis, there: AnySemaphore, admin: Redis, killed: list[str]
) -> None:
    """The waiter's or the releaser's: served after a reconnection and a trip."""
    semaphore = kind(client_a, "jobs", 1, lease=LEASE)
    for _ in range(5):
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
    await all_free(semaphore)


@pytest.mark.fault(23)
async def test_a_killed_connection_costs_a_holder_nothing(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Time and again, while it is refreshed."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.1)
    async with semaphore as permit:
        for _ in range(8):
            number = await kill_connection(admin, "here")

            async def back(number: int = number) -> bool:
                return await connection_of(admin, "here") not in (number, None)

            await until(back, "it is back", within=0.5)
            await asyncio.sleep(0.15)
        assert not permit.lost
        assert (await semaphore.status()).holders[0].id == permit.id
    await all_free(semaphore)


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


@pytest.mark.one_mode
@pytest.mark.parametrize("end", ["reset", "closed"])
async def test_a_connection_that_ended_before_it_was_ours_is_noticed(
    kind: Kind, end: str, client_a: Redis, monkeypatch: pytest.MonkeyPatch
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
    await is_served(kind(client_a, "jobs", 1).acquire(), 0.2)
    assert len(made) == 2


class _Otherwise(Connection):
    """A connection of a redis-py that does not keep a stream as asyncio has it."""

    async def connect(self) -> None:
        base, inside = cast("Any", Connection), cast("Any", self)
        await base.connect(self)
        inside._writer = SimpleNamespace(close=inside._writer.close)


@pytest.mark.one_mode
async def test_a_redis_py_that_keeps_its_streams_otherwise_is_named(
    kind: Kind, server: EmbeddedRedis
) -> None:
    """At once, and with the versions that will do: no attempt would ever succeed."""
    pool = ConnectionPool(_Otherwise, host="127.0.0.1", port=server.port)
    with pytest.raises(BackendError, match=r"with redis-py \S+, .* than 5\.2 to ") as raised:
        await soon(kind(Redis(connection_pool=pool), "jobs", 1).acquire())
    assert not isinstance(raised.value, BackendUnavailable)


# -- a connection that is silent or slow


@pytest.mark.fault(24)
@pytest.mark.parametrize("waiting", [False, True], ids=["holding", "waiting"])
async def test_a_half_open_connection_is_noticed(
    kind: Kind, proxied: Redis, proxy: Proxy, there: AnySemaphore, waiting: bool
) -> None:
    """Nothing comes and nothing ends: a question that stays unanswered tells."""
    semaphore = kind(proxied, "jobs", 1, lease=3.0)
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


@pytest.mark.fault(24)
async def test_a_lost_reply_of_refresh_is_no_loss(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """No answer is not a no."""
    semaphore = kind(proxied, "jobs", 1, lease=3.0, refresh_interval=0.3)
    async with semaphore as permit:
        fault = proxy.swallow("refresh")
        await asyncio.wait_for(fault.struck.wait(), 2)
        await until(lambda: len(proxy.operations("refresh")) >= 2, "it is sent again")
        await asyncio.sleep(3.0)
        assert not permit.lost
        assert (await semaphore.status(0)).held == 1


async def test_used_again_after_a_heartbeat_that_aclose_left_unanswered(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis, admin: Redis
) -> None:
    """The semaphores may be used again after aclose, and waiters are served at an expiry."""
    semaphore, there = kind(proxied, "jobs", 1, lease=9.0), kind(client_b, "jobs", 1, lease=9.0)
    permit = await semaphore.acquire()
    assert await permit.release()
    holder = await there.acquire()
    waiter = await waits_in_queue(semaphore)
    fault = proxy.hold("heartbeat")
    await admin.publish(f"redsem:@{hub_of(permit)}", "recheck - jobs")
    await fault.struck.wait()
    await redsem_async.aclose(proxied)
    with pytest.raises(redsem_async.SemaphoreClosed):
        await waiter
    fault.lift()
    assert await holder.release()
    await (await there.acquire(timeout=1)).detach(1.0)
    await is_served(semaphore.acquire(timeout=8), 1.0 + EPSILON)
    assert not remote_of(semaphore).leases  # or the hub never idles


# -- other nodes


@pytest.mark.release
async def test_silent_neighbours_cost_no_permit(kind: Kind) -> None:
    """A lost connection is made again at once, although the other nodes of the cluster stall."""
    with embedded_cluster(node_timeout_ms=60_000) as cluster, ExitStack() as stalled:
        first, *others = (shard.master.server for shard in cluster.shards)
        client = RedisCluster.from_url(cluster.url, client_name="here")
        semaphore = kind(client, await cluster.name_on(cluster.shards[0]), 1, lease=2.0)
        permit = await semaphore.acquire(timeout=5)
        for other in others:
            os.kill(other.pid, signal.SIGSTOP)
            stalled.callback(os.kill, other.pid, signal.SIGCONT)
        async with Redis.from_url(first.url) as admin:
            await kill_connections(admin, "here")
        await asyncio.sleep(3.0)  # longer than its lease
        assert not permit.lost
        stalled.close()
        await permit.release()
        await redsem_async.aclose(client)
        await client.aclose()


@pytest.mark.release
def test_the_end_of_a_program_releases_where_the_slot_went(kind: Kind, cluster: Cluster) -> None:
    """asyncio.run ends, and only then is it learned that the slot has moved."""
    kept: list[object] = []

    async def main() -> str:
        name = await cluster.name_on(cluster.shards[0])
        client = RedisCluster.from_url(cluster.url)
        semaphore = kind(client, name, 1, lease=30.0)
        kept.extend([client, await semaphore.acquire(timeout=5)])
        await cluster.move(name, cluster.shards[1].master)
        return key_of(semaphore, "holders")

    key = asyncio.run(main())
    assert asyncio.run(tell(cluster.shards[1].master.server, "ZCARD", key)) == 0
