"""steindamm: a list of tokens, waiters in BLPOP, no leases."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.libraries._base import Library, Options
from benchmarks.libraries._clients import client_for

_EXPIRY = 3600  # seconds until an unused semaphore is reset


class Steindamm:
    """One object, shared by all tasks."""

    def __init__(self, client: Any, options: Options) -> None:
        self._client = client
        self._limit = options.limit
        # Nothing on the object changes between enter and exit, so tasks may share it.
        self._semaphore: Any = import_module("steindamm").AsyncRedisSemaphore(
            name=options.name,
            connection=client,
            capacity=options.limit,
            max_sleep=0,
            expiry=_EXPIRY,
        )

    def permit(self) -> AbstractAsyncContextManager[object]:
        semaphore: AbstractAsyncContextManager[object] = self._semaphore
        return semaphore

    async def held(self) -> int:
        if not await self._client.exists(f"{self._semaphore.key}-exists"):
            return 0
        return self._limit - int(await self._client.llen(self._semaphore.key))

    async def clear(self) -> None:
        await self._client.unlink(self._semaphore.key, f"{self._semaphore.key}-exists")


@asynccontextmanager
async def open_steindamm(options: Options) -> AsyncGenerator[Steindamm]:
    async with client_for(options) as client:
        yield Steindamm(client, options)


STEINDAMM = Library(
    label="steindamm", open=open_steindamm, package="steindamm", module="steindamm"
)
