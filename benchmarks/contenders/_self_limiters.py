"""self-limiters: a list of tokens and BLPOP as well, its client in Rust, no leases."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

from redis.asyncio import Redis

from benchmarks.contenders._base import Library, Terms

_EXPIRY = 3600  # seconds until an idle semaphore forgets whose tokens are out


class SelfLimiters:
    """One object, shared by all tasks, with a connection for each."""

    def __init__(self, client: Redis, terms: Terms) -> None:
        self._client = client
        self._limit = terms.limit
        self._key = f"__self-limiters:{terms.name}"
        self._semaphore: Any = import_module("self_limiters").Semaphore(
            name=terms.name,
            capacity=terms.limit,
            expiry=_EXPIRY,
            redis_url=terms.url,
            connection_pool_size=terms.tasks + 10,
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
async def open_self_limiters(terms: Terms) -> AsyncGenerator[SelfLimiters]:
    async with Redis.from_url(terms.url) as client:
        yield SelfLimiters(client, terms)


SELF_LIMITERS = Library(
    label="self-limiters", open=open_self_limiters, package="self-limiters", module="self_limiters"
)
