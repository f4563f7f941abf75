"""asyncio's own semaphore: the cost of waiting without a server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from benchmarks.libraries._base import Library, Options


class InProcess:
    """A baseline and not a peer, because it works within one process only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore = asyncio.Semaphore(limit)

    def permit(self) -> AbstractAsyncContextManager[object]:
        return self._semaphore

    async def held(self) -> int:
        return self._limit - self._semaphore._value

    async def clear(self) -> None:
        pass


@asynccontextmanager
async def open_in_process(options: Options) -> AsyncGenerator[InProcess]:
    yield InProcess(options.limit)


IN_PROCESS = Library(label="asyncio.Semaphore", open=open_in_process)
