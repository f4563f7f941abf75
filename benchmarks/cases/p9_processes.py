"""P9: several processes, and many tasks in each, on one semaphore."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks._children import Child, Stage, child
from benchmarks._contest import Contest, name_for
from benchmarks._gauge import check_spans
from benchmarks._measure import Burst, Load, all_waits, fastest, rates, ratio
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks._statistics import jain
from benchmarks.cases._base import Case
from benchmarks.cases._contended import PAIRS, TO_PEER
from benchmarks.contenders import FAIR, OURS, PEERS, Contender, Terms

PROCESSES = 4
LOAD = Load(tasks=50, limit=20, work=0.001)
EVEN = "Jain's index"
AIM = Aim(EVEN, 0.99)
LEAD = 0.1  # seconds until all begin at one instant
HOW = (
    f"{PROCESSES} processes with {LOAD.tasks} tasks each, limit {LOAD.limit}, and each sleeps 1 ms"
    " inside; all begin at one instant. Jain's index of the pairs by process: 1 when all got the"
    f" same, 1/{PROCESSES} when one got all. That no more than the limit were inside is checked by"
    " the clock that all processes share."
)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process got.

    Attributes:
        waits: how long each acquire took, in seconds.
        spans: from when until when each holder was inside, by ``time.monotonic()``.
    """

    waits: list[float]
    spans: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Compete:
    """Acquire and release by all tasks, from one instant to another."""

    label: str
    terms: Terms
    begin: float
    end: float

    async def carry_out(self, here: Stage) -> Share:
        contender = await here.contender(self.label, self.terms)
        share = Share([], [])
        await asyncio.sleep(self.begin - time.monotonic())
        async with asyncio.TaskGroup() as group:
            for _ in range(LOAD.tasks):
                group.create_task(self._pairs(contender, share))
        return share

    async def _pairs(self, contender: Contender, share: Share) -> None:
        while (asked := time.monotonic()) < self.end:
            async with contender.permit():
                came = time.monotonic()
                share.waits.append(came - asked)
                await asyncio.sleep(LOAD.work)
                share.spans.append((came, time.monotonic()))


async def measure(setup: Setup) -> Table:
    """All libraries in turn, in the same processes."""
    evenness: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        # First in, last out: it clears up when the children have ended.
        contest = await stack.enter_async_context(Contest(setup))
        crowd = [await stack.enter_async_context(child(setup.loop)) for _ in range(PROCESSES)]
        for library in (*OURS, *PEERS):
            name = name_for("p9")
            terms = Terms(url=setup.url, name=name, limit=LOAD.limit, tasks=LOAD.tasks)
            if await contest.enter(library, terms) is not None:
                shares = evenness[library.label] = []
                turn = partial(_turn, setup, crowd, library.label, terms, shares)
                contest.add(library.label, turn)
        setup.say(f"{PROCESSES} processes")
        await contest.run()
    rows = _rows(contest.bursts, evenness)
    return Table(
        case="P9", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=contest.absent
    )


async def _turn(
    setup: Setup, crowd: list[Child], label: str, terms: Terms, evenness: list[float]
) -> Burst:
    begin = time.monotonic() + LEAD
    order = Compete(label, terms, begin, begin + 2 * setup.effort.burst)
    shares = await asyncio.gather(*(one.ask(order) for one in crowd))
    spans = [span for share in shares for span in share.spans]
    check_spans(spans, LOAD.limit)
    evenness.append(jain([len(share.waits) for share in shares]))
    waits = [wait for share in shares for wait in share.waits]
    over = max((end for _, end in spans), default=order.end)
    return Burst(len(waits), over - begin, waits)


def _rows(bursts: dict[str, list[Burst]], evenness: dict[str, list[float]]) -> list[Row]:
    best = fastest(bursts, [library.label for library in PEERS])
    rows: list[Row] = []
    for who, own in bursts.items():
        figures = [rates(PAIRS, own)]
        if best is not None and who in {library.label for library in OURS}:
            figures.append(ratio(TO_PEER, own, bursts[best]))
        figures.append(Figure(EVEN, tuple(evenness[who][-len(own) :])))
        rows.append(
            Row(
                who=who,
                acquire=Acquire.of(all_waits(own)),
                figures=tuple(figures),
                aims=(AIM,) if who == FAIR.label else (),
            )
        )
    return rows


CASE = Case("P9", "4 processes of 50 tasks, contended", measure)
