"""steindamm: a list of tokens, waiters in BLPOP, no leases."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.contenders._base import Library, Terms
from benchmarks.contenders._clients import client_for

_EXPIRY = 3600  # seconds until an idle semaphore forgets whose tokens are out


class Steindamm:
    """One object, shared by all tasks."""

    def __init__(self, client: Any, terms: Terms) -> None:
        self._client = client
        self._limit = terms.limit
        # Nothing on the object changes between enter and exit, so tasks may share it.
        self._semaphore: Any = import_module("steindamm").AsyncRedisSemaphore(
            name=terms.name, connection=client, capacity=terms.limit, max_sleep=0, expiry=_EXPIRY
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
async def open_steindamm(terms: Terms) -> AsyncGenerator[Steindamm]:
    async with client_for(terms) as client:
        yield Steindamm(client, terms)


STEINDAMM = Library(
    label="steindamm", open=open_steindamm, package="steindamm", module="steindamm"
)
