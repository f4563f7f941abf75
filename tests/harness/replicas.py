"""A master and its replicas, and the sentinels that watch them; see `topologies.py`."""

import shlex
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ResponseError

from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis, find_server
from tests.harness.proxy import Proxy
from tests.harness.topologies import PATIENCE, REPLICATION, ask, in_sync, settle, tell
from tests.harness.wait import until

SERVICE: Final = "mymaster"


@final
class Replicated:
    """A master and its replicas, as they were at the start; tests use the first of these."""

    def __init__(self, master: EmbeddedRedis, replicas: tuple[EmbeddedRedis, ...]) -> None:
        self.master: Final = master
        self.replicas: Final = replicas

    async def caught_up(self) -> None:
        """See that the replica has all that the master wrote so far."""
        await until_caught_up(self.replicas[0], self.master)

    async def cut_off(self) -> None:
        """The replica has all that the master wrote so far, and gets no more."""
        await self.caught_up()
        await tell(self.replicas[0], "REPLICAOF", "127.0.0.1", 1)

        async def alone() -> bool:
            _, _, followers = await tell(self.master, "ROLE")
            return all(int(follower[1]) != self.replicas[0].port for follower in followers)

        await until(alone, "the replica is cut off", PATIENCE)

    async def follow_through(self, link: Proxy) -> None:
        """The replica gets what the master writes through a proxy, which a test may cut."""
        await tell(self.replicas[0], "REPLICAOF", "127.0.0.1", link.port)

        async def follows() -> bool:
            role: list[Any] = await tell(self.replicas[0], "ROLE")
            return role[2:4] == [link.port, "connected"]

        await until(follows, "the replica follows through the proxy", PATIENCE)

    async def part(self, link: Proxy) -> None:
        """Master and replica hear nothing of each other from now on, nor that the link is cut."""
        async with Redis.from_url(self.master.url) as client:
            await client.set("heard of", "now")
            assert await client.wait(1, round(1000 * PATIENCE)) == 1
            before = len(link.operations("REPLCONF"))
            link.stop("REPLCONF")
            await client.set("heard of", "later")
            await client.wait(1, 1)  # asks the replica to report
        held_back = "a report of the replica is held back, and what follows it"
        await until(lambda: len(link.operations("REPLCONF")) > before, held_back, PATIENCE)
        link.mute()

    async def promote(self) -> EmbeddedRedis:
        """Make a master of the replica, with what it has."""
        replica = self.replicas[0]
        await tell(replica, "REPLICAOF", "NO", "ONE")
        assert (await tell(replica, "ROLE"))[0] == "master"
        return replica

    async def demote(self, server: EmbeddedRedis, master: EmbeddedRedis) -> None:
        """Make a replica of a master, which takes writes no more."""
        await tell(server, "REPLICAOF", "127.0.0.1", master.port)
        assert (await tell(server, "ROLE"))[0] == "slave"


async def until_caught_up(replica: EmbeddedRedis, master: EmbeddedRedis) -> None:
    _, written, _ = await tell(master, "ROLE")

    async def has_it() -> bool:
        role: list[Any] = await tell(replica, "ROLE")
        return bool(role[3] == "connected" and role[4] >= written)

    await until(has_it, "the replica caught up", PATIENCE)


async def contents(server: EmbeddedRedis) -> dict[str, Any]:
    """All that a server stores, which may be a replica in a cluster."""
    async with Redis.from_url(
        server.url, single_connection_client=True, decode_responses=True
    ) as client:
        with suppress(ResponseError):  # there is no cluster
            await client.readonly()
        read: Any = {"hash": client.hgetall, "string": client.get}
        read["zset"] = partial(client.zrange, start=0, end=-1, withscores=True)
        return {str(key): await read[await client.type(key)](key) for key in await client.keys()}


@contextmanager
def embedded_replicas(replicas: int = 1) -> Generator[Replicated]:
    """Run a master and replicas of it, in sync, for the length of a ``with`` block."""
    with ExitStack() as stack:
        master = stack.enter_context(embedded_redis(*REPLICATION))
        follow = (*REPLICATION, "--replicaof", "127.0.0.1", str(master.port))
        followers = tuple(stack.enter_context(embedded_redis(*follow)) for _ in range(replicas))
        settle(lambda: all(in_sync(each) for each in followers), "the replicas are in sync")
        yield Replicated(master, followers)


# -- sentinels


@final
class Flock:
    """A master, its replicas, and three sentinels that agree on which is which."""

    def __init__(self, servers: Replicated, sentinels: tuple[EmbeddedRedis, ...]) -> None:
        self.servers: Final = servers
        self.sentinels: Final = sentinels

    def sentinel(self, **options: Any) -> Sentinel:
        """What redis-py makes of the sentinels; options are those of the masters' clients."""
        untyped: Any = Sentinel
        made: Sentinel = untyped([("127.0.0.1", each.port) for each in self.sentinels], **options)
        return made

    async def master(self) -> EmbeddedRedis:
        """The server that all the sentinels take for the master."""
        found: set[int] = set()

        async def agreed() -> bool:
            found.clear()
            for each in self.sentinels:
                address = await tell(each, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                found.add(int(address[1]))
            return len(found) == 1

        await until(agreed, "the sentinels agree", PATIENCE)
        servers = (self.servers.master, *self.servers.replicas)
        return next(server for server in servers if server.port in found)

    async def failed_over(self, old: EmbeddedRedis) -> EmbeddedRedis:
        """See that the sentinels have made a master of another than *old*."""

        async def switched() -> bool:
            new = await self.master()
            return new is not old and (await tell(new, "ROLE"))[0] == "master"

        await until(switched, "+switch-master", PATIENCE)
        return await self.master()


@contextmanager
def embedded_sentinels(servers: Replicated) -> Generator[Flock]:
    """Run three sentinels that know *servers* and one another, for a ``with`` block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="redsem-sentinels-")))
        sentinels = tuple(
            stack.enter_context(embedded_redis(binary=_sentinel(folder / str(number))))
            for number in range(3)
        )
        for each in sentinels:
            ask(each, "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", servers.master.port, 2)
            ask(each, "SENTINEL", "SET", SERVICE, "down-after-milliseconds", 500)
            ask(each, "SENTINEL", "SET", SERVICE, "failover-timeout", 5000)
        settle(lambda: all(_knows_all(each, servers) for each in sentinels), "the sentinels know")
        yield Flock(servers, sentinels)


def _sentinel(file: Path) -> Path:
    """A program that takes the arguments of a server, and is a sentinel with a file of its own."""
    settings = file.with_suffix(".conf")
    settings.touch()
    command = shlex.join([str(find_server()), str(settings), "--sentinel"])
    file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    file.chmod(0o755)
    return file


def _knows_all(sentinel: EmbeddedRedis, servers: Replicated) -> bool:
    answer: list[str] = ask(sentinel, "SENTINEL", "MASTER", SERVICE)
    facts = dict(zip(answer[::2], answer[1::2], strict=True))
    known = [facts["flags"], facts["num-other-sentinels"], facts["num-slaves"]]
    return known == ["master", "2", str(len(servers.replicas))]
