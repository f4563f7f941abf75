"""P7: ten thousand permits that are held while nothing happens."""

import asyncio

from benchmarks._bulk import CountLost, Hold, Open
from benchmarks._children import child
from benchmarks._comparison import attempt, name_for
from benchmarks._results import Absent, Acquire, Aim, Figure, Row, Table
from benchmarks._server_stats import traffic
from benchmarks._setup import Setup
from benchmarks._usage import ReportUsage
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, PY_REDIS_SEMAPHORE, Library, Options

SENT = "commands/s"
EXECUTED = "commands/s with those in scripts"
CPU = "% of a core"
LOST = "lost"
LEASE = 10.0
AIMS = (
    Aim(SENT, 5, at_most=True),
    Aim(CPU, 5, at_most=True),
    Aim(LOST, 0, at_most=True),
)
HOW = (
    f"One process takes so many permits at once, and keeps them; a lease is {LEASE:g} s. Acquire"
    " is that of all at once. Then: what MONITOR sees, the processor time of that process, and"
    " how many permits fewer than that are held in the end, as it or the server has it. Of the"
    " peers only one refreshes what it holds."
)


async def measure(setup: Setup) -> Table:
    """One library after the other: there is nothing to take turns in."""
    rows: list[Row] = []
    absent: list[Absent] = []
    for library in (*OURS, PY_REDIS_SEMAPHORE):
        permits = setup.effort.bulk_of(library)
        with attempt(library, absent) as installed:
            if installed:
                setup.progress(f"{library.label}, {permits:,} permits")
                rows.append(await _row(setup, library, permits))
    return Table(case="P7", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=absent)


async def _row(setup: Setup, library: Library, permits: int) -> Row:
    options = Options(
        url=setup.url, name=name_for("p7"), limit=permits, tasks=permits, lease=LEASE
    )
    async with library.open(options) as observer, child(setup.loop) as bulk:
        await bulk.ask(Open(library.label, options))
        waits = await bulk.ask(Hold(library.label, options, permits))
        await asyncio.sleep(setup.effort.settle)
        used = await bulk.ask(ReportUsage())
        seen = await traffic(setup.url, setup.effort.window)
        cpu = (await bulk.ask(ReportUsage())).cpu - used.cpu
        lost = max(await bulk.ask(CountLost()), permits - await observer.held())
        await bulk.kill()
        await observer.clear()
    return Row(
        label=library.label,
        setting=f"{permits:,} permits",
        acquire=Acquire.of(waits),
        figures=(
            Figure(SENT, (seen.sent,)),
            Figure(EXECUTED, (seen.executed,)),
            Figure(CPU, (100 * cpu / setup.effort.window,)),
            Figure(LOST, (lost,)),
        ),
        aims=AIMS if library.ours else (),
    )


CASE = Case("P7", "Many permits held, nothing happens", measure)
