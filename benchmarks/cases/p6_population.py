"""P6: the cost of a pair by the number of holders and waiters."""

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

COST = "µs per pair"
GROWTH = "× that with the fewest"
SERVER = "server µs per script"
AIMED_AT = 100_000  # the aim applies from so many holders on
WORST = "slowest script, ms"
LATE = "grant after the end of the lease, ms"
HOW = (
    "Held: another process holds that many permits, while one task acquires and releases another."
    " Held and waiting: another process holds that many, and as many of its tasks wait for one"
    " more permit, which is passed from task to task: a pair is one release and the grant to the"
    " next waiter; acquire is that grant. Server time is that of EVALSHA in INFO commandstats; the"
    " slowest script is from SLOWLOG with a threshold of 0.1 ms. Expiry: a process with that many"
    " permits is killed, and one waiter gets a permit when its lease ends."
)


@dataclass(frozen=True, slots=True)
class Queue:
    """Start *count* tasks that pass one permit around once the limit is raised."""

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
    """Pass the permit around for *seconds*; the times are from one task to the next."""

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
    """A number of holders, and optionally of waiters, and the cost of a pair beside them."""

    setting: str
    library: Library
    options: Options
    held: int
    process: Child
    measured: OpenSemaphore | None
    bursts: list[Burst]
    server: list[float]
    worst: list[float]

    async def turn(self, setup: Setup, client: Redis) -> None:
        """Measure one round."""
        seconds = setup.effort.burst
        async with slowest(client) as slow:
            before = await scripts(client)
            if self.measured is not None:
                done = await burst(self.measured, Load(tasks=1, limit=1), seconds)
            else:
                done = await self.process.run(
                    PassAround(self.library.label, self.options, seconds)
                )
            self.server.append((await scripts(client)).since(before))
        self.bursts.append(done)
        self.worst += slow.ms

    def discard(self) -> None:
        """Discard the warm-up rounds. The slowest script counts anyway."""
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
    """Measure one mode after the other; within a mode, the populations take turns."""
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
        process = await stack.enter_async_context(child(setup.loop))
        mine = replace(options, limit=held + 1, lease=10.0)
        measured = await stack.enter_async_context(library.open(mine))
        stack.push_async_callback(measured.clear)
        stack.push_async_callback(process.kill)
        await process.run(Hold(library.label, options, held))
        if waiting:
            await process.run(Queue(library.label, options, held))
            await asyncio.sleep(setup.effort.settle)
        yield Population(
            setting, library, options, held, process, None if waiting else measured, [], [], []
        )
        if (left := await measured.held()) != held:
            raise Leaked(left, held)


async def _expiry(setup: Setup, library: Library) -> Row:
    """Many permits expire together, and one task waits for a permit."""
    many, lease = setup.effort.bulk, setup.effort.lease
    setup.progress(f"{library.label}, {many:,} permits expire")
    options = Options(url=setup.url, name=name_for("p6"), limit=many, tasks=1, lease=lease)
    async with (
        Redis.from_url(setup.url) as client,
        library.open(options) as waiter,
        child(setup.loop) as process,
    ):
        await process.run(Hold(library.label, options, many))
        await asyncio.sleep(lease)  # until all were refreshed together at least once
        await process.kill()
        async with slowest(client) as slow:
            ends = await _first_expiry(waiter)
            async with waiter.permit():
                late = time.monotonic() - ends
            await waiter.held()
        await waiter.clear()
    figures = [Figure(LATE, (1000 * late,)), *(Figure(WORST, (ms,)) for ms in slow.ms)]
    return Row(label=library.label, setting=f"{many:,} expire", figures=tuple(figures))


async def _first_expiry(waiter: OpenSemaphore) -> float:
    """The earliest expiry of all permits, by ``time.monotonic()``."""
    assert isinstance(waiter, OurSemaphore)
    status = await waiter.native.status(max_entries=1)
    return time.monotonic() + min(holder.expires_in for holder in status.holders)


CASE = Case("P6", "A pair beside many holders and waiters", measure)
