"""P5: ten thousand who wait while nothing happens."""

import asyncio
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from benchmarks._children import child
from benchmarks._contest import attempt, name_for
from benchmarks._crowds import LONG, CheckInPlace, Open, Wait
from benchmarks._gauge import Leaked
from benchmarks._results import Absent, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks._usage import TellUse
from benchmarks._watch import connections, traffic
from benchmarks.cases._base import Case
from benchmarks.contenders import OURS, PEERS, Library, Terms

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
        waiters = setup.effort.crowd_of(library)
        with attempt(library, absent) as installed:
            if installed:
                setup.say(f"{library.label}, {waiters:,} waiters")
                rows.append(await _row(setup, library, waiters))
    return Table(case="P5", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=absent)


async def _row(setup: Setup, library: Library, waiters: int) -> Row:
    name = name_for("p5")
    here = Terms(url=setup.url, name=name, limit=1, tasks=1, lease=LONG)
    there = Terms(url=setup.url, name=name, limit=1, tasks=waiters)
    async with AsyncExitStack() as stack:
        contender = await stack.enter_async_context(library.open(here))
        stack.push_async_callback(contender.clear)
        await stack.enter_async_context(contender.permit())
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        crowd = await stack.enter_async_context(child(setup.loop))
        before = await connections(client)
        await crowd.ask(Open(library.label, there))
        await crowd.ask(Wait(library.label, there, waiters))
        await asyncio.sleep(setup.effort.settle)
        opened_since = await connections(client) - before
        used = await crowd.ask(TellUse())
        heard = await traffic(setup.url, setup.effort.window)
        cpu = (await crowd.ask(TellUse())).cpu - used.cpu
        await crowd.ask(CheckInPlace())
        # Cancelled all at once, waiters of some peers leave places taken; ours may not.
        await crowd.dismiss()
        if library.ours and (held := await contender.held()) != 1:
            raise Leaked(held, 1)
    return Row(
        who=library.label,
        setting=f"{waiters:,} waiters",
        figures=(
            Figure(CONNECTIONS, (opened_since,)),
            Figure(SENT, (heard.sent,)),
            Figure(EXECUTED, (heard.executed,)),
            Figure(CPU, (100 * cpu / setup.effort.window,)),
        ),
        aims=AIMS if library.ours else (),
    )


CASE = Case("P5", "Many waiters in one process, nothing happens", measure)
