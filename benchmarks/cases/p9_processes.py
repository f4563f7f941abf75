"""P9: several processes with many tasks each, on one semaphore."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import Comparison, name_for
from benchmarks._limit_check import check_spans
from benchmarks._measure import Burst, Load, all_waits, fastest, rates, ratio
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._server_stats import cpu_time
from benchmarks._setup import Setup
from benchmarks._statistics import jain
from benchmarks.cases._base import Case
from benchmarks.cases._contended import PAIRS, TO_PEER
from benchmarks.libraries import ALL_OURS, FAIR, PEERS, ZSET, OpenSemaphore, Options

PROCESSES = 4
LOAD = Load(tasks=50, limit=20, work=0.001)
EVEN = "Jain's index"
PER_CORE = "pairs per CPU second of the server"
AIMS = {
    FAIR.label: (Aim(TO_PEER, 2.0), Aim(EVEN, 0.99)),
    ZSET.label: (Aim(TO_PEER, 2.0), Aim(EVEN, 0.95)),
}
START_DELAY = 0.1  # seconds until all processes start at the same time
HOW = (
    f"{PROCESSES} processes with {LOAD.tasks} tasks each, limit {LOAD.limit}, and each sleeps 1 ms"
    " while it holds a permit; all start at the same time. Jain's index of the pairs by process: 1"
    f" if all have the same number, 1/{PROCESSES} if one process has all. The limit is checked"
    " with the clock that all processes share. The server's CPU time is that of INFO."
)


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The result of one process.

    Attributes:
        waits: duration of each acquire in seconds.
        spans: start and end of the use of each permit, by ``time.monotonic()``.
    """

    waits: list[float]
    spans: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Compete:
    """Acquire and release in all tasks, from *begin* to *end*."""

    label: str
    options: Options
    begin: float
    end: float

    async def run(self, context: JobContext) -> ProcessResult:
        semaphore = await context.semaphore(self.label, self.options)
        result = ProcessResult([], [])
        await asyncio.sleep(self.begin - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for _ in range(LOAD.tasks):
                group.create_task(self._pairs(semaphore, result))
        return result

    async def _pairs(self, semaphore: OpenSemaphore, result: ProcessResult) -> None:
        while (asked := time.monotonic()) < self.end:
            async with semaphore.permit():
                came = time.monotonic()
                result.waits.append(came - asked)
                await asyncio.sleep(LOAD.work)
                result.spans.append((came, time.monotonic()))


async def measure(setup: Setup) -> Table:
    """Measure all libraries in turns, in the same processes."""
    figures: dict[str, list[tuple[float, float]]] = {}
    async with AsyncExitStack() as stack:
        # Entered first, so that it cleans up after the children have ended.
        comparison = await stack.enter_async_context(Comparison(setup))
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        processes = [await stack.enter_async_context(child(setup.loop)) for _ in range(PROCESSES)]
        for library in (*ALL_OURS, *PEERS):
            name = name_for("p9")
            options = Options(url=setup.url, name=name, limit=LOAD.limit, tasks=LOAD.tasks)
            if await comparison.enter(library, options) is not None:
                turn = partial(_turn, setup, client, processes, library.label, options, figures)
                comparison.add(library.label, turn)
        setup.progress(f"{PROCESSES} processes")
        await comparison.run()
    rows = _rows(comparison.bursts, figures)
    return Table(
        case="P9", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=comparison.absent
    )


async def _turn(
    setup: Setup,
    client: Redis,
    processes: list[Child],
    label: str,
    options: Options,
    figures: dict[str, list[tuple[float, float]]],
) -> Burst:
    before = await cpu_time(client)
    begin = time.monotonic() + START_DELAY
    job = Compete(label, options, begin, begin + 2 * setup.effort.burst)
    results = await asyncio.gather(*(one.run(job) for one in processes))
    spans = [span for result in results for span in result.spans]
    check_spans(spans, LOAD.limit)
    waits = [wait for result in results for wait in result.waits]
    even = jain([len(result.waits) for result in results])
    per_core = len(waits) / (await cpu_time(client) - before)
    figures.setdefault(label, []).append((even, per_core))
    over = max((end for _, end in spans), default=job.end)
    return Burst(len(waits), over - begin, waits)


def _rows(
    bursts: dict[str, list[Burst]], of_turns: dict[str, list[tuple[float, float]]]
) -> list[Row]:
    best = fastest(bursts, [library.label for library in PEERS])
    rows: list[Row] = []
    for label, own in bursts.items():
        figures = [rates(PAIRS, own)]
        if best is not None and label in {library.label for library in ALL_OURS}:
            figures.append(ratio(TO_PEER, own, bursts[best]))
        values = zip(*of_turns[label][-len(own) :], strict=True)
        figures += map(Figure, (EVEN, PER_CORE), values)
        rows.append(
            Row(
                label=label,
                acquire=Acquire.of(all_waits(own)),
                figures=tuple(figures),
                aims=AIMS.get(label, ()) if best is not None else (),
            )
        )
    return rows


CASE = Case("P9", "4 processes of 50 tasks, contended", measure)
