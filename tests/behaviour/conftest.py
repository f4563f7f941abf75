"""What the behaviour tests share: both kinds of semaphore, two clients, and one way to wait."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from redsem_async.testing import MemoryBackend

Client = Redis | MemoryBackend
T = TypeVar("T")


class Make(Protocol):
    """Makes a semaphore of the kind, client and name of the test."""

    def __call__(self, limit: int = 1, *, client: Any = None, **options: Any) -> AnySemaphore: ...


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def kind(request: pytest.FixtureRequest) -> type[AnySemaphore]:
    """The class under test."""
    made: type[AnySemaphore] = request.param
    return made


@pytest.fixture(params=["redis", "memory"])
def client(request: pytest.FixtureRequest) -> Client:
    """The first argument of a semaphore."""
    if request.param == "memory":
        return MemoryBackend()
    found: Redis = request.getfixturevalue("redis")
    return found


@pytest.fixture
async def other(client: Client, server_url: str) -> AsyncIterator[Client]:
    """A second client of the same place: to the semaphores, another process."""
    if isinstance(client, MemoryBackend):
        yield client.peer()
    else:
        async with Redis.from_url(server_url) as second:
            yield second


@pytest.fixture
async def other_redis(server_url: str) -> AsyncIterator[Redis]:
    """A second client of the server under test."""
    async with Redis.from_url(server_url) as second:
        yield second


@pytest.fixture
def make(kind: type[AnySemaphore], client: Client, name: str) -> Make:
    """Makes semaphores that share a name, in Redis or in memory."""
    return _maker(kind, client, name)


@pytest.fixture
def make_fair(client: Client, name: str) -> Make:
    """Makes fair semaphores that share a name, in Redis or in memory."""
    return _maker(FairSemaphore, client, name)


@pytest.fixture
def make_on_redis(kind: type[AnySemaphore], redis: Redis, name: str) -> Make:
    """Makes semaphores that share a name, in Redis: for tests that look into the server."""
    return _maker(kind, redis, name)


@pytest.fixture
def nowhere() -> Redis:
    """A client of a port on which nobody listens: whatever is sent fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return Redis(port=port)


def _maker(kind: type[AnySemaphore], first: Client, name: str) -> Make:
    def make(limit: int = 1, *, client: Any = None, **options: Any) -> AnySemaphore:
        return kind(client or first, options.pop("name", name), limit, **options)

    return make


async def eventually(condition: Callable[[], object], within: float = 5.0) -> None:
    """Wait until *condition*, which may be a coroutine function, holds."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        assert asyncio.get_running_loop().time() < deadline, f"not so within {within} s"
        await asyncio.sleep(0.005)


async def all_free(sem: AnySemaphore, within: float = 2.0) -> None:
    """Wait until *sem* has no holder and no waiter."""

    async def is_free() -> bool:
        status = await sem.status(max_entries=0)
        return status.held == 0 and status.waiting == 0

    await eventually(is_free, within)


async def waiting(sem: AnySemaphore, count: int) -> None:
    """Wait until *count* requests stand in line (in ZSET mode: were announced)."""

    async def they_wait() -> bool:
        return (await sem.status(max_entries=0)).waiting == count

    await eventually(they_wait)


async def queue_up(sem: AnySemaphore, **arguments: Any) -> asyncio.Task[Permit]:
    """Start a task that waits for a permit, and come back when it stands in line."""
    before = (await sem.status(max_entries=0)).waiting
    task = asyncio.create_task(sem.acquire(**arguments))
    await asyncio.sleep(0)
    if isinstance(sem, FairSemaphore):
        await waiting(sem, before + 1)
    else:
        # No queue is kept on the server, and what processes announce may lag: but whatever was
        # asked before the first of these was answered before the second.
        await sem.status(max_entries=0)
        await sem.status(max_entries=0)
    assert not task.done()
    return task


async def keys_of(redis: Redis, sem: AnySemaphore) -> list[bytes]:
    """Every key that the server keeps for *sem*."""
    keys = cast("AsyncIterator[bytes]", redis.scan_iter(f"*{sem.name}*", count=1000))
    return [key async for key in keys]


async def soon(awaitable: Awaitable[T], within: float = 2.0) -> T:
    """The result of *awaitable*, which must not take long."""
    async with asyncio.timeout(within):
        return await awaitable


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel *tasks* and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
