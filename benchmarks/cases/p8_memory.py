"""P8: what a permit and a waiter take up, here and at the server."""

import asyncio
from contextlib import AsyncExitStack

from redis.asyncio import Redis

from benchmarks._bulk import LONG, CheckStillWaiting, Hold, Open, Wait
from benchmarks._children import child
from benchmarks._comparison import attempt, name_for
from benchmarks._results import Absent, Acquire, Figure, Row, Table
from benchmarks._server_stats import key_memory, used_memory
from benchmarks._setup import Setup
from benchmarks._usage import ReportUsage
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, PEERS, Library, Options

KEYS = "server, keys: bytes each"
SERVER = "server, all: bytes each"
CLIENT = "client: bytes each"
HOW = (
    "A process of its own holds so many permits, or has so many tasks that wait while the only"
    " permit is held elsewhere. By difference, for each of them: MEMORY USAGE of the keys;"
    " used_memory of the server, which has the connections in it; and the resident memory of the"
    " process, with the tasks that hold, refresh or wait."
)


async def measure(setup: Setup) -> Table:
    """One library after the other: there is nothing to take turns in."""
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
        bulk = await stack.enter_async_context(child(setup.loop))
        await bulk.ask(Open(library.label, there))
        keys, server = await key_memory(client, name), await used_memory(client)
        use = await bulk.ask(ReportUsage(collect=True))
        if waiting:
            await bulk.ask(Wait(library.label, there, many))
        else:
            waits = await bulk.ask(Hold(library.label, there, many))
        await asyncio.sleep(setup.effort.settle)
        await bulk.ask(CheckStillWaiting())
        grown = await bulk.ask(ReportUsage(collect=True))
        figures = (
            Figure(KEYS, ((await key_memory(client, name) - keys) / many,)),
            Figure(SERVER, ((await used_memory(client) - server) / many,)),
            Figure(CLIENT, ((grown.memory - use.memory) / many,)),
        )
        await bulk.kill()
    return Row(label=library.label, setting=setting, acquire=Acquire.of(waits), figures=figures)


CASE = Case("P8", "Memory", measure)
