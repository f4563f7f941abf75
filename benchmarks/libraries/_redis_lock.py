"""redis-py's own lock: the permit of a semaphore whose limit is 1."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from redis.asyncio import Redis

from benchmarks.libraries._base import Library, Options
from benchmarks.libraries._clients import client_for


class RedisLock:
    """With default settings: its waiters poll ten times per second."""

    def __init__(self, client: Redis, options: Options) -> None:
        self._client = client
        self._name = options.name
        self._lease = options.lease

    def permit(self) -> AbstractAsyncContextManager[object]:
        return self._client.lock(self._name, timeout=self._lease)

    async def held(self) -> int:
        return int(await self._client.exists(self._name))

    async def clear(self) -> None:
        await self._client.unlink(self._name)


@asynccontextmanager
async def open_redis_lock(options: Options) -> AsyncGenerator[RedisLock]:
    async with client_for(options) as client:
        yield RedisLock(client, options)


REDIS_LOCK = Library(label="redis.asyncio.Lock", open=open_redis_lock, mutex=True, polls=True)
