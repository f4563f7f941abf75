"""Baselines: the cost of the same round trips with minimal scripts, called with redis-py."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

from redis.asyncio import Redis

from benchmarks._comparison import Burst

# Add ids to a sorted set with an expiry, and remove them.
ADD = """
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 1, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], 10000)
return #ARGV
"""
REMOVE = "for i = 1, #ARGV do redis.call('ZREM', KEYS[1], ARGV[i]) end return #ARGV"


class Scripts:
    """The two scripts, loaded on a server."""

    def __init__(self, client: Redis, add: str, remove: str) -> None:
        self._client = client
        self._add, self._remove = add, remove
        self._key = f"bench-baseline-{secrets.token_hex(4)}"

    @classmethod
    @asynccontextmanager
    async def at(cls, url: str) -> AsyncGenerator[Self]:
        async with Redis.from_url(url) as client:
            yield cls(client, await client.script_load(ADD), await client.script_load(REMOVE))

    async def pairs(self, batch: int, seconds: float) -> Burst:
        """*batch* ids per call, one call after the other."""
        ids = [secrets.token_hex(16) for _ in range(batch)]
        pairs = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            await self._client.evalsha(self._add, 1, self._key, *ids)
            await self._client.evalsha(self._remove, 1, self._key, *ids)
            pairs += batch
        return Burst(pairs, time.perf_counter() - start)

    async def trips(self, seconds: float) -> Burst:
        """Single calls: the time of each round trip."""
        waits: list[float] = []
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            waits.append(await self.trip())
        return Burst(len(waits), time.perf_counter() - start, waits)

    async def trip(self) -> float:
        """The seconds of a round trip."""
        sent = time.perf_counter()
        await self._client.evalsha(self._remove, 1, self._key, "nothing")
        return time.perf_counter() - sent
