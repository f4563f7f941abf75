"""P8: the memory of a permit and of a waiter, in the client and on the server."""

import asyncio
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from benchmarks._bulk import LONG, CheckStillWaiting, Hold, Open, Wait
from benchmarks._children import child
from benchmarks._comparison import attempt, name_for
from benchmarks._results import Absent, Acquire, Aim, Figure, Row, Table
from benchmarks._server_stats import key_memory, used_memory
from benchmarks._setup import Setup
from benchmarks._usage import ReportUsage
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, PEERS, Library, Options

KEYS = "server, keys: bytes each"
SERVER = "server, all: bytes each"
CLIENT = "client: bytes each"
AIM = Aim(CLIENT, 3000, at_most=True)
HOW = (
    "One process holds that many permits, or has that many tasks that wait while another process"
    " holds the only permit. Differences, divided by the number: MEMORY USAGE of the keys;"
    " used_memory of the server, including connections; and the resident memory of the process,"
    " including the tasks that hold, refresh or wait."
)


async def measure(setup: Setup) -> Table:
    """Measure one library after the other, without turns."""
    rows: list[Row] = []
    absent: list[Absent] = []
    for library in (*OURS, *PEERS):
        with attempt(library, absent) as installed:
            if installed:
                rows += [await _row(setup, library, waiting=waiting) for waiting in (False, True)]
    return Table(case="P8", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=absent)


async def _row(setup: Setup, library: Library, *, waiting: bool) -> Row:
    many, name = setup.effort.bulk_of(library), name_for("p8")
    setting = f"{many:,} {'waiters' if waiting else 'permits'}"
    setup.progress(f"{library.label}, {setting}")
    limit = 1 if waiting else many
    here = Options(url=setup.url, name=name, limit=limit, tasks=1, lease=LONG)
    there = Options(url=setup.url, name=name, limit=limit, tasks=many, lease=LONG)
    waits: list[float] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        observer = await stack.enter_async_context(library.open(here))
        stack.push_async_callback(observer.clear)
        if waiting:
            await stack.enter_async_context(observer.permit())
        process = await stack.enter_async_context(child(setup.loop))
        await process.run(Open(library.label, there))
        keys, server = await key_memory(client, name), await used_memory(client)
        use = await process.run(ReportUsage(collect=True))
        if waiting:
            await process.run(Wait(library.label, there, many))
        else:
            waits = await process.run(Hold(library.label, there, many))
        await asyncio.sleep(setup.effort.settle)
        await process.run(CheckStillWaiting())
        grown = await process.run(ReportUsage(collect=True))
        figures = (
            Figure(KEYS, ((await key_memory(client, name) - keys) / many,)),
            Figure(SERVER, ((await used_memory(client) - server) / many,)),
            Figure(CLIENT, ((grown.memory - use.memory) / many,)),
        )
        await process.kill()
    return Row(
        label=library.label,
        setting=setting,
        acquire=Acquire.of(waits),
        figures=figures,
        aims=(AIM,) if library.ours and not waiting else (),
    )


CASE = Case("P8", "Memory", measure)
