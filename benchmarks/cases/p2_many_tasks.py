"""P2: many tasks in one process, and a semaphore with permits for all of them."""

from functools import partial

from benchmarks._baselines import BATCH, Scripts
from benchmarks._measure import Load
from benchmarks._results import Absent, Aim, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases._contended import TO_NODE, TO_PEER, compare, rows_of
from benchmarks.libraries import ALL_OURS, LINGERING, OURS, PEERS

BASELINE = f"scripts of {BATCH} ids"
TO_BASELINE = f"÷ scripts of {BATCH} ids"
AIMS = {
    **{library.label: [Aim(TO_PEER, 15.0), Aim(TO_NODE, 1.3)] for library in OURS},
    **{
        library.label: [Aim(TO_PEER, 30.0), Aim(TO_NODE, 3.0), Aim(TO_BASELINE, 1.0)]
        for library in LINGERING
    },
}
HOW = (
    f"Each task acquires and releases repeatedly. Baseline: scripts that only add {BATCH} members"
    f" with an expiry, and remove them, called with redis-py one after the other: the cost of a"
    f" perfect batch of {BATCH}."
)


async def measure(setup: Setup) -> Table:
    """Measure all libraries, Node and the baseline in turns, for each number of tasks."""
    rows: list[Row] = []
    absent: dict[Absent, None] = {}
    for tasks in setup.effort.tasks:
        setup.progress(f"{tasks} tasks")
        async with (
            Scripts.at(setup.url) as scripts,
            compare(setup, (*ALL_OURS, *PEERS), Load(tasks=tasks, limit=2 * tasks)) as comparison,
        ):
            comparison.add(BASELINE, partial(scripts.batched, setup.effort.burst))
            await comparison.run()
        rows += rows_of(comparison, f"{tasks:,} tasks", {BASELINE: TO_BASELINE}, AIMS)
        absent |= dict.fromkeys(comparison.absent)
    return Table(
        case="P2", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=[*absent]
    )


CASE = Case("P2", "Many tasks in one process, a free semaphore", measure, both_loops=True)
