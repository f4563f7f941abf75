"""This library, in both modes, each also with leases that the process keeps."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from redis.asyncio import Redis

from benchmarks.libraries._base import Library, Options
from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore

LINGER = 0.5  # seconds


class OurSemaphore:
    """A semaphore of this library, with access to its own methods.

    Attributes:
        native: the semaphore object.
    """

    def __init__(self, semaphore: AnySemaphore, linger: float) -> None:
        self.native = semaphore
        self._linger = linger

    def permit(self) -> AbstractAsyncContextManager[Permit]:
        return self.native.acquire()

    async def held(self) -> int:
        await asyncio.sleep(1.5 * self._linger)  # what the process keeps goes back
        return (await self.native.status(max_entries=0)).held

    async def clear(self) -> None:
        await self.native.clear()


@asynccontextmanager
async def open_ours(
    options: Options, *, kind: type[Semaphore | FairSemaphore], lingers: bool
) -> AsyncGenerator[OurSemaphore]:
    """A semaphore with its own client."""
    linger = min(LINGER, options.lease / 10) if lingers else 0.0
    async with Redis.from_url(options.url) as client:
        semaphore = kind(client, options.name, options.limit, lease=options.lease, linger=linger)
        yield OurSemaphore(semaphore, linger)


def _library(kind: type[Semaphore | FairSemaphore], *, lingers: bool) -> Library:
    label = f"{kind.__name__}, linger" if lingers else kind.__name__
    return Library(label=label, open=partial(open_ours, kind=kind, lingers=lingers), ours=True)


FAIR = _library(FairSemaphore, lingers=False)
ZSET = _library(Semaphore, lingers=False)
FAIR_LINGER = _library(FairSemaphore, lingers=True)
ZSET_LINGER = _library(Semaphore, lingers=True)
