"""The measured libraries, this one included, behind one small interface."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from redis.asyncio import Redis

from redsem_async import FairSemaphore, Semaphore

POLL = 0.01  # seconds between two attempts; the book leaves the interval to the caller
EXPIRY = 3600  # seconds until an unused list of tokens is reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a semaphore.

    Attributes:
        url: URL of the server.
        name: name of the semaphore; every key contains it.
        limit: maximum number of held permits.
        tasks: number of concurrent tasks, for libraries that need a connection for each.
        lease: lease in seconds, for libraries with leases.
    """

    url: str
    name: str
    limit: int
    tasks: int = 1
    lease: float = 10.0


@dataclass(frozen=True, slots=True)
class OpenSemaphore:
    """An open semaphore of some library.

    Attributes:
        permit: holds a permit for the length of a block.
        held: the number of held permits according to the server.
        delete: deletes the semaphore.
    """

    permit: Callable[[], AbstractAsyncContextManager[object]]
    held: Callable[[], Awaitable[int]]
    delete: Callable[[], Awaitable[object]]


Opening = AbstractAsyncContextManager[OpenSemaphore]


@dataclass(frozen=True, slots=True)
class Library:
    """A measured library.

    Attributes:
        label: name in reports, and of the distribution if it has a *module*.
        open: opens a semaphore.
        module: its module, if it is not a dependency of ours.
        ours: whether it is this library.
        polls: whether each of its waiters polls.
    """

    label: str
    open: Callable[[Options], Opening]
    module: str = ""
    ours: bool = False
    polls: bool = False

    @property
    def installed(self) -> bool:
        return not self.module or find_spec(self.module) is not None


def client_for(options: Options) -> Redis:
    """A client with enough connections for each task, and no timeout.

    A waiter in a blocking command needs its own connection for as long as it waits. By default
    redis-py allows 100 connections, and ends a blocking command after 5 s.
    """
    return Redis.from_url(options.url, max_connections=options.tasks + 10, socket_timeout=None)


@asynccontextmanager
async def _ours(
    options: Options, *, kind: type[Semaphore | FairSemaphore]
) -> AsyncGenerator[OpenSemaphore]:
    async with Redis.from_url(options.url) as client:
        semaphore = kind(client, options.name, options.limit, lease=options.lease)

        async def held() -> int:
            return (await semaphore.status(max_entries=0)).held

        yield OpenSemaphore(semaphore.acquire, held, semaphore.delete)


@asynccontextmanager
async def _in_process(options: Options) -> AsyncGenerator[OpenSemaphore]:
    semaphore = asyncio.Semaphore(options.limit)

    async def held() -> int:
        return options.limit - semaphore._value

    yield OpenSemaphore(lambda: semaphore, held, partial(asyncio.sleep, 0))


@asynccontextmanager
async def _redis_lock(options: Options) -> AsyncGenerator[OpenSemaphore]:
    async with client_for(options) as client:
        yield OpenSemaphore(
            partial(client.lock, options.name, timeout=options.lease),
            partial(client.exists, options.name),
            partial(client.unlink, options.name),
        )


@asynccontextmanager
async def _py_redis_semaphore(options: Options) -> AsyncGenerator[OpenSemaphore]:
    """One of its objects is one holder; the objects are reused."""
    module: Any = import_module("redis_semaphore")
    config = module.SemaphoreConfig(
        name=options.name, limit=options.limit, lock_timeout=options.lease
    )
    async with client_for(options) as client:
        observer = module.Semaphore(client, config)
        idle: list[Any] = []

        @asynccontextmanager
        async def permit() -> AsyncGenerator[None]:
            semaphore = idle.pop() if idle else module.Semaphore(client, config)
            async with semaphore:
                yield
            idle.append(semaphore)

        async def held() -> int:
            return int((await observer.astatus()).used_slots)

        async def delete() -> None:
            found = cast("AsyncIterator[bytes]", client.scan_iter(f"*{options.name}*", count=1000))
            if keys := [key async for key in found]:
                await client.unlink(*keys)

        yield OpenSemaphore(permit, held, delete)


