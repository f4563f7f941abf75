"""This library, in both modes."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from redis.asyncio import Redis

from benchmarks.contenders._base import Library, Terms
from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore


class Ours:
    """A semaphore of this library, which has more to it than peers.

    Attributes:
        semaphore: it.
    """

    def __init__(self, semaphore: AnySemaphore) -> None:
        self.semaphore = semaphore

    def permit(self) -> AbstractAsyncContextManager[Permit]:
        return self.semaphore.acquire()

    async def held(self) -> int:
        return (await self.semaphore.status(max_entries=0)).held

    async def clear(self) -> None:
        await self.semaphore.clear()


@asynccontextmanager
async def open_ours(kind: type[Semaphore | FairSemaphore], terms: Terms) -> AsyncGenerator[Ours]:
    """A semaphore on a client of its own."""
    async with Redis.from_url(terms.url) as client:
        yield Ours(kind(client, terms.name, terms.limit, lease=terms.lease))


def open_fair(terms: Terms) -> AbstractAsyncContextManager[Ours]:
    return open_ours(FairSemaphore, terms)


def open_zset(terms: Terms) -> AbstractAsyncContextManager[Ours]:
    return open_ours(Semaphore, terms)


FAIR = Library(label="FairSemaphore", open=open_fair, ours=True)
ZSET = Library(label="Semaphore", open=open_zset, ours=True)
