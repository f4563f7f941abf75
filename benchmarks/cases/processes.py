"""P9: several processes with many tasks each, on one semaphore."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from benchmarks._bench import Bench, Case
from benchmarks._children import Context, child
from benchmarks._comparison import (
    PAIRS,
    TO_PEER,
    Burst,
    Bursts,
    Comparison,
    Load,
    check_spans,
    of_pairs,
    quotients,
)
from benchmarks._libraries import FAIR, OURS, PEERS, ZSET, OpenSemaphore, Options
from benchmarks._stats import cpu_time

PROCESSES = 4
LOAD = Load(tasks=50, limit=20, work=0.001)
EVEN = "Jain's index"
PER_CORE = "pairs per CPU second of the server"
START_DELAY = 0.1  # seconds until all processes start at the same time

Result = tuple[list[float], list[tuple[float, float]]]


async def _compete(
    context: Context, label: str, options: Options, begin: float, end: float
) -> Result:
    """A job: acquire and release in all tasks; returns the waits, and the times of each use."""
    semaphore = await context.semaphore(label, options)
    waits: list[float] = []
    spans: list[tuple[float, float]] = []

    async def pairs() -> None:
        while (asked := time.monotonic()) < end:
            async with semaphore.permit():
                came = time.monotonic()
                waits.append(came - asked)
                await asyncio.sleep(LOAD.work)
                spans.append((came, time.monotonic()))

    await asyncio.sleep(begin - time.monotonic())
    async with asyncio.TaskGroup() as group:
        for _ in range(LOAD.tasks):
            group.create_task(pairs())
    return waits, spans


def jain(shares: Sequence[float]) -> float:
    """Jain's index of *shares*: 1 if all are equal, 1/n if one of n has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


async def _measure(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        # Entered first, so that it cleans up after the children have ended.
        comparison = await stack.enter_async_context(Comparison(bench))
        client = await stack.enter_async_context(Redis.from_url(bench.url))
        children = [await stack.enter_async_context(child(bench.loop)) for _ in range(PROCESSES)]

        async def turn(label: str, _semaphore: OpenSemaphore, options: Options) -> Burst:
            used = await cpu_time(client)
            begin = time.monotonic() + START_DELAY
            end = begin + 2 * bench.effort.burst
            results = await asyncio.gather(
                *(one.run(_compete, label, options, begin, end) for one in children)
            )
            spans = [span for _, of_one in results for span in of_one]
            check_spans(spans, LOAD.limit)
            waits = [wait for of_one, _ in results for wait in of_one]
            figures = {
                EVEN: jain([len(of_one) for of_one, _ in results]),
                PER_CORE: len(waits) / (await cpu_time(client) - used),
            }
            over = max((end for _, end in spans), default=end)
            return Burst(len(waits), over - begin, waits, figures)

        options = Options(url=bench.url, name="p9", limit=LOAD.limit, tasks=LOAD.tasks)
        await comparison.enter((*OURS, *PEERS), options, turn)
        bursts = await comparison.run()

        def tail_over_fair(label: str, own: Bursts) -> list[float] | None:
            return quotients(_p99(own), _p99(bursts[FAIR.label])) if label == ZSET.label else None

        faster = comparison.faster_than(comparison.best_peer())
        comparison.report(
            {
                PAIRS: of_pairs,
                TO_PEER: comparison.ours_only(faster),
                EVEN: lambda _, own: [burst.figures[EVEN] for burst in own],
                PER_CORE: lambda _, own: [burst.figures[PER_CORE] for burst in own],
                "p99, × FairSemaphore": tail_over_fair,
            }
        )


def _p99(bursts: Bursts) -> list[float]:
    return [statistics.quantiles(burst.waits, n=100)[98] for burst in bursts]


P9 = Case(
    "P9",
    "4 processes of 50 tasks, contended",
    f"{PROCESSES} processes with {LOAD.tasks} tasks each, limit {LOAD.limit}, and each sleeps 1 ms"
    " while it holds a permit; all start at the same time. Jain's index of the pairs by process: 1"
    f" if all have the same number, 1/{PROCESSES} if one process has all. The limit is checked"
    " with the clock that all processes share. The server's CPU time is that of INFO.",
    _measure,
)