def _tokens(client: Redis, semaphore: Any, key: str, limit: int) -> OpenSemaphore:
    """A semaphore that is a list of tokens, and one object for all tasks."""

    async def held() -> int:
        exists = await client.exists(f"{key}-exists")
        return limit - int(await client.llen(key)) if exists else 0

    return OpenSemaphore(lambda: semaphore, held, partial(client.unlink, key, f"{key}-exists"))


@asynccontextmanager
async def _steindamm(options: Options) -> AsyncGenerator[OpenSemaphore]:
    async with client_for(options) as client:
        # Nothing on the object changes between enter and exit, so tasks may share it.
        semaphore = import_module("steindamm").AsyncRedisSemaphore(
            name=options.name,
            connection=client,
            capacity=options.limit,
            max_sleep=0,
            expiry=EXPIRY,
        )
        yield _tokens(client, semaphore, semaphore.key, options.limit)


@asynccontextmanager
async def _self_limiters(options: Options) -> AsyncGenerator[OpenSemaphore]:
    async with Redis.from_url(options.url) as client:
        semaphore = import_module("self_limiters").Semaphore(
            name=options.name,
            capacity=options.limit,
            expiry=EXPIRY,
            redis_url=options.url,
            connection_pool_size=options.tasks + 10,
        )
        yield _tokens(client, semaphore, f"__self-limiters:{options.name}", options.limit)


@asynccontextmanager
async def _book(options: Options) -> AsyncGenerator[OpenSemaphore]:
    """The fair semaphore of *Redis in Action*, 6.3, ported to redis.asyncio.

    One sorted set ranks owners by a counter; another one stores their times.
    """
    times, owners, counter = options.name, f"{options.name}:owner", f"{options.name}:counter"
    async with client_for(options) as client:

        async def acquired(identifier: str) -> bool:
            now = time.time()
            pipeline: Any
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.zremrangebyscore(times, "-inf", now - options.lease)
                pipeline.zinterstore(owners, {owners: 1, times: 0})
                pipeline.incr(counter)
                count = (await pipeline.execute())[-1]
                pipeline.zadd(times, {identifier: now})
                pipeline.zadd(owners, {identifier: count})
                pipeline.zrank(owners, identifier)
                if (await pipeline.execute())[-1] < options.limit:
                    return True
            await remove(identifier)
            return False

        async def remove(identifier: str) -> None:
            pipeline: Any
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.zrem(times, identifier)
                pipeline.zrem(owners, identifier)
                await pipeline.execute()

        @asynccontextmanager
        async def permit() -> AsyncGenerator[None]:
            while not await acquired(identifier := str(uuid.uuid4())):  # noqa: ASYNC110
                await asyncio.sleep(POLL)
            try:
                yield
            finally:
                await remove(identifier)

        yield OpenSemaphore(
            permit, partial(client.zcard, owners), partial(client.unlink, times, owners, counter)
        )


OURS = FAIR, ZSET = tuple(
    Library(kind.__name__, partial(_ours, kind=kind), ours=True)
    for kind in (FairSemaphore, Semaphore)
)
PY_REDIS_SEMAPHORE = Library("py-redis-semaphore", _py_redis_semaphore, "redis_semaphore")
PEERS = (
    PY_REDIS_SEMAPHORE,
    Library("steindamm", _steindamm, "steindamm"),
    Library("self-limiters", _self_limiters, "self_limiters"),
    Library("book's fair, polling", _book, polls=True),
)
REDIS_LOCK = Library("redis.asyncio.Lock", _redis_lock, polls=True)
IN_PROCESS = Library("asyncio.Semaphore", _in_process)
LIBRARIES = {library.label: library for library in (*OURS, *PEERS, REDIS_LOCK, IN_PROCESS)}
