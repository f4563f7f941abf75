"""The documented user can do everything, and could do with no command less."""

import asyncio
import gc
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis, RedisCluster

from redsem_async import (
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    Semaphore,
    aclose,
)
from redsem_async._redis.acl import HARMLESS_DENIALS, Addition, acl_rules
from redsem_async.testing import EmbeddedRedis
from tests.harness.topologies import Cluster, tell
from tests.harness.wait import cancelled, in_background, until

LATER = 2.5  # seconds: a heartbeat of a lease of 3 s is sent every 1 to 1.5
AT_ONCE = 0.5
HARMLESS = {*HARMLESS_DENIALS, "client"}  # 6.2 does not log the subcommand
FALLBACKS = {"publish", "subscribe"}  # without these, heartbeats find the grants

DENIED = re.compile("NOPERM|no permission|can't (access|run)", re.IGNORECASE)


async def allow(servers: Iterable[EmbeddedRedis], rules: Iterable[str]) -> None:
    """Make the restricted user on *servers* anew, and forget what was denied to it."""
    for server in servers:
        await tell(server, "ACL", "SETUSER", "semaphores", "reset", "on", ">secret", *rules)
        await tell(server, "ACL", "LOG", "RESET")


async def denied_on(servers: Iterable[EmbeddedRedis]) -> set[str]:
    """What the servers' logs say was denied."""
    found: set[str] = set()
    for server in servers:
        async with Redis.from_url(server.url) as admin:
            found |= {str(entry["object"]).lower() for entry in await admin.acl_log()}
    return found


def rules_without(command: str, *additions: Addition) -> list[str]:
    return [rule for rule in acl_rules(additions=additions) if rule != f"+{command}"]


@asynccontextmanager
async def two_processes(
    server: EmbeddedRedis, kind: Any = Redis, **options: Any
) -> AsyncGenerator[tuple[Any, Any]]:
    """Two clients of the restricted user: to the semaphores, two processes."""
    url = f"redis://semaphores:secret@127.0.0.1:{server.port}"
    # Not entered: a cluster's client would begin by asking what it does not need for this.
    clients = kind.from_url(url, **options), kind.from_url(url, **options)
    try:
        yield clients
    finally:
        for client in clients:
            await aclose(client)
            await client.aclose()


async def in_line(semaphore: AnySemaphore, **options: Any) -> "asyncio.Task[Permit]":
    """A task that waits for a permit, of which the server knows; raises the error of a refusal."""
    task = in_background(semaphore.acquire(timeout=30.0, **options))

    async def known() -> bool:
        return task.done() or (await semaphore.status(0)).waiting > 0

    await until(known, "it is in line, or was refused")
    if task.done():
        pytest.fail(f"it did not have to wait for {await task}")
    return task


async def everything(
    here: Any, there: Any, name: str, *, within: float = AT_ONCE, prefix: str = "redsem"
) -> None:
    """All that semaphores do, each step of which raises when it was denied."""
    common: dict[str, Any] = {"prefix": prefix, "lease": 3.0}
    ours, theirs = (FairSemaphore(client, name, 3, **common) for client in (here, there))
    for _ in range(3):  # the first and the quick path
        assert await (await ours.acquire()).release()

    permit = await theirs.acquire(permits=3)
    assert await ours.try_acquire() is None
    waiter = await in_line(ours)
    await permit.refresh()
    status = await ours.status()
    assert (status.held, status.waiting) == (3, 1)
    assert await permit.release()
    permit = await asyncio.wait_for(waiter, within)

    await theirs.set_limit(1)
    assert await ours.try_acquire() is None
    await theirs.set_limit(None)
    await theirs.reap()

    adopted = await theirs.adopt(await permit.detach(5.0))
    assert adopted.fencing_token == permit.fencing_token
    assert await ours.release(adopted.id)
    assert not await adopted.release()

    abandoned = await ours.acquire(permits=3)
    await cancelled(await in_line(theirs))
    assert await abandoned.release()

    await (await ours.acquire(permits=2)).detach(5.0)
    assert await ours.exists()
    await ours.delete()
    assert await theirs.available() == 3
    async with Semaphore(here, f"{name}-zset", 1, **common):
        pass
    slots: Any = {"slots": ["a", "b"], **common}
    await everything_with_slots(FairSemaphore(here, f"{name}-slots", **slots))
    by_key: dict[str, Any] = {"key_limit": 1, "share": True, **common}
    ours, theirs = (FairSemaphore(client, f"{name}-keys", 3, **by_key) for client in (here, there))
    await everything_with_keys(ours, theirs, within=within)


