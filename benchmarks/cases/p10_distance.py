"""P10: P1 to P4 with a network delay of one millisecond each way, as in a data centre."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks._baselines import Scripts
from benchmarks._comparison import Comparison
from benchmarks._measure import Burst, Load, all_waits, rates
from benchmarks._proxy import slowed
from benchmarks._results import Absent, Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases import p3_contention, p4_handoff
from benchmarks.cases._base import Case
from benchmarks.cases._contended import PAIRS
from benchmarks.libraries import OURS, PEERS

DELAY = 0.001
ROUND_TRIP = "one minimal evalsha: a round trip"
TRIPS = "acquire p50, round trips"
WHOLE = "a pair, round trips"
HANDOFF = "hand-off"
HOW = (
    f"All traffic goes through a proxy process that delays it by {1000 * DELAY:g} ms. A round trip"
    " is one minimal evalsha with redis-py through the same proxy, in the same rounds. A pair is"
    " the time from one acquire of a task to its next. With 200"
    " connections, the proxy limits a peer. Hand-offs are measured as in P4."
)


async def measure(setup: Setup) -> Table:
    """The loads of P1 to P3, then P4; within each, all take turns."""
    small, *larger = setup.effort.tasks
    middle = larger[0] if larger else small
    loads: dict[str, tuple[Load, Aim | None]] = {
        "1 task": (Load(tasks=1, limit=1), Aim(WHOLE, 1.1, at_most=True)),
        f"{small} tasks": (Load(tasks=small, limit=2 * small), None),
        f"{middle} tasks": (Load(tasks=middle, limit=2 * middle), Aim(TRIPS, 1.6, at_most=True)),
        "50 tasks, limit 5, 1 ms of work": (p3_contention.LOAD, None),
    }
    rows: list[Row] = []
    absent: dict[Absent, None] = {}
    async with slowed(setup.url, DELAY) as url:
        far = setup.through(url)
        for setting, (load, aim) in loads.items():
            setup.progress(setting)
            async with Scripts.at(url) as scripts, Comparison(far) as comparison:
                await comparison.enter_all((*OURS, *PEERS), load)
                comparison.add(ROUND_TRIP, partial(scripts.trips, setup.effort.burst))
                await comparison.run()
            rows += _rows(comparison.bursts, setting, load.tasks, aim)
            absent |= {
                Absent(
                    one.label, one.why if "failed" not in one.why else f"{setting}: {one.why}"
                ): None
                for one in comparison.absent
            }
        handoffs = await p4_handoff.measure(far)
    # The aim of P4 is for a connection without delay.
    rows += [replace(row, setting=HANDOFF, aims=()) for row in handoffs.rows]
    absent |= dict.fromkeys(handoffs.absent)
    return Table(
        case="P10", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=[*absent]
    )


def _rows(bursts: dict[str, list[Burst]], setting: str, tasks: int, aim: Aim | None) -> list[Row]:
    ours = {library.label for library in OURS}
    trips = [statistics.median(burst.waits) for burst in bursts[ROUND_TRIP]]
    rows: list[Row] = []
    for label, own in bursts.items():
        waits = [statistics.median(burst.waits) for burst in own]
        whole = [tasks / burst.rate for burst in own]
        in_trips = (_over(TRIPS, waits, trips), _over(WHOLE, whole, trips))
        rows.append(
            Row(
                label=label,
                setting=setting,
                acquire=Acquire.of(all_waits(own)),
                figures=(rates(PAIRS, own), *in_trips),
                aims=(aim,) if aim and label in ours else (),
            )
        )
    return rows


def _over(name: str, times: Sequence[float], trips: Sequence[float]) -> Figure:
    return Figure(name, tuple(time / trip for time, trip in zip(times, trips, strict=True)))


CASE = Case("P10", "P1 to P4 with a delay of 1 ms each way", measure)
