"""P9: several processes with many tasks each, on one semaphore."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import Comparison, name_for
from benchmarks._limit_check import check_spans
from benchmarks._measure import Burst, Load, all_waits, fastest, rates, ratio
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks._statistics import jain
from benchmarks.cases._base import Case
from benchmarks.cases._contended import PAIRS, TO_PEER
from benchmarks.libraries import ALL_OURS, FAIR, PEERS, ZSET, OpenSemaphore, Options

PROCESSES = 4
LOAD = Load(tasks=50, limit=20, work=0.001)
EVEN = "Jain's index"
AIMS = {
    FAIR.label: (Aim(TO_PEER, 2.0), Aim(EVEN, 0.99)),
    ZSET.label: (Aim(TO_PEER, 2.0), Aim(EVEN, 0.95)),
}
START_DELAY = 0.1  # seconds until all processes start at the same time
HOW = (
    f"{PROCESSES} processes with {LOAD.tasks} tasks each, limit {LOAD.limit}, and each sleeps 1 ms"
    " while it holds a permit; all start at the same time. Jain's index of the pairs by process: 1"
    f" if all have the same number, 1/{PROCESSES} if one process has all. The limit is checked"
    " with the clock that all processes share."
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
    evenness: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        # Entered first, so that it cleans up after the children have ended.
        comparison = await stack.enter_async_context(Comparison(setup))
        processes = [await stack.enter_async_context(child(setup.loop)) for _ in range(PROCESSES)]
        for library in (*ALL_OURS, *PEERS):
            name = name_for("p9")
            options = Options(url=setup.url, name=name, limit=LOAD.limit, tasks=LOAD.tasks)
            if await comparison.enter(library, options) is not None:
                results = evenness[library.label] = []
                turn = partial(_turn, setup, processes, library.label, options, results)
                comparison.add(library.label, turn)
        setup.progress(f"{PROCESSES} processes")
        await comparison.run()
    rows = _rows(comparison.bursts, evenness)
    return Table(
        case="P9", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=comparison.absent
    )


async def _turn(
    setup: Setup, processes: list[Child], label: str, options: Options, evenness: list[float]
) -> Burst:
    begin = time.monotonic() + START_DELAY
    job = Compete(label, options, begin, begin + 2 * setup.effort.burst)
    results = await asyncio.gather(*(one.run(job) for one in processes))
    spans = [span for result in results for span in result.spans]
    check_spans(spans, LOAD.limit)
    evenness.append(jain([len(result.waits) for result in results]))
    waits = [wait for result in results for wait in result.waits]
    over = max((end for _, end in spans), default=job.end)
    return Burst(len(waits), over - begin, waits)


def _rows(bursts: dict[str, list[Burst]], evenness: dict[str, list[float]]) -> list[Row]:
    best = fastest(bursts, [library.label for library in PEERS])
    rows: list[Row] = []
    for label, own in bursts.items():
        figures = [rates(PAIRS, own)]
        if best is not None and label in {library.label for library in ALL_OURS}:
            figures.append(ratio(TO_PEER, own, bursts[best]))
        figures.append(Figure(EVEN, tuple(evenness[label][-len(own) :])))
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
