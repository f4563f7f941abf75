"""A real cluster, whose slots move, and whose shards die and fail over."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio.cluster import RedisCluster

import redsem_async
from redsem_async import BackendUnavailable, FairSemaphore, Semaphore
from tests.harness import wait
from tests.harness.clients import Kind, key_of
from tests.harness.replicas import contents, until_caught_up
from tests.harness.topologies import Cluster, Node, embedded_cluster, tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    takes_at_most,
    tasks_end_soon,
    waits_in_queue,
)

LONG = 30.0  # a lease, with heartbeats every 10 s: whatever is quicker came by message
PAUSE = 1.0  # seconds at most between two attempts to reach a server

Connect = Callable[[Cluster], RedisCluster]


class Keyed(FairSemaphore):
    """Its requests have one key, and the limit is that of the key."""

    def __init__(self, redis: RedisCluster, name: str, limit: int, **options: Any) -> None:
        super().__init__(redis, name, limit + 1, key_limit=limit, **options)

    def acquire(self, **options: Any) -> Any:
        return super().acquire(key="a", **options)


class Slotted(FairSemaphore):
    """Its permits have slots."""

    def __init__(self, redis: RedisCluster, name: str, limit: int, **options: Any) -> None:
        super().__init__(redis, name, slots=range(limit), **options)


KINDS: dict[str, Kind] = {
    "zset": Semaphore,
    "fair": FairSemaphore,
    "keys": Keyed,
    "slots": Slotted,
}
OWN_KEYS = {"keys": ["uses", "lines", "ready", "key-limits"]}  # beside those of all
EACH_FIRST = [
    pytest.param(kind, first, id=f"{label}-{first}")
    for label, kind in KINDS.items()
    for first in ("holders", "meta", "facts", *OWN_KEYS.get(label, ()))
]


@pytest.fixture(scope="module")
def lasting() -> Iterator[Cluster]:
    """A cluster for the tests that leave it as good as they found it."""
    with embedded_cluster() as cluster:
        yield cluster


@pytest.fixture
async def connect_to() -> AsyncIterator[Connect]:
    """Makes cluster clients such as users have, and closes them after the test."""
    async with AsyncExitStack() as stack:

        def client(cluster: Cluster) -> RedisCluster:
            redis = RedisCluster.from_url(cluster.url)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield client


async def refused_with(cluster: Cluster, *words: str) -> int:
    """How often a node of the cluster that is alive answered with one of these errors."""
    count = 0
    for node in cluster.living():
        stats: dict[str, Any] = await tell(node.server, "INFO", "errorstats")
        for word in words:
            count += stats.get(f"errorstat_{word}", {"count": 0})["count"]
    return count


def has_messages(cluster: Cluster) -> bool:
    """Whether push messages come: in a cluster they need sharded pub/sub, of Redis 7.0."""
    return cluster.nodes[0].server.version >= (7,)


def hand_off(cluster: Cluster) -> float:
    """How long a hand-off takes at most: without messages, a heartbeat finds it."""
    return EPSILON if has_messages(cluster) else 10.0 + EPSILON


async def other_than(cluster: Cluster, name: str) -> Node:
    owner = await cluster.owner_of(name)
    return next(shard.master for shard in cluster.shards if shard.master != owner)


@pytest.mark.release
async def test_a_hub_goes_with_its_client(lasting: Cluster) -> None:
    """With all of its connections, one to each node that it used."""
    async with tasks_end_soon(), RedisCluster.from_url(lasting.url) as redis:
        for number in range(20):
            async with Semaphore(redis, f"closed {number}", 1):
                pass


@pytest.mark.release
@pytest.mark.fault(32, 40)
@pytest.mark.parametrize(("kind", "first"), EACH_FIRST)
async def test_a_slot_on_its_way_is_waited_for(
    kind: Kind, lasting: Cluster, connect_to: Connect, name: str, first: str
) -> None:
    """TRYAGAIN and ASK: key by key, while permits are held and waited for."""
    lease = 12.0
    here, there = connect_to(lasting), connect_to(lasting)
    held, waiting = kind(here, name, 1, lease=lease), kind(there, name, 1, lease=lease)
    hasty = kind(there, name, 2, lease=lease)
    if isinstance(held, Keyed):
        await held.set_limit(1, key="b")  # so that there are limits of keys
    holder = await held.acquire(timeout=5)
    waiter = await waits_in_queue(waiting)
    move = await lasting.begin_to_move(name, await other_than(lasting, name))
    before = await refused_with(lasting, "TRYAGAIN", "ASK")
    assert await move.move_one(key_of(held, first)) in move.moved
    with takes_at_most(0.4 + EPSILON), pytest.raises(BackendUnavailable):
        await hasty.acquire(timeout=0.4)  # it was not full, but on its way
    patient = in_background(hasty.acquire(timeout=20))
    while await move.move_one() is not None:
        await asyncio.sleep(0.1)
        assert not holder.lost
        assert not waiter.done()
    await move.finish()
    assert await refused_with(lasting, "TRYAGAIN", "ASK") > before
    assert len(move.moved) >= 3

    await holder.refresh()
    assert not holder.lost
    if kind is Semaphore:
        await is_served(patient, PAUSE + EPSILON)
        waiters = [waiter]
    else:
        # So its process has come along: one that no message reaches would have to ask again.
        await wait.waiting(held, 2)
        assert not patient.done(), "it stands behind the first"
        waiters = [waiter, patient]
    assert await holder.release()
    with takes_at_most(PAUSE + hand_off(lasting)):
        permits = await asyncio.gather(*waiters)
    assert all(permit.fencing_token > holder.fencing_token for permit in permits)
    assert all(await asyncio.gather(*(permit.release() for permit in permits)))
    await all_free(held)


@pytest.mark.release
@pytest.mark.fault(40)
async def test_a_dead_shard_takes_no_other_along(cluster: Cluster, connect_to: Connect) -> None:
    """Its semaphores cannot be reached; those elsewhere do not even notice."""
    redis, other = connect_to(cluster), connect_to(cluster)
    doomed, *rest = cluster.shards
    lost = FairSemaphore(redis, await cluster.name_on(doomed), 1, lease=3.0)
    alive = [FairSemaphore(redis, await cluster.name_on(shard), 1, lease=LONG) for shard in rest]
    permit = await lost.acquire(timeout=5)
    held = [await semaphore.acquire(timeout=5) for semaphore in alive]
    waiters = [
        await waits_in_queue(FairSemaphore(other, each.name, 1, lease=LONG)) for each in alive
    ]
    losing = in_background(cluster.loses(doomed))
    rounds = 0
    while not losing.done():
        with takes_at_most(EPSILON):
            for holder in held:
                await holder.refresh()
        rounds += 1
        await asyncio.sleep(0.1)
    await losing
    assert rounds > 5
    with takes_at_most(0.5), pytest.raises(BackendUnavailable):
        await lost.acquire(timeout=0.5)
    for holder, waiter in zip(held, waiters, strict=True):
        assert not holder.lost
        assert await holder.release()
        await is_served(waiter, hand_off(cluster))
    await asyncio.wait_for(permit.wait_lost(), 5)

    acquiring = in_background(lost.acquire(timeout=30))
    await cluster.restart(doomed)
    await is_served(acquiring, PAUSE + EPSILON, after=permit)
    await all_free(lost)


@pytest.fixture
def strict_cluster() -> Iterator[Cluster]:
    """A cluster for this test alone, that serves nothing when a shard is dead."""
    with embedded_cluster() as cluster:
        yield cluster


@pytest.mark.release
@pytest.mark.fault(32)
async def test_a_cluster_that_is_down_is_awaited(
    strict_cluster: Cluster, connect_to: Connect
) -> None:
    """CLUSTERDOWN, from nodes that are well: until the deadline, or it is up again."""
    cluster = strict_cluster
    doomed, well = cluster.shards[:2]
    semaphore = FairSemaphore(connect_to(cluster), await cluster.name_on(well), 1, lease=LONG)
    holder = await semaphore.acquire(timeout=5)
    await cluster.loses(doomed)
    before = await refused_with(cluster, "CLUSTERDOWN")
    with takes_at_most(0.5), pytest.raises(BackendUnavailable):
        await semaphore.acquire(timeout=0.5)
    assert await refused_with(cluster, "CLUSTERDOWN") > before
    releasing = in_background(holder.release())
    acquiring = in_background(semaphore.acquire(timeout=30))
    await cluster.restart(doomed)
    with takes_at_most(PAUSE + EPSILON):
        successor = await acquiring
        assert await releasing
    assert successor.fencing_token > holder.fencing_token
    assert await successor.release()
    await all_free(semaphore)


@pytest.mark.fault(40)
@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.release), "handed over"])
async def test_a_failover_of_a_shard(
    replicated_cluster: Cluster, connect_to: Connect, how: str
) -> None:
    """A replica took over: the permit is kept, and the waiter is served there."""
    cluster = replicated_cluster
    shard = cluster.shards[0]
    name = await cluster.name_on(shard)
    held = FairSemaphore(connect_to(cluster), name, 1, lease=LONG)
    waiting = FairSemaphore(connect_to(cluster), name, 1, lease=LONG)
    holder = await held.acquire(timeout=5)
    waiter = await waits_in_queue(waiting)

    await until_caught_up(shard.replicas[0].server, shard.master.server)
    new = await (cluster.fail_over(shard) if how == "killed" else cluster.hand_over(shard))
    assert new in shard.replicas
    with takes_at_most(PAUSE + EPSILON):
        await holder.refresh()
    assert not holder.lost
    assert not waiter.done()
    assert await tell(new.server, "ZSCORE", key_of(held, "holders"), holder.id) is not None
    assert await holder.release()
    # at worst a heartbeat finds the new one
    await is_served(waiter, 10.0 + PAUSE + EPSILON, after=holder)
    if how == "handed over":
        old = shard.master.server
        await until_caught_up(old, new.server)
        assert await contents(old) == await contents(new.server)
    await all_free(held)
