"""P6: whether a pair costs more, the more permits are held and the more requests wait."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from redis.asyncio import Redis

from benchmarks._bulk import LONG, Hold
from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import name_for
from benchmarks._limit_check import Leaked, LimitCheck
from benchmarks._measure import Burst, Load, all_waits, burst, rates
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._server_stats import scripts, slowest
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, Library, OpenSemaphore, Options, OurSemaphore

COST = "µs a pair"
GROWTH = "× that of the fewest"
SERVER = "server µs a script"
AIMED_AT = 100_000  # holders, beside which a pair is compared to one beside the fewest
WORST = "worst script, ms"
LATE = "granted after the lease's end, ms"
HOW = (
    "Held: another process holds so many permits, and one task here acquires and releases beside"
    " them. Held and waiting: another process holds as many, and as many of its tasks are in"
    " line for one permit more, which goes round: a pair is one release, and the grant of the"
    " next in line; acquire is that grant. Server time is that of EVALSHA by INFO commandstats;"
    " the worst script is by SLOWLOG, which notes what took 0.1 ms. Expiry: a process with so"
    " many permits is killed, and one waiter takes over when its lease ends."
)


@dataclass(frozen=True, slots=True)
class Queue:
    """Have *count* tasks in line for one permit that goes round, once the limit is raised."""

    label: str
    options: Options
    count: int

    async def run(self, context: JobContext) -> None:
        semaphore = await context.semaphore(self.label, self.options)
        check = LimitCheck(1)
        turns = context.shared[self.label] = list[float]()

        async def pass_around() -> None:
            while True:
                async with semaphore.permit():
                    check.enter()
                    turns.append(time.perf_counter())
                    check.leave()

        context.tasks += [asyncio.create_task(pass_around()) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class PassAround:
    """Let the permit go round for a while; each time is from one who is inside to the next."""

    label: str
    options: Options
    seconds: float

    async def run(self, context: JobContext) -> Burst:
        semaphore = await context.semaphore(self.label, self.options)
        assert isinstance(semaphore, OurSemaphore)
        turns: list[float] = context.shared[self.label]
        turns.clear()
        await semaphore.native.set_limit(self.options.limit + 1)
        await asyncio.sleep(self.seconds)
        await semaphore.native.set_limit(self.options.limit)
        for task in context.tasks:
            if task.done():
                task.result()
        waits = [later - earlier for earlier, later in pairwise(turns)]
        return Burst(len(waits), sum(waits), waits)


@dataclass(slots=True)
class Population:
    """A number of holders, and perhaps of waiters, and what a pair costs beside them."""

    setting: str
    library: Library
    options: Options
    held: int
    bulk: Child
    measured: OpenSemaphore | None
    bursts: list[Burst]
    server: list[float]
    worst: list[float]

    async def turn(self, setup: Setup, client: Redis) -> None:
        """Measure once more."""
        seconds = setup.effort.burst
        async with slowest(client) as slow:
            before = await scripts(client)
            if self.measured is not None:
                done = await burst(self.measured, Load(tasks=1, limit=1), seconds)
            else:
                done = await self.bulk.ask(PassAround(self.library.label, self.options, seconds))
            self.server.append((await scripts(client)).since(before))
        self.bursts.append(done)
        self.worst += slow.ms

    def discard(self) -> None:
        """All so far was to warm up; but for the worst script, which is the worst anyhow."""
        self.bursts.clear()
        self.server.clear()

    def row(self) -> Row:
        cost = rates(COST, self.bursts)
        figures = [
            replace(cost, values=tuple(1e6 / rate for rate in cost.values)),
            Figure(SERVER, tuple(self.server)),
        ]
        if self.worst:
            figures.append(Figure(WORST, (max(self.worst),)))
        return Row(
            label=self.library.label,
            setting=self.setting,
            acquire=Acquire.of(all_waits(self.bursts)),
            figures=tuple(figures),
        )


async def measure(setup: Setup) -> Table:
    """Mode by mode; within one, the numbers of holders take turns."""
    rows: list[Row] = []
    for library in OURS:
        for waiting in (False, True):
            rows += await _growth(setup, library, waiting=waiting)
        rows.append(await _expiry(setup, library))
    return Table(case="P6", title=CASE.title, how=HOW, loop=setup.loop, rows=rows)


async def _growth(setup: Setup, library: Library, *, waiting: bool) -> list[Row]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        populations: list[Population] = []
        for held in setup.effort.populations:
            setting = f"{held:,} held" + (" and waiting" if waiting else "")
            setup.progress(f"{library.label}, {setting}")
            made = _population(setup, library, held, setting, waiting=waiting)
            populations.append(await stack.enter_async_context(made))
        for number in range(-setup.effort.warm_ups, setup.effort.rounds):
            for population in populations:
                if number == 0:
                    population.discard()
                await population.turn(setup, client)
    rows = [population.row() for population in populations]
    fewest = rows[0].figure(COST).values
    for number, row in enumerate(rows):
        pairs = zip(row.figure(COST).values, fewest, strict=True)
        growth = Figure(GROWTH, tuple(own / other for own, other in pairs))
        aims = (Aim(GROWTH, 1.3, at_most=True),) if populations[number].held >= AIMED_AT else ()
        rows[number] = replace(row, figures=(row.figures[0], growth, *row.figures[1:]), aims=aims)
    return rows


@asynccontextmanager
async def _population(
    setup: Setup, library: Library, held: int, setting: str, *, waiting: bool
) -> AsyncGenerator[Population]:
    options = Options(url=setup.url, name=name_for("p6"), limit=held, tasks=1, lease=LONG)
    async with AsyncExitStack() as stack:
        bulk = await stack.enter_async_context(child(setup.loop))
        mine = replace(options, limit=held + 1, lease=10.0)
        measured = await stack.enter_async_context(library.open(mine))
        stack.push_async_callback(measured.clear)
        stack.push_async_callback(bulk.kill)
        await bulk.ask(Hold(library.label, options, held))
        if waiting:
            await bulk.ask(Queue(library.label, options, held))
            await asyncio.sleep(setup.effort.settle)
        yield Population(
            setting, library, options, held, bulk, None if waiting else measured, [], [], []
        )
        if (left := await measured.held()) != held:
            raise Leaked(left, held)


async def _expiry(setup: Setup, library: Library) -> Row:
    """Many permits end at once, and somebody waits for one."""
    many, lease = setup.effort.bulk, setup.effort.lease
    setup.progress(f"{library.label}, {many:,} permits expire")
    options = Options(url=setup.url, name=name_for("p6"), limit=many, tasks=1, lease=lease)
    async with (
        Redis.from_url(setup.url) as client,
        library.open(options) as waiter,
        child(setup.loop) as bulk,
    ):
        await bulk.ask(Hold(library.label, options, many))
        await asyncio.sleep(lease)  # until all were refreshed together, once or more
        await bulk.kill()
        async with slowest(client) as slow:
            ends = await _first_expiry(waiter)
            async with waiter.permit():
                late = time.monotonic() - ends
            await waiter.held()
        await waiter.clear()
    figures = [Figure(LATE, (1000 * late,)), *(Figure(WORST, (ms,)) for ms in slow.ms)]
    return Row(label=library.label, setting=f"{many:,} expire", figures=tuple(figures))


async def _first_expiry(waiter: OpenSemaphore) -> float:
    """When the permit that ends first does so, by ``time.monotonic()``."""
    assert isinstance(waiter, OurSemaphore)
    status = await waiter.native.status(max_entries=1)
    return time.monotonic() + min(holder.expires_in for holder in status.holders)


CASE = Case("P6", "A pair beside many holders and waiters", measure)
