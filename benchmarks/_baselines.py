"""Baselines: the cost of the same round trips with minimal scripts."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import hiredis
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from benchmarks._measure import Burst

# Add ids to a sorted set with an expiry, and remove them.
ADD = """
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 1, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], 10000)
return #ARGV
"""
REMOVE = "for i = 1, #ARGV do redis.call('ZREM', KEYS[1], ARGV[i]) end return #ARGV"
BATCH = 50


class Scripts:
    """The two scripts, called with redis-py."""

    def __init__(self, client: Redis, take: str, give: str) -> None:
        self._client = client
        self._add, self._remove = take, give
        self._key = f"bench-baseline-{secrets.token_hex(4)}"
        self._ids = [secrets.token_hex(16) for _ in range(BATCH)]

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str) -> AsyncGenerator[Self]:
        """Load the scripts on a server."""
        async with Redis.from_url(url) as client:
            yield cls(client, await client.script_load(ADD), await client.script_load(REMOVE))

    async def one_by_one(self, seconds: float) -> Burst:
        """One id per call, one call after the other."""
        return await self._calls(self._ids[:1], seconds)

    async def batched(self, seconds: float) -> Burst:
        """`BATCH` ids per call, as a batch of 50 tasks has."""
        return await self._calls(self._ids, seconds)

    async def _calls(self, ids: list[str], seconds: float) -> Burst:
        pairs = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            await self._client.evalsha(self._add, 1, self._key, *ids)
            await self._client.evalsha(self._remove, 1, self._key, *ids)
            pairs += len(ids)
        return Burst(pairs, time.perf_counter() - start)

    async def trips(self, seconds: float) -> Burst:
        """Single calls: the time of each round trip."""
        waits: list[float] = []
        start = time.perf_counter()
        while (sent := time.perf_counter()) - start < seconds:
            await self._client.evalsha(self._remove, 1, self._key, "nothing")
            waits.append(time.perf_counter() - sent)
        return Burst(len(waits), time.perf_counter() - start, waits)


def connect(url: str) -> Any:
    """redis-py connects and authenticates; after that only the connection's socket is used."""
    return cast("Any", BlockingRedis.from_url(url).connection_pool.get_connection())


def packed(*words: str) -> bytes:
    """The bytes of a command."""
    return bytes(cast("Any", hiredis.pack_command)(words))


class BlockingSocket:
    """The two scripts over a socket, without event loop, client library or pool."""

    def __init__(self, url: str) -> None:
        with BlockingRedis.from_url(url) as client:
            shas = [str(client.script_load(script)) for script in (ADD, REMOVE)]
        self._key = f"bench-baseline-{secrets.token_hex(4)}"
        self._commands = [packed("EVALSHA", sha, "1", self._key, "one") for sha in shas]
        self._connection = connect(url)
        self._socket = self._connection._sock
        self._reader = hiredis.Reader()

    async def one_by_one(self, seconds: float) -> Burst:
        """One call after the other. It blocks this process."""
        pairs = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for command in self._commands:
                self._call(command)
            pairs += 1
        return Burst(pairs, time.perf_counter() - start)

    def _call(self, command: bytes) -> None:
        self._socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        if isinstance(reply, Exception):
            raise reply

    def close(self) -> None:
        self._connection.disconnect()
