"""Servers that belong together: clusters here, replicas and sentinels in `replicas.py`.

All of them are embedded ones on loopback, and end with their ``with`` block. A fixture blocks
until they are in order; what a test does to them later is awaited.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis
from tests.harness.wait import until

SLOTS: Final = (range(5461), range(5461, 10923), range(10923, 16384))  # of each shard
PATIENCE: Final = 30.0  # seconds for servers to agree, on a machine that others use as well

REPLICATION: Final = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


# -- one server, asked in passing


def ask(server: EmbeddedRedis, *command: str | int | bytes) -> Any:
    """A server's answer, from a thread that may block: for what comes before the test."""
    plain: Any = {"decode_responses": True, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    with closing(Redis.from_url(server.url, **plain)) as client:
        untyped: Any = client
        return untyped.execute_command(*command)


async def tell(server: EmbeddedRedis, *command: str | int | bytes) -> Any:
    """The same, for a test that is under way."""
    return await asyncio.to_thread(ask, server, *command)


def settle(holds: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.01)


def is_alive(server: EmbeddedRedis) -> bool:
    with contextlib.suppress(RedisError, OSError):
        return bool(ask(server, "PING"))
    return False


def in_sync(server: EmbeddedRedis) -> bool:
    role: list[Any] = ask(server, "ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")


# -- a cluster


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A server of a cluster, and the name by which the others know it."""

    server: EmbeddedRedis
    id: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """A master as it was at the start, and its replicas."""

    slots: range
    master: Node
    replicas: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.master, *self.replicas)


@final
class Cluster:
    """A running cluster; its shards are in the order of their slots."""

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        self.shards: Final = shards

    @property
    def nodes(self) -> list[Node]:
        return [node for shard in self.shards for node in shard.nodes]

    @property
    def url(self) -> str:
        """An address that a client may begin with; those of `shards` will do as well."""
        return self.shards[0].master.server.url

    def living(self) -> list[Node]:
        """The nodes that answer."""
        return [node for node in self.nodes if is_alive(node.server)]

    async def slot_of(self, name: str) -> int:
        """The slot of every key of a semaphore of that name."""
        node = self.living()[0]
        slot: int = await tell(node.server, "CLUSTER", "KEYSLOT", f"{{{name}}}")
        return slot

    async def owner_of(self, name: str) -> Node:
        """The master that serves a name now, as a node that is alive sees it."""
        return await self.owner_of_slot(await self.slot_of(name))

    async def owner_of_slot(self, slot: int) -> Node:
        _, owner = await self.sees(self.living()[0], slot)
        return next(node for node in self.nodes if node.id == owner)

    def shard_of(self, node: Node) -> Shard:
        return next(shard for shard in self.shards if node in shard.nodes)

    async def name_on(self, shard: Shard, stem: str = "name") -> str:
        """A name that a shard serves."""
        for number in range(10_000):
            if await self.owner_of(f"{stem}-{number}") in shard.nodes:
                return f"{stem}-{number}"
        raise AssertionError("no such name")

    async def move(self, name: str, to: Node) -> list[str]:
        """Move the slot of *name* key by key, and say which keys it had, in that order."""
        move = await self.begin_to_move(name, to)
        while await move.move_one() is not None:
            pass
        await move.finish()
        return move.moved

    async def begin_to_move(self, name: str, to: Node) -> "Move":
        """Set the slot of *name* to migrating and importing; its keys are still all here."""
        slot = await self.slot_of(name)
        source = await self.owner_of_slot(slot)
        assert source != to
        await tell(to.server, "CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        await tell(source.server, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return Move(self, slot, source, to)

    async def fail_over(self, shard: Shard) -> Node:
        """Kill -9 the master of *shard*; returns the replica that the others promote."""
        shard.master.server.kill()
        return await self._taken_over(shard)

    async def hand_over(self, shard: Shard) -> Node:
        """Let a replica of *shard* take over while its master lives (CLUSTER FAILOVER)."""
        assert await tell(shard.replicas[0].server, "CLUSTER", "FAILOVER") == "OK"
        return await self._taken_over(shard)

    async def _taken_over(self, shard: Shard) -> Node:
        async def promoted() -> bool:
            states = [await self.sees(node, shard.slots[0]) for node in self.living()]
            return all(ok and owner not in {None, shard.master.id} for ok, owner in states)

        await until(promoted, "a replica took over", PATIENCE)
        new = await self.owner_of_slot(shard.slots[0])
        assert new in shard.replicas
        return new

    async def loses(self, shard: Shard) -> None:
        """Kill -9 every server of *shard*, and see that the others call it failed."""
        for node in shard.nodes:
            node.server.kill()

        async def noticed() -> bool:
            views = [await tell(node.server, "CLUSTER", "NODES") for node in self.living()]
            lines = [line.split() for view in views for line in view.splitlines()]
            flags = [line[2].split(",") for line in lines if line[0] == shard.master.id]
            return all("fail" in each for each in flags)

        await until(noticed, "the shard is called failed", PATIENCE)

    async def restart(self, shard: Shard) -> None:
        """Start the servers of a killed shard again, empty, and see the cluster in order."""
        for node in shard.nodes:
            node.server.restart()

        async def in_order() -> bool:
            return all([(await self.sees(node, 0))[0] for node in self.living()])

        await until(in_order, "the cluster is in order", PATIENCE)

    async def sees(self, node: Node, slot: int) -> tuple[bool, str | None]:
        """Whether a node finds the cluster in order, and which it takes for a slot's owner."""
        in_order = "cluster_state:ok" in await tell(node.server, "CLUSTER", "INFO")
        for first, last, master, *_ in await tell(node.server, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return in_order, master[2]
        return in_order, None


@final
class Move:
    """A slot on its way from one node to another."""

    def __init__(self, cluster: Cluster, slot: int, source: Node, target: Node) -> None:
        self.slot: Final = slot
        self.source: Final = source
        self.target: Final = target
        self.moved: Final = list[str]()
        self._cluster = cluster

    async def keys(self) -> list[str]:
        """The keys that are not moved yet."""
        keys: list[str] = await tell(
            self.source.server, "CLUSTER", "GETKEYSINSLOT", self.slot, 1000
        )
        return sorted(keys)

    async def move_one(self, key: str | None = None) -> str | None:
        """Move *key*, or the first of those that are left. Returns it; None with none left."""
        if key is None:
            key = next(iter(await self.keys()), None)
        if key is not None:
            port = self.target.server.port
            # NOKEY: it may have expired, or been deleted, in the meantime.
            said = await tell(self.source.server, "MIGRATE", "127.0.0.1", port, key, 0, 5000)
            if said == "OK":
                self.moved.append(key)
        return key

    async def finish(self) -> None:
        """Give the slot to the target, and see that every node knows."""
        for node in (self.target, self.source, *self._cluster.living()):
            if (await tell(node.server, "ROLE"))[0] == "master":
                await tell(node.server, "CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)

        async def known() -> bool:
            living = self._cluster.living()
            seen = [await self._cluster.sees(node, self.slot) for node in living]
            return all(owner == self.target.id for _, owner in seen)

        await until(known, "every node knows the owner of the slot", PATIENCE)


@contextmanager
def embedded_cluster(
    *arguments: str, replicas: int = 0, node_timeout_ms: int = 2000
) -> Generator[Cluster]:
    """Run a real cluster for the length of a ``with`` block; the arguments are every node's.

    It takes some three seconds: masters wait for two before they call themselves in order.
    """
    settings = (
        *("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"),
        *("--cluster-node-timeout", str(node_timeout_ms)),
        *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
    )
    with ExitStack() as stack:

        def start() -> Node:
            server = stack.enter_context(embedded_redis(*settings, *REPLICATION, *arguments))
            return Node(server, ask(server, "CLUSTER", "MYID"))

        cluster = Cluster(
            tuple(Shard(each, start(), tuple(start() for _ in range(replicas))) for each in SLOTS)
        )
        _introduce(cluster.nodes)
        for shard in cluster.shards:
            ask(shard.master.server, "CLUSTER", "ADDSLOTS", *shard.slots)
            for replica in shard.replicas:
                ask(replica.server, "CLUSTER", "REPLICATE", shard.master.id)
        settle(lambda: all(_in_order(cluster, node) for node in cluster.nodes), "a cluster")
        yield cluster


def _introduce(nodes: list[Node]) -> None:
    for number, node in enumerate(nodes):
        ask(node.server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for node in nodes[1:]:
        ask(node.server, "CLUSTER", "MEET", "127.0.0.1", nodes[0].server.port)

    def all_known() -> bool:
        views = [ask(node.server, "CLUSTER", "NODES") for node in nodes]
        return all(
            len(view.splitlines()) == len(nodes) and "handshake" not in view for view in views
        )

    settle(all_known, "every node knows every other")


def _in_order(cluster: Cluster, node: Node) -> bool:
    """Whether *node* sees the shards as they are meant to be, and a replica has its data."""
    seen = {
        row[2][2]: {each[2] for each in row[3:]} for row in ask(node.server, "CLUSTER", "SLOTS")
    }
    meant = {shard.master.id: {each.id for each in shard.replicas} for shard in cluster.shards}
    if node in cluster.shard_of(node).replicas and not in_sync(node.server):
        return False
    return seen == meant and "cluster_state:ok" in ask(node.server, "CLUSTER", "INFO")
