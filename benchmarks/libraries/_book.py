"""The fair semaphore of *Redis in Action*, 6.3, ported to redis.asyncio."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.libraries._base import Library, Options
from benchmarks.libraries._clients import client_for

_POLL = 0.01  # seconds between two attempts; the book leaves the interval to the caller


class Book:
    """One sorted set ranks owners by a counter; another one stores their times."""

    def __init__(self, client: Any, options: Options) -> None:
        self._client = client
        self._limit = options.limit
        self._lease = options.lease
        self._times = options.name
        self._owners = f"{options.name}:owner"
        self._counter = f"{options.name}:counter"

    @asynccontextmanager
    async def permit(self) -> AsyncGenerator[None]:
        while (identifier := await self._acquire()) is None:  # noqa: ASYNC110 - as measured
            await asyncio.sleep(_POLL)
        try:
            yield
        finally:
            await self._remove(identifier)

    async def _acquire(self) -> str | None:
        identifier, now = str(uuid.uuid4()), time.time()
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.zremrangebyscore(self._times, "-inf", now - self._lease)
            pipeline.zinterstore(self._owners, {self._owners: 1, self._times: 0})
            pipeline.incr(self._counter)
            counter = (await pipeline.execute())[-1]
            pipeline.zadd(self._times, {identifier: now})
            pipeline.zadd(self._owners, {identifier: counter})
            pipeline.zrank(self._owners, identifier)
            if (await pipeline.execute())[-1] < self._limit:
                return identifier
        await self._remove(identifier)
        return None

    async def _remove(self, identifier: str) -> None:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.zrem(self._times, identifier)
            pipeline.zrem(self._owners, identifier)
            await pipeline.execute()

    async def held(self) -> int:
        return int(await self._client.zcard(self._owners))

    async def clear(self) -> None:
        await self._client.unlink(self._times, self._owners, self._counter)


@asynccontextmanager
async def open_book(options: Options) -> AsyncGenerator[Book]:
    async with client_for(options) as client:
        yield Book(client, options)


BOOK = Library(label="book's fair, polling", open=open_book, polls=True)
