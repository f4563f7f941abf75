"""``redsem-async bench``: how fast permits are on the user's own Redis, in short form."""

import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from redsem_async import AnySemaphore, FairSemaphore, Semaphore, SemaphoreError, from_url

from ._ephemeral import first_error, server_for
from ._erase import erase

_KINDS = (FairSemaphore, Semaphore)
_TASKS, _LIMIT = 50, 5
_CLEANUP_TIMEOUT = 1.0  # seconds, at most


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took that was done again and again.

    Attributes:
        p50_ms: half of the times were no longer.
        p99_ms: 99 of 100 were no longer.
        per_second: how often it was done.
    """

    p50_ms: float
    p99_ms: float
    per_second: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

    Attributes:
        server: what it was measured on.
        round_trip: a PING by the user's kind of client.
        alone: acquiring, one task at a time, by the name of the class.
        contended: acquiring, as many tasks as `tasks` for as few permits as `limit`.
        tasks: as many are contending.
        limit: for so many permits.
    """

    server: str
    round_trip: Latency
    alone: dict[str, Latency]
    contended: dict[str, Latency]
    tasks: int = _TASKS
    limit: int = _LIMIT


def measure(url: str | None, seconds: float, console: Console) -> Figures:
    """Measure for *seconds* each; whatever ends it, the semaphores are deleted.

    Raises:
        ServerNotFound, ServerDidNotStart: there is no server of its own.
        SemaphoreError, redis.RedisError: Redis could not be asked, or refused.
    """
    with server_for(url) as (address, what):
        console.print(f"Redis: {escape(what)}", soft_wrap=True)
        columns = (
            *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
            TextColumn("{task.description}"),
        )
        moving = console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=not moving) as progress:
            try:
                return asyncio.run(_measure(address, what, seconds, progress))
            except ExceptionGroup as group:
                raise first_error(group) from None


async def _measure(url: str, what: str, seconds: float, progress: Progress) -> Figures:
    bar = progress.add_task("", total=1 + 2 * len(_KINDS))

    async def step(what: str, once: Callable[[], Awaitable[float]], *, tasks: int = 1) -> Latency:
        progress.update(bar, description=what)
        latency = await _repeat(once, tasks, seconds)
        progress.advance(bar)
        return latency

    alone: dict[str, Latency] = {}
    contended: dict[str, Latency] = {}
    async with from_url(url) as redis, contextlib.AsyncExitStack() as stack:
        pairs: dict[str, Callable[[], Awaitable[float]]] = {}
        for kind in _KINDS:
            semaphore = kind(redis, f"bench-{secrets.token_hex(4)}", _LIMIT, label="bench")
            await stack.enter_async_context(_temporary(redis, semaphore))
            pairs[kind.__name__] = partial(_pair, semaphore)
        round_trip = await step("round trip", partial(_ping, redis))
        for name, pair in pairs.items():
            alone[name] = await step(f"{name}, one task", pair)
            contended[name] = await step(
                f"{name}, {_TASKS} tasks, limit {_LIMIT}", pair, tasks=_TASKS
            )
    return Figures(what, round_trip, alone, contended)


async def _ping(redis: Redis) -> float:
    start = time.perf_counter()
    await redis.ping()  # pyright: ignore[reportUnknownMemberType]
    return time.perf_counter() - start


async def _pair(semaphore: AnySemaphore) -> float:
    start = time.perf_counter()
    async with semaphore.acquire():
        return time.perf_counter() - start


@contextlib.asynccontextmanager
async def _temporary(redis: Redis, semaphore: AnySemaphore) -> AsyncGenerator[None]:
    """A semaphore that can be used, and is deleted in the end."""
    try:
        async with semaphore.acquire(timeout=0):
            pass  # If Redis is not to be reached, this says so.
        yield
    finally:
        # Where there is nobody to ask, it would be asked for as long as a lease.
        with contextlib.suppress(SemaphoreError, TimeoutError):
            async with asyncio.timeout(_CLEANUP_TIMEOUT):
                await erase(redis, semaphore)


async def _repeat(once: Callable[[], Awaitable[float]], tasks: int, seconds: float) -> Latency:
    """Do something for a while, by several tasks; it returns how many seconds it took."""
    times: list[float] = []
    start = time.perf_counter()
    until = start + seconds

    async def again() -> None:
        while time.perf_counter() < until:
            times.append(await once())

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(again())
    per_second = len(times) / (time.perf_counter() - start)
    cuts = statistics.quantiles(times, n=100, method="inclusive") if times[1:] else times * 99
    p50_ms, p99_ms = (round(1000 * cuts[percent - 1], 4) for percent in (50, 99))
    return Latency(p50_ms, p99_ms, round(per_second))


def print_figures(figures: Figures, console: Console) -> None:
    """Print a table: latencies first."""
    contended = f"{figures.tasks} tasks, limit {figures.limit}"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    for heading in ("p50, ms", "p99, ms", "a second"):
        table.add_column(heading, justify="right")
    _add(table, "round trip (PING)", figures.round_trip)
    for name in figures.alone:
        _add(table, f"{name}: acquire, one task", figures.alone[name])
        _add(table, f"{name}: acquire, {contended}", figures.contended[name])
    console.print(table)


def _add(table: Table, what: str, latency: Latency) -> None:
    milliseconds = (f"{ms:.2f}" for ms in (latency.p50_ms, latency.p99_ms))
    table.add_row(what, *milliseconds, f"{latency.per_second:,.0f}")


def as_dict(figures: Figures) -> dict[str, Any]:
    """The same, for ``--json``."""
    return asdict(figures)
