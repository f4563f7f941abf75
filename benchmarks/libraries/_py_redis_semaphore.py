"""py-redis-semaphore: scripts over a sorted set, waiters in BLPOP, a heartbeat per permit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.libraries._base import Library, Options
from benchmarks.libraries._clients import client_for


class PyRedisSemaphore:
    """One of its objects is one holder; the objects are reused."""

    def __init__(self, client: Any, options: Options) -> None:
        self._module: Any = import_module("redis_semaphore")
        self._client = client
        self._config = self._module.SemaphoreConfig(
            name=options.name, limit=options.limit, lock_timeout=options.lease
        )
        self._idle: list[Any] = []
        self._observer = self._new()

    def _new(self) -> Any:
        return self._module.Semaphore(self._client, self._config)

    @asynccontextmanager
    async def permit(self) -> AsyncGenerator[None]:
        semaphore = self._idle.pop() if self._idle else self._new()
        async with semaphore:
            yield
        self._idle.append(semaphore)

    async def held(self) -> int:
        return int((await self._observer.astatus()).used_slots)

    async def clear(self) -> None:
        keys = [key async for key in self._client.scan_iter(f"*{self._config.name}*", count=1000)]
        if keys:
            await self._client.unlink(*keys)


@asynccontextmanager
async def open_py_redis_semaphore(options: Options) -> AsyncGenerator[PyRedisSemaphore]:
    async with client_for(options) as client:
        yield PyRedisSemaphore(client, options)


PY_REDIS_SEMAPHORE = Library(
    label="py-redis-semaphore",
    open=open_py_redis_semaphore,
    package="py-redis-semaphore",
    module="redis_semaphore",
)
