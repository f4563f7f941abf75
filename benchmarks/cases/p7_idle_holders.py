"""P7: ten thousand held permits, and no activity."""

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
EXECUTED = "commands/s including scripts"
CPU = "% of a core"
LOST = "lost"
LEASE = 10.0
AIMS = (
    Aim(SENT, 5, at_most=True),
    Aim(CPU, 3, at_most=True),
    Aim(LOST, 0, at_most=True),
)
HOW = (
    f"One process acquires that many permits at once and keeps them; the lease is {LEASE:g} s."
    " Acquire is the time of these requests. Then: commands by MONITOR, the CPU time of that"
    " process, and the number of permits that are lost at the end, according to the process or"
    " the server. Only one of the peers refreshes its permits."
)


async def measure(setup: Setup) -> Table:
    """Measure one library after the other, without turns."""
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
    async with library.open(options) as observer, child(setup.loop) as process:
        await process.run(Open(library.label, options))
        waits = await process.run(Hold(library.label, options, permits))
        await asyncio.sleep(setup.effort.settle)
        used = await process.run(ReportUsage())
        seen = await traffic(setup.url, setup.effort.window)
        cpu = (await process.run(ReportUsage())).cpu - used.cpu
        lost = max(await process.run(CountLost()), permits - await observer.held())
        await process.kill()
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


CASE = Case("P7", "Many held permits, no activity", measure)
