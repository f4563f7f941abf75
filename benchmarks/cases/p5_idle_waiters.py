"""P5: ten thousand who wait while nothing happens."""

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
EXECUTED = "commands/s with those in scripts"
CPU = "% of a core"
AIMS = (
    Aim(CONNECTIONS, 1, at_most=True),
    Aim(SENT, 2, at_most=True),
    Aim(CPU, 1, at_most=True),
)
HOW = (
    "The only permit is held elsewhere, and one process has so many tasks that wait for it:"
    " connections, what MONITOR sees, and the processor time of that process, once all are in"
    " line. Peers have fewer waiters, since each is a connection or polls; that number is beside"
    " them. Nobody acquires."
)


async def measure(setup: Setup) -> Table:
    """One library after the other: there is nothing to take turns in."""
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
        bulk = await stack.enter_async_context(child(setup.loop))
        before = await connections(client)
        await bulk.ask(Open(library.label, there))
        await bulk.ask(Wait(library.label, there, waiters))
        await asyncio.sleep(setup.effort.settle)
        opened_since = await connections(client) - before
        used = await bulk.ask(ReportUsage())
        seen = await traffic(setup.url, setup.effort.window)
        cpu = (await bulk.ask(ReportUsage())).cpu - used.cpu
        await bulk.ask(CheckStillWaiting())
        # Cancelled all at once, waiters of some peers leave places taken; ours may not.
        await bulk.stop()
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


CASE = Case("P5", "Many waiters in one process, nothing happens", measure)