async def everything_with_slots(semaphore: AnySemaphore) -> None:
    first = await semaphore.acquire()
    async with semaphore.acquire() as second:
        assert {first.slot, second.slot} == {"a", "b"}
    adopted = await semaphore.adopt(await first.detach(5.0))
    assert [holder.slots for holder in (await semaphore.status()).holders] == [adopted.slots]
    assert await adopted.release()
    await semaphore.delete()


async def everything_with_keys(
    ours: FairSemaphore, theirs: FairSemaphore, *, within: float
) -> None:
    permit = await theirs.acquire(key="a")
    assert await ours.try_acquire(key="a") is None
    assert await (await ours.acquire(key="b")).release()
    waiter = await in_line(ours, key="a")
    assert [key.key for key in (await ours.status()).keys] == ["a"]
    assert not (await ours.status(keys_after="a")).keys
    await theirs.set_limit(2, key="a")
    assert await (await asyncio.wait_for(waiter, within)).release()
    await theirs.set_limit(None, key="a")
    adopted = await theirs.adopt(await permit.detach(5.0))
    await cancelled(await in_line(ours, key="a"))
    assert await adopted.release()
    await ours.delete()


@pytest.mark.parametrize("prefix", ["redsem", "a*b [c]"])
async def test_the_documented_user_can_do_everything(server: EmbeddedRedis, prefix: str) -> None:
    """With messages; what the server's log has of denials is redis-py's own."""
    await allow([server], acl_rules(prefix))
    async with two_processes(server) as (here, there):
        await everything(here, there, "jobs", prefix=prefix)
    assert await denied_on([server]) <= HARMLESS


