"""This library, in both modes."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from redis.asyncio import Redis

from benchmarks.libraries._base import Library, Options
from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore


class OurSemaphore:
    """A semaphore of this library, with access to its own methods.

    Attributes:
        native: the semaphore object.
    """

    def __init__(self, semaphore: AnySemaphore) -> None:
        self.native = semaphore

    def permit(self) -> AbstractAsyncContextManager[Permit]:
        return self.native.acquire()

    async def held(self) -> int:
        return (await self.native.status(max_entries=0)).held

    async def clear(self) -> None:
        await self.native.clear()


@asynccontextmanager
async def open_ours(
    kind: type[Semaphore | FairSemaphore], options: Options
) -> AsyncGenerator[OurSemaphore]:
    """A semaphore with its own client."""
    async with Redis.from_url(options.url) as client:
        yield OurSemaphore(kind(client, options.name, options.limit, lease=options.lease))


def open_fair(options: Options) -> AbstractAsyncContextManager[OurSemaphore]:
    return open_ours(FairSemaphore, options)


def open_zset(options: Options) -> AbstractAsyncContextManager[OurSemaphore]:
    return open_ours(Semaphore, options)


FAIR = Library(label="FairSemaphore", open=open_fair, ours=True)
ZSET = Library(label="Semaphore", open=open_zset, ours=True)
