"""P13: what a key adds to a pair."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from redis.asyncio import Redis

from benchmarks._bulk import LONG
from benchmarks._children import JobContext, child
from benchmarks._comparison import name_for
from benchmarks._measure import Burst, Load, all_waits, burst, in_turn
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.libraries import OurSemaphore
from redsem_async import FairSemaphore, Permit

COST = "µs per pair"
TO_PLAIN = "× without a key"
TO_ALONE = "× without that line"
KEYED = Aim(TO_PLAIN, 1.3, at_most=True)
SHARED = Aim(TO_PLAIN, 1.4, at_most=True)
LINE = Aim(TO_ALONE, 1.3, at_most=True)
AIMS = {"a key": (KEYED,), "a key (share)": (SHARED,)}
BUSY, OTHER = "busy", "other"
HOW = (
    "One task acquires and releases, without a key, with one, and with one while requests of"
    " another key wait in another process that only the limit of their key holds up."
)


class WithKey(OurSemaphore):
    """A semaphore all of whose requests have one key."""

    def __init__(self, semaphore: FairSemaphore, key: str) -> None:
        super().__init__(semaphore, 0.0)
        self._fair, self._key = semaphore, key

    def permit(self) -> AbstractAsyncContextManager[Permit]:
        return self._fair.acquire(key=self._key)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the processes of a measurement declare."""

    url: str
    limit: int
    share: bool = True
    lease: float = LONG
    name: str = field(default_factory=partial(name_for, "p13"))

    def semaphore(self, client: Redis) -> FairSemaphore:
        return FairSemaphore(
            *(client, self.name, self.limit),
            key_limit=1,
            share=self.share,
            lease=self.lease,
            cancel_on_loss=False,
        )


@dataclass(frozen=True, slots=True)
class Crowd:
    """Start *count* tasks that ask and hold for ever: with one key, or each with its own."""

    terms: Terms
    count: int
    one_key: bool

    async def run(self, context: JobContext) -> None:
        client = await context.once(self.terms.url, lambda: Redis.from_url(self.terms.url))
        semaphore = self.terms.semaphore(client)

        async def hold(key: str) -> None:
            async with semaphore.acquire(key=key):
                await asyncio.Event().wait()

        keys = (BUSY if self.one_key else f"key {number}" for number in range(self.count))
        context.tasks += [asyncio.create_task(hold(key)) for key in keys]


@asynccontextmanager
async def _opened(terms: Terms) -> AsyncGenerator[FairSemaphore]:
    async with Redis.from_url(terms.url) as client:
        semaphore = terms.semaphore(client)
        try:
            yield semaphore
        finally:
            await semaphore.clear()


async def _line(semaphore: FairSemaphore, length: int) -> None:
    """Wait until *length* requests wait."""
    while (await semaphore.status(0)).waiting != length:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.05)


async def measure(setup: Setup) -> Table:
    """Measure all pairs in turns."""
    rows = await _pairs(setup)
    return Table(case="P13", title=CASE.title, how=HOW, loop=setup.loop, rows=rows)


async def _pairs(setup: Setup) -> list[Row]:
    many, seconds = setup.effort.bulk, setup.effort.burst
    plain, beside = "without a key", f"a key, {many:,} of another wait"
    load = Load(tasks=1, limit=1)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(setup.url))
        without = OurSemaphore(FairSemaphore(client, name_for("p13"), many), 0.0)
        stack.push_async_callback(without.clear)
        turns = {plain: partial(burst, without, load, seconds)}
        for share in (False, True):
            for setting in ("a key", beside):
                terms = Terms(setup.url, many, share)
                semaphore = await stack.enter_async_context(_opened(terms))
                label = f"{setting} (share)" if share else setting
                turns[label] = partial(burst, WithKey(semaphore, OTHER), load, seconds)
                if setting == beside:
                    setup.progress(label)
                    process = await stack.enter_async_context(child(setup.loop))
                    await process.run(Crowd(terms, many, one_key=True))
                    await _line(semaphore, many - 1)
                    stack.push_async_callback(process.kill)
        setup.progress("pairs")
        bursts = await in_turn(turns, setup.effort, _raised)
    rows: list[Row] = []
    for label, own in bursts.items():
        figures = [Figure(COST, tuple(1e6 / one.rate for one in own))]
        if label != plain:
            figures.append(_times(TO_PLAIN, own, bursts[plain]))
        alone = label.replace(beside, "a key")
        if alone != label:
            figures.append(_times(TO_ALONE, own, bursts[alone]))
        rows.append(
            Row(
                label="pair",
                setting=label,
                acquire=Acquire.of(all_waits(own)),
                figures=tuple(figures),
                aims=AIMS.get(label, (LINE,) if alone != label else ()),
            )
        )
    return rows


def _times(name: str, own: list[Burst], others: list[Burst]) -> Figure:
    """The ratio of the times, round by round."""
    return Figure(name, tuple(o.rate / one.rate for one, o in zip(own, others, strict=True)))


def _raised(_label: str, error: Exception) -> None:
    raise error


CASE = Case("P13", "A pair with a key", measure)
