"""Waiting for what others do."""

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from redsem_async import AnySemaphore, Permit

Result = TypeVar("Result")


def noise() -> float:
    """Seconds by which the machine is late: ask once something is, as this takes a while itself.

    A quarter of a second on an idle machine, and as much more as it is slower than that now. Each
    other worker counts as load, whether it is at work at this moment or not.
    """
    began = time.perf_counter()
    for _ in range(2_000_000):
        pass
    slowness = (time.perf_counter() - began) / 0.055
    return 0.25 * max(1.0, slowness, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


EPSILON = 0.1  # seconds by which the promises may be late, as docs/guarantees.md has them
SOON = 5.0  # seconds in which a result has to come that needs no waiting


def in_background(coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    """A task whose error nobody has to fetch: a test that fails fails for its own reason."""
    task = asyncio.create_task(coroutine)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


async def until(
    condition: Callable[[], object], what: str = "it is so", within: float = 5.0
) -> float:
    """Look until *condition* holds: for where no event tells. Returns how long it took.

    Args:
        condition: a function, or a coroutine function.
        what: what is waited for, for the message.
        within: seconds.
    """
    began, most = time.monotonic(), within
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return time.monotonic() - began
        if most == within and time.monotonic() - began >= within:
            most += noise()
        assert time.monotonic() - began < most, f"not within {within} s: {what}"
        await asyncio.sleep(0.005)


async def soon(awaitable: Awaitable[Result], within: float = SOON) -> Result:
    """The result of *awaitable*, which must not take long."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as bound:
        late = loop.call_later(within, lambda: bound.reschedule(loop.time() + noise()))
        try:
            return await awaitable
        finally:
            late.cancel()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel *tasks* and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def tasks_end_soon() -> AsyncGenerator[None]:
    """What is started here leaves no task: within two seconds, those from before are left."""
    before = asyncio.all_tasks()
    yield
    with takes_at_most(2.0):
        await until(lambda: asyncio.all_tasks() == before, "its tasks have ended")


@contextmanager
def takes_at_most(seconds: float) -> Generator[None]:
    """A promise with a time, kept but for noise."""
    began = time.monotonic()
    try:
        yield
    finally:
        late = time.monotonic() - began - seconds
        assert late <= 0 or late <= noise(), f"{late:.3f} s later than {seconds:.3f} s"


async def is_served(
    waiter: Awaitable[Permit], within: float = 30.0, *, after: Permit | int = 0
) -> None:
    """*waiter* gets a permit in time, with a higher token than the one before; release it."""
    with takes_at_most(within):
        permit = await soon(waiter, within + 10)
    assert permit.fencing_token > (after if isinstance(after, int) else after.fencing_token)
    assert await permit.release()


async def give_back(*held: Permit | Awaitable[Permit]) -> None:
    """Release each of *held*: permits, and waiters, of which each gets one soon."""
    for each in held:
        permit = each if isinstance(each, Permit) else await soon(each)
        assert await permit.release()


async def all_free(semaphore: AnySemaphore, within: float = 2.0) -> None:
    """Nothing is held and nobody waits, as the server sees it."""

    async def free() -> bool:
        status = await semaphore.status(0)
        return status.held == 0 and status.waiting == 0

    await until(free, "all permits are free", within)


async def available(semaphore: AnySemaphore, count: int, within: float = 2.0) -> None:
    """Wait until *count* permits are free."""

    async def free() -> bool:
        return await semaphore.available() == count

    await until(free, f"{count} permits are free", within)


async def waiting(
    semaphore: AnySemaphore, count: int, within: float = 5.0, *, or_more: bool = False
) -> None:
    """Wait until *count* requests stand in line (in ZSET mode: were announced)."""

    async def they_wait() -> bool:
        found = (await semaphore.status(max_entries=0)).waiting
        return found == count or (or_more and found > count)

    await until(they_wait, f"{count} wait", within)


async def waits_in_queue(
    semaphore: AnySemaphore, *, timeout: float | None = 30.0, permits: int = 1, place: int = 1
) -> "asyncio.Task[Permit]":
    """A task that waits for a permit; *place* requests are in line by now, in either mode."""
    waiter = in_background(semaphore.acquire(timeout=timeout, permits=permits))
    await waiting(semaphore, place, or_more=True)
    return waiter


async def queue_up(semaphore: AnySemaphore, **arguments: Any) -> "asyncio.Task[Permit]":
    """A task that waits for a permit, and of which the server knows."""
    before = (await semaphore.status(max_entries=0)).waiting
    task = in_background(semaphore.acquire(**arguments))
    await asyncio.sleep(0)
    await waiting(semaphore, before + 1)
    assert not task.done(), task.exception() or task.result()
    return task
