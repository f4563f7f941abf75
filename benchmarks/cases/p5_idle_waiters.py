"""P5: ten thousand waiters, and no activity."""

import asyncio
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from benchmarks._bulk import LONG, CheckStillWaiting, Open, Wait
from benchmarks._children import child
from benchmarks._comparison import attempt, name_for
from benchmarks._limit_check import Leaked
from benchmarks._results import Absent, Aim, Figure, Row, Table
from benchmarks._server_stats import connections, traffic
from benchmarks._setup import Setup
from benchmarks._usage import ReportUsage
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, PEERS, Library, Options

CONNECTIONS = "connections"
SENT = "commands/s"
EXECUTED = "commands/s including scripts"
CPU = "% of a core"
AIMS = (
    Aim(CONNECTIONS, 1, at_most=True),
    Aim(SENT, 2, at_most=True),
    Aim(CPU, 1, at_most=True),
)
HOW = (
    "Another process holds the only permit, and many tasks of one process wait for it. Measured"
    " once all wait: connections, commands by MONITOR, and the CPU time of that process. Peers"
    " have fewer waiters, as noted, because each needs a connection or polls. Nothing is acquired"
    " meanwhile."
)


async def measure(setup: Setup) -> Table:
    """Measure one library after the other, without turns."""
    rows: list[Row] = []
    absent: list[Absent] = []
    for library in (*OURS, *PEERS):
        waiters = setup.effort.bulk_of(library)
        with attempt(library, absent) as installed:
            if installed:
                setup.progress(f"{library.label}, {waiters:,} waiters")
                rows.append(await _row(setup, library, waiters))
    return Table(case="P5", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=absent)


async def _row(setup: Setup, library: Library, waiters: int) -> Row:
    name = name_for("p5")
    here = Options(url=setup.url, name=name, limit=1, tasks=1, lease=LONG)
    there = Options(url=setup.url, name=name, limit=1, tasks=waiters)
    async with AsyncExitStack() as stack:
        semaphore = await stack.enter_async_context(library.open(here))
        stack.push_async_callback(semaphore.clear)
        await stack.enter_async_context(semaphore.permit())
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        process = await stack.enter_async_context(child(setup.loop))
        before = await connections(client)
        await process.run(Open(library.label, there))
        await process.run(Wait(library.label, there, waiters))
        await asyncio.sleep(setup.effort.settle)
        opened_since = await connections(client) - before
        used = await process.run(ReportUsage())
        seen = await traffic(setup.url, setup.effort.window)
        cpu = (await process.run(ReportUsage())).cpu - used.cpu
        await process.run(CheckStillWaiting())
        # When many waiters are cancelled at once, some peers leak permits; ours must not.
        await process.stop()
        if library.ours and (held := await semaphore.held()) != 1:
            raise Leaked(held, 1)
    return Row(
        label=library.label,
        setting=f"{waiters:,} waiters",
        figures=(
            Figure(CONNECTIONS, (opened_since,)),
            Figure(SENT, (seen.sent,)),
            Figure(EXECUTED, (seen.executed,)),
            Figure(CPU, (100 * cpu / setup.effort.window,)),
        ),
        aims=AIMS if library.ours else (),
    )


CASE = Case("P5", "Many waiters in one process, no activity", measure)
