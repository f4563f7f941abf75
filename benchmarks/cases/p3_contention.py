"""P3: ten times as many tasks as permits, each with a little work."""

from dataclasses import replace

from benchmarks._measure import Burst, Load
from benchmarks._results import Acquire, Aim, Figure, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases._contended import compare, rows_of
from benchmarks.libraries import ALL_OURS, FAIR, IN_PROCESS, LINGERING, PEERS, ZSET

LOAD = Load(tasks=50, limit=5, work=0.001)
TO_BASELINE = "÷ asyncio.Semaphore"
UNEVEN = "longest wait ÷ median"
AIMS = {
    FAIR.label: [Aim(TO_BASELINE, 0.80), Aim(UNEVEN, 1.3, at_most=True)],
    ZSET.label: [Aim(TO_BASELINE, 0.80), Aim(UNEVEN, 1.3, at_most=True)],
    **{library.label: [Aim(TO_BASELINE, 0.93)] for library in LINGERING},
}
HOW = (
    f"{LOAD.tasks} tasks, limit {LOAD.limit}, and each sleeps 1 ms while it holds a permit."
    " Baseline: asyncio's own semaphore in the process. Evenness of waiting is the ratio of the"
    " longest wait of a round to its median."
)


async def measure(setup: Setup) -> Table:
    """Measure all libraries, Node and the baseline in turns."""
    setup.progress(f"{LOAD.tasks} tasks, limit {LOAD.limit}")
    async with compare(setup, (*ALL_OURS, *PEERS, IN_PROCESS), LOAD) as comparison:
        await comparison.run()
    rows = [
        replace(row, figures=(*row.figures, _unevenness(comparison.bursts[row.label])))
        for row in rows_of(comparison, "", {IN_PROCESS.label: TO_BASELINE}, {})
    ]
    rows = [replace(row, aims=tuple(AIMS.get(row.label, ()))) for row in rows]
    return Table(
        case="P3", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=comparison.absent
    )


def _unevenness(bursts: list[Burst]) -> Figure:
    rounds = (Acquire.of(burst.waits) for burst in bursts)
    return Figure(UNEVEN, tuple(acquire.longest / acquire.p50 for acquire in rounds if acquire))


CASE = Case("P3", "50 tasks, limit 5, 1 ms of work", measure, both_loops=True)
