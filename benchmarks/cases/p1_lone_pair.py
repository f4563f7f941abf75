"""P1: one task, and a free semaphore."""

from dataclasses import replace
from functools import partial

from benchmarks._baselines import BlockingSocket, Scripts
from benchmarks._measure import Load, ratio
from benchmarks._results import Aim, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases._contended import TO_PEER, compare, rows_of
from benchmarks.libraries import ALL_OURS, LINGERING, OURS, PEERS, REDIS_LOCK

BASELINE = "two minimal evalsha"
SOCKET = "two minimal evalsha, blocking socket"
TIME = "time, × two minimal evalsha"
AIMS = {
    **{library.label: Aim(TIME, 0.60, at_most=True) for library in OURS},
    **{library.label: Aim(TIME, 0.03, at_most=True) for library in LINGERING},
}
HOW = (
    "One task acquires and releases repeatedly; the limit of a Lock is 1. Baselines: two scripts"
    " that only add a member with an expiry, and remove it, called with redis-py one after the"
    " other; and the same over a blocking socket, without event loop and client library."
)


async def measure(setup: Setup) -> Table:
    """Measure all libraries, the Lock, Node and both baselines in turns."""
    seconds = setup.effort.burst
    socket = BlockingSocket(setup.url)
    libraries = (*ALL_OURS, *PEERS, REDIS_LOCK)
    try:
        async with (
            Scripts.at(setup.url) as scripts,
            compare(setup, libraries, Load(tasks=1, limit=1)) as comparison,
        ):
            comparison.add(BASELINE, partial(scripts.one_by_one, seconds))
            comparison.add(SOCKET, partial(socket.one_by_one, seconds))
            setup.progress("one task")
            await comparison.run()
    finally:
        socket.close()
    baseline = comparison.bursts[BASELINE]
    rows: list[Row] = []
    faster = Aim(TO_PEER, 1.0)
    for row in rows_of(comparison, "", {}, {label: [faster] for label in AIMS}):
        # A ratio of times, not of rates: this aim is about the time that a caller waits.
        time = ratio(TIME, baseline, comparison.bursts[row.label])
        figures = (row.figures[0], time, *row.figures[1:])
        own = AIMS.get(row.label)
        rows.append(replace(row, figures=figures, aims=(own, *row.aims) if own else ()))
    return Table(
        case="P1", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=comparison.absent
    )


CASE = Case("P1", "One task, a free semaphore", measure, both_loops=True)