@pytest.mark.fault(28)
@pytest.mark.parametrize("command", sorted(FALLBACKS))
async def test_without_messages_heartbeats_find_the_grants(
    server: EmbeddedRedis, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Later, and nothing else is missing. The log says once why it takes so long."""
    await allow([server], rules_without(command))
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with two_processes(server) as (here, there):
            await everything(here, there, "jobs", within=LATER)
    assert len(caplog.messages) == (2 if command == "subscribe" else 0), caplog.messages
    assert all("heartbeats" in message for message in caplog.messages)


CLIENTS: dict[Addition, dict[str, Any]] = {
    "client_name": {"client_name": "us"},
    "database": {"db": 1},
}


@pytest.mark.release
@pytest.mark.parametrize("addition", CLIENTS)
async def test_additions_are_for_what_they_say(server: EmbeddedRedis, addition: Addition) -> None:
    """Without one, what needs it is refused; with it, all works."""
    await allow([server], acl_rules())
    async with two_processes(server, **CLIENTS[addition]) as (here, there):
        with pytest.raises(BackendError, match=DENIED):
            await FairSemaphore(here, "jobs", 1).acquire(timeout=2)
        await allow([server], acl_rules(additions=[addition]))
        await everything(here, there, "others")


def servers_of(cluster: Cluster) -> list[EmbeddedRedis]:
    return [node.server for node in cluster.nodes]


def additions_of(cluster: Cluster) -> list[Addition]:
    server = cluster.nodes[0].server
    sharded = server.flavour == "valkey" or server.version >= (7,)
    return ["cluster", "sharded"] if sharded else ["cluster"]


async def while_a_slot_moves(client: Any, cluster: Cluster) -> None:
    """A semaphore is used where it was, on its way, and where it is now."""
    name = await cluster.name_on(cluster.shards[0], "moving")
    semaphore = FairSemaphore(client, name, 1)
    permit = await semaphore.acquire(timeout=2)
    move = await cluster.begin_to_move(name, cluster.shards[1].master)
    try:
        while await move.move_one() is not None:
            pass
        await permit.refresh()  # there already, and not officially
    finally:
        await move.finish()
    assert await permit.release()


async def a_semaphore_passes(client: Any, cluster: Cluster) -> bool:
    """Use a semaphore, then another of its shard; whether the first is still subscribed to."""
    passing = FairSemaphore(client, "passing", 1)
    assert await (await passing.acquire(timeout=2)).release()
    node = await cluster.owner_of("passing")
    [channel] = await tell(node.server, "PUBSUB", "SHARDCHANNELS", "*{passing}*")
    del passing
    gc.collect()
    other = FairSemaphore(client, await cluster.name_on(cluster.shard_of(node), "other"), 1)
    for _ in range(2):
        assert await (await other.acquire(timeout=2)).release()
    return channel in await tell(node.server, "PUBSUB", "SHARDCHANNELS")


@pytest.mark.release
async def test_the_documented_user_is_enough_in_a_cluster(cluster: Cluster) -> None:
    """Messages within a shard, slots that move, and semaphores that come and go."""
    additions = additions_of(cluster)
    await allow(servers_of(cluster), acl_rules(additions=additions))
    async with two_processes(cluster.nodes[0].server, RedisCluster) as (here, there):
        within = AT_ONCE if "sharded" in additions else LATER
        await everything(here, there, "jobs", within=within)
        await while_a_slot_moves(here, cluster)
        if "sharded" in additions:
            assert not await a_semaphore_passes(here, cluster)
    assert await denied_on(servers_of(cluster)) <= HARMLESS


@pytest.mark.release
async def test_a_map_is_needed_when_a_node_dies(replicated_cluster: Cluster) -> None:
    """Until then, a node that is asked in vain names the one that keeps the slot."""
    cluster, [shard, *_] = replicated_cluster, replicated_cluster.shards
    additions = additions_of(cluster)
    survivors = [server for server in servers_of(cluster) if server is not shard.master.server]
    await allow(servers_of(cluster), rules_without("cluster|slots", *additions))
    async with two_processes(survivors[-1], RedisCluster) as (here, _):
        semaphore = FairSemaphore(here, await cluster.name_on(shard), 1)
        assert await (await semaphore.acquire(timeout=2)).release()
        await cluster.fail_over(shard)
        with pytest.raises(BackendUnavailable):
            await semaphore.acquire(timeout=1)
        assert await denied_on(survivors) & {"cluster|slots", "cluster"}
        await allow(survivors, acl_rules(additions=additions))
        assert await (await semaphore.acquire(timeout=5)).release()


Denied = Callable[[Redis], Awaitable[Any]]
BEYOND: list[Denied] = [
    lambda client: client.get("theirs"),
    lambda client: client.set("theirs", "x"),
    lambda client: client.set("redsem-other:{x}:limit", "1"),
    lambda client: client.keys("*"),
    lambda client: client.client_list(),
    lambda client: client.config_get("*"),
    lambda client: client.acl_setuser("mine", enabled=True),
    lambda client: client.flushall(),
    lambda client: client.publish("theirs", "x"),
    lambda client: client.eval("return redis.call('GET', 'theirs')", 0),
]


async def test_the_documented_user_can_do_nothing_else(
    server: EmbeddedRedis, admin: Redis
) -> None:
    """What a stolen password is worth."""
    await allow([server], acl_rules())
    await admin.set("theirs", "secret")
    async with two_processes(server) as (client, _):
        for deed in BEYOND:
            with pytest.raises(errors.ResponseError, match=DENIED):
                await deed(client)
    assert await admin.get("theirs") == b"secret"
