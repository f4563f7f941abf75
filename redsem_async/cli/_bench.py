"""``redsem-async bench``, a short measurement of acquiring on the user's own Redis."""

import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import RedisCluster
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from redsem_async import AnySemaphore, FairSemaphore, Semaphore

from ._ephemeral import server_for
from ._target import Target, connected, erase

_KINDS = (FairSemaphore, Semaphore)
_TASKS, _LIMIT = 50, 5


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of a repeated operation (median, 99th percentile, operations per second)."""

    p50_ms: float
    p99_ms: float
    per_second: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of all measurements."""

    server: str  # for display
    round_trip: Latency  # a TIME by redis-py, because not every user may PING
    alone: dict[str, Latency]  # acquiring by a single task, by class name
    contended: dict[str, Latency]  # by `tasks` tasks with a limit of `limit`
    tasks: int = _TASKS
    limit: int = _LIMIT


def measure(
    url: str | None, prefix: str, seconds: float, console: Console, *, cluster: bool
) -> Figures:
    """Run each measurement for *seconds*. The semaphores are deleted in every case.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
        SemaphoreError, RedisError, OSError: Redis is unreachable or returned an error, perhaps in
            an `ExceptionGroup`.
    """
    with server_for(url, prefix, cluster=cluster) as (target, what):
        console.print(f"Redis: {escape(what)}", soft_wrap=True)
        columns = (
            *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
            TextColumn("{task.description}"),
        )
        moving = console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=not moving) as progress:
            return asyncio.run(_measure(target, what, seconds, progress))


async def _measure(target: Target, what: str, seconds: float, progress: Progress) -> Figures:
    bar = progress.add_task("", total=1 + 2 * len(_KINDS))

    async def step(what: str, once: Callable[[], Awaitable[float]], *, tasks: int = 1) -> Latency:
        progress.update(bar, description=what)
        latency = await _repeat(once, tasks, seconds)
        progress.advance(bar)
        return latency

    alone: dict[str, Latency] = {}
    contended: dict[str, Latency] = {}
    async with connected(target) as client, contextlib.AsyncExitStack() as stack:
        pairs: dict[str, Callable[[], Awaitable[float]]] = {}
        for kind in _KINDS:
            name = f"bench-{secrets.token_hex(4)}"
            semaphore = kind(client, name, _LIMIT, prefix=target.prefix, label="bench")
            await stack.enter_async_context(_temporary(client, semaphore, target.prefix))
            pairs[kind.__name__] = partial(_pair, semaphore)
        # One node is asked, because a cluster sends it to every shard.
        where = {"target_nodes": RedisCluster.RANDOM} if target.cluster else {}
        round_trip = await step("round trip", partial(_round_trip, client, where))
        for name, pair in pairs.items():
            alone[name] = await step(f"{name}, one task", pair)
            contended[name] = await step(
                f"{name}, {_TASKS} tasks, limit {_LIMIT}", pair, tasks=_TASKS
            )
    return Figures(what, round_trip, alone, contended)


async def _round_trip(client: Any, where: dict[str, str]) -> float:
    start = time.perf_counter()
    await client.time(**where)
    return time.perf_counter() - start


async def _pair(semaphore: AnySemaphore) -> float:
    start = time.perf_counter()
    async with semaphore.acquire():
        return time.perf_counter() - start


@contextlib.asynccontextmanager
async def _temporary(client: Any, semaphore: AnySemaphore, prefix: str) -> AsyncGenerator[None]:
    """Check that *semaphore* works, and delete it at the end of the block."""
    try:
        async with semaphore.acquire(timeout=0):
            pass  # Raises if Redis is unreachable.
        yield
    finally:
        await erase(client, semaphore, prefix)


async def _repeat(once: Callable[[], Awaitable[float]], tasks: int, seconds: float) -> Latency:
    """Run *once*, which returns a duration, in *tasks* concurrent loops for *seconds*."""
    times: list[float] = []
    start = time.perf_counter()
    until = start + seconds

    async def again() -> None:
        task = asyncio.current_task()
        # redis-py may swallow a cancellation that comes together with a reply.
        while time.perf_counter() < until and not (task and task.cancelling()):
            times.append(await once())

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(again())
    per_second = len(times) / (time.perf_counter() - start)
    cuts = statistics.quantiles(times, n=100, method="inclusive") if times[1:] else times * 99
    p50_ms, p99_ms = (round(1000 * cuts[percent - 1], 4) for percent in (50, 99))
    return Latency(p50_ms, p99_ms, round(per_second))


def print_figures(figures: Figures, console: Console) -> None:
    """Print the figures as a table."""
    contended = f"{figures.tasks} tasks, limit {figures.limit}"
    rows = {"round trip (TIME)": figures.round_trip}
    for name in figures.alone:
        rows[f"{name}: acquire, one task"] = figures.alone[name]
        rows[f"{name}: acquire, {contended}"] = figures.contended[name]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    for heading in ("p50, ms", "p99, ms", "per second"):
        table.add_column(heading, justify="right")
    for what, row in rows.items():
        table.add_row(what, f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.per_second:,.0f}")
    console.print(table)
