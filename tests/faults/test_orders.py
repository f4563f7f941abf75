"""Orders of events in which a promise was broken once: found by attack."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

import redsem_async
from redsem_async import AnySemaphore, Permit
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of, kill_connections
from tests.harness.clocks import start_with_a_clock_of_its_own
from tests.harness.servers import StartServer
from tests.harness.topologies import Cluster, embedded_cluster, tell
from tests.harness.wait import in_background, takes_at_most

pytestmark = pytest.mark.release

HOUR = 3600.0
LEASE = 1.0


async def make(kind: Kind, client: Redis, limit: int = 2, lease: float = LEASE) -> AnySemaphore:
    """A semaphore that recovers, and whose name is not new."""
    semaphore = kind(client, "jobs", limit, lease=lease, recovery="grace")
    async with semaphore:
        pass
    return semaphore


async def is_kept(permit: Permit, seconds: float, *waiters: "asyncio.Task[Permit]") -> None:
    """For so long the permit is trusted, and nobody else has one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.01)
        assert not permit.lost
        assert not any(waiter.done() for waiter in waiters)


async def test_grace_holds_though_the_clock_was_set_back(
    kind: Kind, embedded: StartServer, connect: Connect, tmp_path: Path
) -> None:
    """The tokens that come back lead the clock: that ends neither the grace nor what is back."""
    stepped = start_with_a_clock_of_its_own(embedded, tmp_path)
    url = stepped.server.url
    here, there = await make(kind, connect(url), 1), await make(kind, connect(url), 1)
    permit = await here.acquire()
    async with Redis.from_url(url) as admin:
        stepped.step(-HOUR)
        await admin.flushall()
    waiter = in_background(there.acquire(timeout=10))
    await is_kept(permit, 4 * LEASE, waiter)
    await permit.release()
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    await successor.release()
    again = await here.acquire(timeout=5)
    assert again.fencing_token > successor.fencing_token
    stepped.step(-HOUR)  # and the next step back is noticed all the same
    await is_kept(again, 2 * LEASE)
    assert (await here.status()).held == 1
    await again.release()


async def test_a_clear_begins_no_grace(kind: Kind, client_a: Redis) -> None:
    """What somebody deleted was not lost: nobody is waited for."""
    here = await make(kind, client_a, 1)
    await here.clear()
    with takes_at_most(0.1):
        async with here.acquire(timeout=5):
            pass


async def test_what_was_cleared_does_not_come_back(
    kind: Kind, client_a: Redis, connect: Connect, server: EmbeddedRedis
) -> None:
    """Nor does it when its holder hears nothing."""
    await tell(server, "ACL", "SETUSER", "deaf", "on", "nopass", "~*", "+@all", "resetchannels")
    deaf = connect(server.url, username="deaf", password="x")
    here, there = await make(kind, deaf, 1), await make(kind, client_a, 1)
    permit = await here.acquire()
    await there.clear()
    await asyncio.wait_for(permit.wait_lost(), 2 * LEASE)


@pytest.fixture
def slow_to_judge() -> Iterator[Cluster]:
    """A cluster whose masters do not mind that others are silent for a while."""
    with embedded_cluster(node_timeout_ms=60_000) as cluster:
        yield cluster


async def test_silent_neighbours_cost_no_permit(kind: Kind, slow_to_judge: Cluster) -> None:
    """A lost connection is made again at once, whatever the other nodes say."""
    cluster = slow_to_judge
    name = await cluster.name_on(cluster.shards[0])
    server = cluster.shards[0].master.server
    client = RedisCluster.from_url(cluster.url, client_name="here")
    try:
        semaphore = kind(client, name, 1, lease=2.0)
        permit = await semaphore.acquire(timeout=5)
        others = [shard.master.server for shard in cluster.shards[1:]]
        for other in others:
            os.kill(other.pid, signal.SIGSTOP)
        try:
            async with Redis.from_url(server.url) as admin:
                await kill_connections(admin, "here")
            for _ in range(150):
                await asyncio.sleep(0.02)
                assert not permit.lost
        finally:
            for other in others:
                os.kill(other.pid, signal.SIGCONT)
        await permit.release()
    finally:
        await redsem_async.aclose(client)
        await client.aclose()


def test_the_end_of_a_program_releases_where_the_slot_went(kind: Kind, cluster: Cluster) -> None:
    """asyncio.run ends, and only then is it learned that the slot has moved."""
    kept: list[object] = []

    async def main() -> str:
        name = await cluster.name_on(cluster.shards[0])
        client = RedisCluster.from_url(cluster.url)
        kept.append(client)
        semaphore = kind(client, name, 1, lease=30.0)
        permit = await semaphore.acquire(timeout=5)
        kept.append(permit)
        await cluster.move(name, cluster.shards[1].master)
        return key_of(semaphore, "holders")

    key = asyncio.run(main())
    held = asyncio.run(tell(cluster.shards[1].master.server, "ZCARD", key))
    assert held == 0


async def test_replicas_that_are_missing_cost_nobody_else_a_permit(
    kind: Kind, client_a: Redis
) -> None:
    """WAIT blocks the connection that refreshes other semaphores' permits."""
    held = kind(client_a, "held", 1, lease=0.5)
    async with held as permit:
        waiters = [
            in_background(kind(client_a, f"confirmed-{n}", 1, min_replicas=1).acquire(timeout=4))
            for n in range(4)
        ]
        for _ in range(150):
            await asyncio.sleep(0.02)
            assert not permit.lost
        for waiter in waiters:
            waiter.cancel()


async def test_lost_holders_admit_nobody(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """Holders evicted, tokens and meta not: the next acquire can tell."""
    here, there = await make(kind, client_a, 1), await make(kind, client_b, 1)
    async with here.acquire() as permit:
        await admin.delete(key_of(here, "holders"))
        got = await there.try_acquire()
        assert got is None or permit.lost


async def test_detach_while_the_permit_is_not_back(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """State was lost a moment ago: its holder puts it back first."""
    here = await make(kind, client_a, 1)
    permit = await here.acquire()
    await admin.flushall()
    handed_over = await permit.detach(5)
    await (await here.adopt(handed_over)).release()
