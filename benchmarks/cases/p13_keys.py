"""P13: keys and slots: a pair with a key, the slowest script, and what many keys leave."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from redis.asyncio import Redis

from benchmarks._bulk import LONG
from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import name_for
from benchmarks._measure import Burst, Load, all_waits, burst, in_turn
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._server_stats import key_memory, slowest
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases._hour_of_keys import HELD, run_hour
from benchmarks.libraries import OurSemaphore
from redsem_async import FairSemaphore, Permit, Semaphore
from redsem_async._core.keys import Address

COST = "µs per pair"
TO_PLAIN = "× without a key"
TO_ALONE = "× without that line"
WORST = "slowest script, ms"
MOST = "keys in Redis, most kB"
LEFT = "kB a minute later"
ENTRIES = "entries left"
KEYED = Aim(TO_PLAIN, 1.3, at_most=True)
SHARED = Aim(TO_PLAIN, 1.4, at_most=True)
LINE = Aim(TO_ALONE, 1.3, at_most=True)
AIMS = {"a key": (KEYED,), "a key (share)": (SHARED,)}
SHORT = Aim(WORST, 5.0, at_most=True)
NOTHING = Aim(ENTRIES, 0, at_most=True)
BUSY, OTHER = "busy", "other"
SLOTS = 500  # as many as a list may have
ENTRY_KEYS = (":holders", ":queue", ":keys")
HOW = (
    "Pairs: one task acquires and releases, without a key, with one, and with one while requests"
    " of another key wait in another process that only the limit of their key holds up. Slowest"
    " script: from SLOWLOG with a threshold of 0.1 ms, with `share`, while that many requests of"
    " a process do what the row says; a killed one holds them all. An hour: as many keys, one"
    f" after the other, each holds a permit for {HELD:g} s by a clock that is simulated; one"
    " permit in a hundred is never released, and expires. Memory is MEMORY USAGE of the keys in"
    " Redis; entries left are those of requests, holders and keys."
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
    """Measure pairs in turns, and then the rest."""
    rows = await _pairs(setup)
    rows += await _slowest_of_one_key(setup)
    rows += await _slowest_of_many_keys(setup)
    rows += [await _slowest_of_expiry(setup), await _slowest_of_slots(setup), await _hour(setup)]
    return Table(case="P13", title=CASE.title, how=HOW, loop=setup.loop, rows=rows)


# -- pairs


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


# -- the slowest script


@asynccontextmanager
async def _row(rows: list[Row], client: Redis, setting: str) -> AsyncGenerator[None]:
    """Add a row for the slowest script of a block."""
    async with slowest(client) as slow:
        yield
    figures = tuple(Figure(WORST, (ms,)) for ms in slow.ms)
    rows.append(
        Row(label="slowest", setting=setting, figures=figures, aims=(SHORT,) if figures else ())
    )


async def _slowest_of_one_key(setup: Setup) -> list[Row]:
    rows: list[Row] = []
    many = setup.effort.bulk
    terms = Terms(setup.url, many)
    async with (
        Redis.from_url(setup.url) as client,
        _opened(terms) as semaphore,
        child(setup.loop) as process,
    ):
        waiting = f"{many:,} of one key wait"
        async with _row(rows, client, f"{waiting}: they come"):
            await _comes(setup, process, semaphore, Crowd(terms, many, one_key=True), many - 1)
        async with _row(rows, client, f"{waiting}: the overall limit is set"):
            await semaphore.set_limit(0)
            await semaphore.set_limit(None)
        async with _row(rows, client, f"{waiting}: the semaphore is cleared, they come again"):
            await semaphore.clear()
            # The one that had a permit does not ask again.
            await _line(semaphore, many - 2)
        async with _row(rows, client, f"{waiting}: the limit of their key is raised"):
            await semaphore.set_limit(many, key=BUSY)
            await _line(semaphore, 0)
        await process.kill()
    return rows


async def _comes(
    setup: Setup, process: Child, semaphore: FairSemaphore, crowd: Crowd, waiting: int
) -> None:
    setup.progress(f"{crowd.count:,} come")
    await process.run(crowd)
    await _line(semaphore, waiting)


async def _slowest_of_many_keys(setup: Setup) -> list[Row]:
    rows: list[Row] = []
    many = setup.effort.bulk
    terms = Terms(setup.url, 1)
    async with (
        Redis.from_url(setup.url) as client,
        _opened(terms) as semaphore,
        child(setup.loop) as process,
    ):
        waiting = f"{many:,} keys wait"
        async with _row(rows, client, f"{waiting}: they come"):
            await _comes(setup, process, semaphore, Crowd(terms, many, one_key=False), many - 1)
        async with _row(rows, client, f"{waiting}: status"):
            await semaphore.status()
        async with _row(rows, client, f"{waiting}: the overall limit is raised"):
            await semaphore.set_limit(many)
            await _line(semaphore, 0)
        await process.kill()
    return rows


async def _slowest_of_expiry(setup: Setup) -> Row:
    """As many holders expire together, half of them of one key, while one request waits."""
    rows: list[Row] = []
    many = setup.effort.bulk
    terms = Terms(setup.url, many, lease=setup.effort.lease)
    async with (
        Redis.from_url(setup.url) as client,
        _opened(terms) as semaphore,
        child(setup.loop) as process,
    ):
        await semaphore.set_limit(many, key=BUSY)
        setup.progress(f"{many:,} expire")
        for one_key in (False, True):
            await process.run(Crowd(terms, many // 2, one_key=one_key))
        while (await semaphore.status(0)).held < many // 2 * 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(terms.lease)  # until all were refreshed together
        await process.kill()
        await semaphore.set_limit(1, key=BUSY)
        async with (
            _row(rows, client, f"{many:,} permits of a killed process expire"),
            semaphore.acquire(key=BUSY),
        ):
            await semaphore.reap()
    return rows[0]


async def _slowest_of_slots(setup: Setup) -> Row:
    rows: list[Row] = []
    setup.progress(f"{SLOTS} slots")
    async with Redis.from_url(setup.url) as client:
        semaphore = Semaphore(client, name_for("p13"), slots=range(SLOTS), lease=LONG)
        async with _row(rows, client, f"{SLOTS} slots are taken and given back"):
            permits = await asyncio.gather(*(semaphore.acquire() for _ in range(SLOTS)))
            for permit in permits[:10]:
                await permit.release()
                async with semaphore:
                    pass
            await asyncio.gather(*(permit.release() for permit in permits[10:]))
        await semaphore.clear()
    return replace(rows[0], label="slowest")


# -- an hour


async def _hour(setup: Setup) -> Row:
    keys, name = 10 * setup.effort.bulk, name_for("p13")
    setup.progress(f"{keys:,} keys in an hour")
    most = 0
    async with Redis.from_url(setup.url) as client:
        async for _ in run_hour(client, name, keys):
            most = max(most, await key_memory(client, name))
        left = await key_memory(client, name)
        stored = Address("fair+share", "redsem", name, "local")
        names = (*stored.first_keys, *stored.keys)
        entries = sum([await client.zcard(key) for key in names if key.endswith(ENTRY_KEYS)])
        await client.delete(*names)
    return Row(
        label="memory",
        setting=f"{keys:,} keys in a simulated hour",
        figures=(
            Figure(MOST, (most / 1000,)),
            Figure(LEFT, (left / 1000,)),
            Figure(ENTRIES, (entries,)),
        ),
        aims=(NOTHING,),
    )


CASE = Case("P13", "Keys and slots", measure)
