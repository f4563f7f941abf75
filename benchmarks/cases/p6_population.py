"""P6: whether a pair costs more, the more permits are held and the more requests wait."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from redis.asyncio import Redis

from benchmarks._children import Child, Stage, child
from benchmarks._contest import name_for
from benchmarks._crowds import LONG, Hold
from benchmarks._gauge import Gauge, Leaked
from benchmarks._measure import Burst, Load, all_waits, burst, rates
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks._watch import scripts, slowest
from benchmarks.cases._base import Case
from benchmarks.contenders import OURS, Contender, Library, Ours, Terms

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
class Form:
    """Have *count* tasks in line for one permit that goes round, once the limit is raised."""

    label: str
    terms: Terms
    count: int

    async def carry_out(self, here: Stage) -> None:
        contender = await here.contender(self.label, self.terms)
        gauge = Gauge(1)
        turns = here.notes[self.label] = list[float]()

        async def go_round() -> None:
            while True:
                async with contender.permit():
                    gauge.enter()
                    turns.append(time.perf_counter())
                    gauge.leave()

        here.tasks += [asyncio.create_task(go_round()) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class GoRound:
    """Let the permit go round for a while; each time is from one who is inside to the next."""

    label: str
    terms: Terms
    seconds: float

    async def carry_out(self, here: Stage) -> Burst:
        contender = await here.contender(self.label, self.terms)
        assert isinstance(contender, Ours)
        turns: list[float] = here.notes[self.label]
        turns.clear()
        await contender.semaphore.set_limit(self.terms.limit + 1)
        await asyncio.sleep(self.seconds)
        await contender.semaphore.set_limit(self.terms.limit)
        for task in here.tasks:
            if task.done():
                task.result()
        waits = [later - earlier for earlier, later in pairwise(turns)]
        return Burst(len(waits), sum(waits), waits)


@dataclass(slots=True)
class Population:
    """A number of holders, and perhaps of waiters, and what a pair costs beside them."""

    setting: str
    library: Library
    terms: Terms
    held: int
    crowd: Child
    visitor: Contender | None
    bursts: list[Burst]
    server: list[float]
    worst: list[float]

    async def turn(self, setup: Setup, client: Redis) -> None:
        """Measure once more."""
        seconds = setup.effort.burst
        async with slowest(client) as slow:
            before = await scripts(client)
            if self.visitor is not None:
                done = await burst(self.visitor, Load(tasks=1, limit=1), seconds)
            else:
                done = await self.crowd.ask(GoRound(self.library.label, self.terms, seconds))
            self.server.append((await scripts(client)).since(before))
        self.bursts.append(done)
        self.worst += slow.ms

    def forget(self) -> None:
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
            who=self.library.label,
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
            setup.say(f"{library.label}, {setting}")
            made = _population(setup, library, held, setting, waiting=waiting)
            populations.append(await stack.enter_async_context(made))
        for number in range(-setup.effort.warm_ups, setup.effort.rounds):
            for population in populations:
                if number == 0:
                    population.forget()
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
    terms = Terms(url=setup.url, name=name_for("p6"), limit=held, tasks=1, lease=LONG)
    async with AsyncExitStack() as stack:
        crowd = await stack.enter_async_context(child(setup.loop))
        mine = replace(terms, limit=held + 1, lease=10.0)
        visitor = await stack.enter_async_context(library.open(mine))
        stack.push_async_callback(visitor.clear)
        stack.push_async_callback(crowd.kill)
        await crowd.ask(Hold(library.label, terms, held))
        if waiting:
            await crowd.ask(Form(library.label, terms, held))
            await asyncio.sleep(setup.effort.settle)
        yield Population(
            setting, library, terms, held, crowd, None if waiting else visitor, [], [], []
        )
        if (left := await visitor.held()) != held:
            raise Leaked(left, held)


async def _expiry(setup: Setup, library: Library) -> Row:
    """Many permits end at once, and somebody waits for one."""
    many, lease = setup.effort.crowd, setup.effort.lease
    setup.say(f"{library.label}, {many:,} permits expire")
    terms = Terms(url=setup.url, name=name_for("p6"), limit=many, tasks=1, lease=lease)
    async with (
        Redis.from_url(setup.url) as client,
        library.open(terms) as waiter,
        child(setup.loop) as crowd,
    ):
        await crowd.ask(Hold(library.label, terms, many))
        await asyncio.sleep(lease)  # until all were refreshed together, once or more
        await crowd.kill()
        async with slowest(client) as slow:
            ends = await _first_expiry(waiter)
            async with waiter.permit():
                late = time.monotonic() - ends
            await waiter.held()
        await waiter.clear()
    figures = [Figure(LATE, (1000 * late,)), *(Figure(WORST, (ms,)) for ms in slow.ms)]
    return Row(who=library.label, setting=f"{many:,} expire", figures=tuple(figures))


async def _first_expiry(waiter: Contender) -> float:
    """When the permit that ends first does so, by ``time.monotonic()``."""
    assert isinstance(waiter, Ours)
    status = await waiter.semaphore.status(max_entries=1)
    return time.monotonic() + min(holder.expires_in for holder in status.holders)


CASE = Case("P6", "A pair beside many holders and waiters", measure)
