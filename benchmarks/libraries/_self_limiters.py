"""self-limiters: a list of tokens, waiters in BLPOP, a client in Rust, no leases."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

from redis.asyncio import Redis

from benchmarks.libraries._base import Library, Options

_EXPIRY = 3600  # seconds until an unused semaphore is reset


class SelfLimiters:
    """One object, shared by all tasks, with a connection per task."""

    def __init__(self, client: Redis, options: Options) -> None:
        self._client = client
        self._limit = options.limit
        self._key = f"__self-limiters:{options.name}"
        self._semaphore: Any = import_module("self_limiters").Semaphore(
            name=options.name,
            capacity=options.limit,
            expiry=_EXPIRY,
            redis_url=options.url,
            connection_pool_size=options.tasks + 10,
        )

    def permit(self) -> AbstractAsyncContextManager[object]:
        semaphore: AbstractAsyncContextManager[object] = self._semaphore
        return semaphore

    async def held(self) -> int:
        if not await self._client.exists(f"{self._key}-exists"):
            return 0
        return self._limit - int(await self._client.llen(self._key))

    async def clear(self) -> None:
        await self._client.unlink(self._key, f"{self._key}-exists")


@asynccontextmanager
async def open_self_limiters(options: Options) -> AsyncGenerator[SelfLimiters]:
    async with Redis.from_url(options.url) as client:
        yield SelfLimiters(client, options)


SELF_LIMITERS = Library(
    label="self-limiters", open=open_self_limiters, package="self-limiters", module="self_limiters"
)
