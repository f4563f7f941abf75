"""P12: one process keeps all permits, and another asks for one."""

import asyncio
import statistics
import time
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import Comparison, name_for
from benchmarks._measure import Burst, all_waits
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.cases.p4_handoff import Take, handoff, repeat
from benchmarks.libraries import FAIR, ZSET, Options
from redsem_async import FairSemaphore, Semaphore

LIMIT = 10
LINGER = 3.0  # seconds: longer than a turn takes
KINDS = {FAIR.label: FairSemaphore, ZSET.label: Semaphore}
RECALL = "{}: recall"
HANDOFF = "{}: hand-off"
TO_HANDOFF = "time, × a hand-off"
AIM = Aim(TO_HANDOFF, 1.2, at_most=True)
HOW = (
    f"One process keeps {LIMIT} unused permits (linger), which are all that there are, and another"
    " process acquires one of them. The time is from the call of acquire until the block runs."
    " Beside it, in the same rounds, a hand-off between the two processes as in P4."
)


@dataclass(frozen=True, slots=True)
class Keep:
    """Use all permits at a time, and keep them afterwards."""

    label: str
    url: str
    name: str

    async def run(self, context: JobContext) -> None:
        client = await context.once(self.url, lambda: Redis.from_url(self.url))
        semaphore = KINDS[self.label](client, self.name, LIMIT, linger=LINGER)

        async def use() -> None:
            async with semaphore:
                await asyncio.sleep(0.001)

        await asyncio.gather(*(use() for _ in range(LIMIT)))


async def measure(setup: Setup) -> Table:
    """Measure recalls and hand-offs of both modes in turns."""
    async with (
        Comparison(setup) as comparison,
        child(setup.loop) as other,
        Redis.from_url(setup.url) as client,
    ):
        for library in (FAIR, ZSET):
            options = Options(url=setup.url, name=name_for("p12"), limit=1, tasks=2)
            semaphore = await comparison.enter(library, options)
            assert semaphore is not None
            passed = partial(handoff, semaphore, other, Take(library.label, options))
            recalled = partial(_recall, client, library.label, other, setup.url)
            comparison.add(HANDOFF.format(library.label), partial(repeat, setup, passed))
            comparison.add(RECALL.format(library.label), partial(repeat, setup, recalled))
        setup.progress("recalls")
        await comparison.run()
        rows = _rows(comparison.bursts)
    return Table(case="P12", title=CASE.title, how=HOW, loop=setup.loop, rows=rows)


async def _recall(client: Redis, label: str, other: Child, url: str) -> float:
    # A name of its own: after a recall, a process does not keep permits for a second.
    name = name_for("p12")
    await other.run(Keep(label, url, name))
    semaphore = KINDS[label](client, name, LIMIT)
    kept = (await semaphore.status(max_entries=0)).held
    if kept != LIMIT:
        raise RuntimeError(f"{kept} permits were kept, not {LIMIT}: no recall was measured")
    asked = time.monotonic()
    async with semaphore:
        return time.monotonic() - asked


def _rows(bursts: dict[str, list[Burst]]) -> list[Row]:
    rows: list[Row] = []
    for label in KINDS:
        passed, recalled = bursts[HANDOFF.format(label)], bursts[RECALL.format(label)]
        times = zip(recalled, passed, strict=True)
        figure = Figure(TO_HANDOFF, tuple(_median(one) / _median(two) for one, two in times))
        for name, own in ((HANDOFF, passed), (RECALL, recalled)):
            recall = name is RECALL
            rows.append(
                Row(
                    label=name.format(label),
                    acquire=Acquire.of(all_waits(own)),
                    figures=(figure,) if recall else (),
                    aims=(AIM,) if recall else (),
                )
            )
    return rows


def _median(burst: Burst) -> float:
    return statistics.median(burst.waits)


CASE = Case("P12", "Recall of permits that another process keeps", measure)
