"""P2: many tasks of one process, and a semaphore that has room for all."""

from functools import partial

from benchmarks._baselines import BATCH, Scripts
from benchmarks._measure import Load
from benchmarks._results import Absent, Aim, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases._contended import TO_NODE, TO_PEER, compare, rows_of
from benchmarks.libraries import OURS, PEERS

BASELINE = f"scripts of {BATCH} ids"
TO_FLOOR = f"÷ scripts of {BATCH} ids"
TO_FLOOR_AIMS = {50: 0.6, 200: 0.75, 1000: 0.8}
HOW = (
    f"Each task acquires and releases, again and again. Floor: scripts that only add,"
    f" with an expiry, and remove {BATCH} members each, called by redis-py one"
    f" after the other: what a perfect group commit of {BATCH} would cost."
)


async def measure(setup: Setup) -> Table:
    """All libraries, Node and the floor in turn, for each number of tasks."""
    rows: list[Row] = []
    absent: dict[Absent, None] = {}
    for tasks in setup.effort.tasks:
        setup.progress(f"{tasks} tasks")
        aims = [Aim(TO_PEER, 15.0), Aim(TO_NODE, 3.0)]
        if tasks in TO_FLOOR_AIMS:
            aims.insert(0, Aim(TO_FLOOR, TO_FLOOR_AIMS[tasks]))
        async with (
            Scripts.at(setup.url) as scripts,
            compare(setup, (*OURS, *PEERS), Load(tasks=tasks, limit=2 * tasks)) as comparison,
        ):
            comparison.add(BASELINE, partial(scripts.batched, setup.effort.burst))
            await comparison.run()
        ours = {library.label: aims for library in OURS}
        rows += rows_of(comparison, f"{tasks:,} tasks", {BASELINE: TO_FLOOR}, ours)
        absent |= dict.fromkeys(comparison.absent)
    return Table(
        case="P2", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=[*absent]
    )


CASE = Case("P2", "Many tasks in one process, a free semaphore", measure, both_loops=True)
