"""Waiting for what others do, and looking at what the server knows."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore

EPSILON = 0.1  # seconds by which the promises may be late, as RELIABILITY has them
NOISE = 0.25  # seconds more, for two cores that others use as well

KEYS = ("holders", "tokens", "meta", "hubs", "extra", "limit")

Kind = type[Semaphore] | type[FairSemaphore]


def key_of(semaphore: AnySemaphore, what: str) -> str:
    return f"redsem:{{{semaphore.name}}}:{what}"


async def tokens_of(admin: Redis, semaphore: AnySemaphore) -> list[Any]:
    """The fencing tokens that the server keeps."""
    return await admin.hvals(key_of(semaphore, "tokens"))


def hub_of(permit: Permit) -> str:
    return permit.id.partition(".")[0]


Result = TypeVar("Result")


def in_background(coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    """A task whose error nobody has to fetch: a test that fails fails for its own reason."""
    task = asyncio.create_task(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


async def until(
    holds: Callable[[], bool | Awaitable[bool]], what: str, within: float = 5.0
) -> float:
    """Look until *what* holds: for where no event tells. Returns how long it took."""
    began = time.monotonic()
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - began
        assert time.monotonic() - began < within, f"not within {within} s: {what}"
        await asyncio.sleep(0.005)


@contextmanager
def takes_at_most(seconds: float) -> Generator[None]:
    """A promise with a time, kept but for noise."""
    began = time.monotonic()
    try:
        yield
    finally:
        took = time.monotonic() - began
        assert took <= seconds + NOISE, f"took {took:.3f} s, not {seconds:.3f}"


async def waits_in_line(
    semaphore: AnySemaphore, *, timeout: float | None = 30.0, permits: int = 1, place: int = 1
) -> "asyncio.Task[Permit]":
    """A task that waits for a permit, of which the server knows by now."""
    waiter = in_background(semaphore.acquire(timeout=timeout, permits=permits))

    async def known() -> bool:
        return (await semaphore.status(0)).waiting >= place

    await until(known, "the waiter is in line")
    return waiter


async def all_free(semaphore: AnySemaphore, within: float = 2.0) -> None:
    """Nothing is held and nobody waits, as the server sees it."""

    async def free() -> bool:
        status = await semaphore.status(0)
        return status.held == 0 and status.waiting == 0

    await until(free, "all permits are free", within)


async def connection_of(admin: Redis, client_name: str) -> int | None:
    """The server's number for the connection of a hub, whose client has that name."""
    clients = await admin.client_list()
    found = [int(c["id"]) for c in clients if c["name"] == client_name and "P" in c["flags"]]
    assert len(found) <= 1, "a hub has one connection"
    return found[0] if found else None


async def kill_connection(admin: Redis, client_name: str) -> int:
    """CLIENT KILL the connection of a hub, which had that number."""
    number = await connection_of(admin, client_name)
    assert number is not None
    assert await admin.client_kill_filter(_id=str(number)) == 1
    return number


async def kill_connections(admin: Redis, client_name: str) -> None:
    """CLIENT KILL whatever has that name: a hub that hears no messages cannot be told apart."""
    named = [c["id"] for c in await admin.client_list() if c["name"] == client_name]
    assert named
    for number in named:
        await admin.client_kill_filter(_id=number)


async def scripts_run(admin: Redis) -> int:
    """How many scripts the server was asked to run so far."""
    stats: dict[str, dict[str, Any]] = await admin.info("commandstats")
    calls = (stats.get(f"cmdstat_{command}", {}) for command in ("eval", "evalsha"))
    return sum(stat.get("calls", 0) for stat in calls)
