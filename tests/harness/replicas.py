"""A master and its replicas, and the sentinels that watch them."""

import shlex
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from redis.asyncio.sentinel import Sentinel

from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis, find_server
from tests.harness.topologies import PATIENCE, REPLICATION, ask, in_sync, settle, tell
from tests.harness.wait import until

SERVICE: Final = "mymaster"
_NOWHERE: Final = ("127.0.0.1", 1)


@final
class Replicated:
    """A master and its replicas, as they were at the start."""

    def __init__(self, master: EmbeddedRedis, replicas: tuple[EmbeddedRedis, ...]) -> None:
        self.master: Final = master
        self.replicas: Final = replicas

    @property
    def servers(self) -> tuple[EmbeddedRedis, ...]:
        return (self.master, *self.replicas)

    async def caught_up(self, replica: EmbeddedRedis | None = None) -> None:
        """See that a replica has all that the master wrote so far."""
        replica = replica or self.replicas[0]
        _, written, _ = await tell(self.master, "ROLE")

        async def has_it() -> bool:
            role: list[Any] = await tell(replica, "ROLE")
            return bool(role[3] == "connected" and role[4] >= written)

        await until(has_it, "the replica caught up", PATIENCE)

    async def cut_off(self, replica: EmbeddedRedis | None = None) -> None:
        """Let a replica hear no more of what the master writes; it keeps what it has."""
        replica = replica or self.replicas[0]
        await tell(replica, "REPLICAOF", *_NOWHERE)

        async def unheard() -> bool:
            _, _, followers = await tell(self.master, "ROLE")
            return all(int(follower[1]) != replica.port for follower in followers)

        await until(unheard, "the replica hears no more", PATIENCE)

    async def promote(self, replica: EmbeddedRedis | None = None) -> EmbeddedRedis:
        """Make a master of a replica, with what it has."""
        replica = replica or self.replicas[0]
        await tell(replica, "REPLICAOF", "NO", "ONE")
        assert (await tell(replica, "ROLE"))[0] == "master"
        return replica

    async def demote(self, server: EmbeddedRedis, master: EmbeddedRedis) -> None:
        """Make a replica of a master, which takes writes no more."""
        await tell(server, "REPLICAOF", "127.0.0.1", master.port)
        assert (await tell(server, "ROLE"))[0] == "slave"


@contextmanager
def embedded_replicas(*arguments: str, replicas: int = 1) -> Generator[Replicated]:
    """Run a master and replicas of it, in sync, for the length of a ``with`` block."""
    with ExitStack() as stack:

        def start(*more: str) -> EmbeddedRedis:
            return stack.enter_context(embedded_redis(*REPLICATION, *arguments, *more))

        master = start()
        followers = tuple(
            start("--replicaof", "127.0.0.1", str(master.port)) for _ in range(replicas)
        )
        settle(lambda: all(in_sync(each) for each in followers), "the replicas are in sync")
        yield Replicated(master, followers)


@final
class Flock:
    """A master, its replicas, and three sentinels who agree on who is who."""

    def __init__(self, servers: Replicated, sentinels: tuple[EmbeddedRedis, ...]) -> None:
        self.servers: Final = servers
        self.sentinels: Final = sentinels

    def sentinel(self, **options: Any) -> Sentinel:
        """What redis-py makes of the sentinels; options are those of the masters' clients."""
        untyped: Any = Sentinel
        made: Sentinel = untyped([("127.0.0.1", each.port) for each in self.sentinels], **options)
        return made

    async def master(self) -> EmbeddedRedis:
        """Whom all the sentinels take for the master."""
        found: set[int] = set()

        async def agreed() -> bool:
            found.clear()
            for each in self.sentinels:
                address = await tell(each, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                found.add(int(address[1]))
            return len(found) == 1

        await until(agreed, "the sentinels agree", PATIENCE)
        return next(server for server in self.servers.servers if server.port in found)

    async def failed_over(self, old: EmbeddedRedis) -> EmbeddedRedis:
        """See that the sentinels have made a master of another than *old*."""

        async def switched() -> bool:
            new = await self.master()
            return new is not old and (await tell(new, "ROLE"))[0] == "master"

        await until(switched, "+switch-master", PATIENCE)
        return await self.master()


@contextmanager
def embedded_sentinels(
    servers: Replicated, *, count: int = 3, down_after_ms: int = 500
) -> Generator[Flock]:
    """Run sentinels that know *servers* and one another, for the length of a ``with`` block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="redsem-sentinels-")))
        sentinels = tuple(
            stack.enter_context(embedded_redis(binary=_sentinel(folder / str(number))))
            for number in range(count)
        )
        for each in sentinels:
            quorum = count // 2 + 1
            port = servers.master.port
            ask(each, "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", port, quorum)
            ask(each, "SENTINEL", "SET", SERVICE, "down-after-milliseconds", down_after_ms)
            ask(each, "SENTINEL", "SET", SERVICE, "failover-timeout", 5000)
        settle(lambda: all(_knows_all(each, servers, count) for each in sentinels), "a flock")
        yield Flock(servers, sentinels)


def _sentinel(file: Path) -> Path:
    """A program that takes the arguments of a server, and is a sentinel with a file of its own."""
    settings = file.with_suffix(".conf")
    settings.touch()
    words = shlex.join([str(find_server()), str(settings), "--sentinel"])
    file.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    file.chmod(0o755)
    return file


def _knows_all(sentinel: EmbeddedRedis, servers: Replicated, count: int) -> bool:
    answer: list[Any] = ask(sentinel, "SENTINEL", "MASTER", SERVICE)
    facts: dict[str, str] = dict(zip(answer[::2], answer[1::2], strict=True))
    return (
        facts["flags"] == "master"
        and int(facts["num-other-sentinels"]) == count - 1
        and int(facts["num-slaves"]) == len(servers.replicas)
    )
