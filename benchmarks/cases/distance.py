"""P10: P1 to P4 with a network delay of one millisecond each way, as in a data centre."""

from dataclasses import replace
from functools import partial

from benchmarks._baselines import Scripts
from benchmarks._bench import Bench, Case
from benchmarks._comparison import (
    PAIRS,
    Bursts,
    Comparison,
    Load,
    medians,
    of_pairs,
    quotients,
    rates,
)
from benchmarks._libraries import OURS, PEERS
from benchmarks._proxy import slowed
from benchmarks.cases import handoff
from benchmarks.cases.one_process import CONTENDED

DELAY = 0.001
TRIP = "one minimal evalsha: a round trip"


async def _measure(bench: Bench) -> None:
    """The loads of P1 to P3, then P4; within each, all take turns."""
    loads = {"1 task": Load(tasks=1, limit=1)}
    loads |= {f"{n} tasks": Load(tasks=n, limit=2 * n) for n in bench.effort.tasks[:2]}
    loads["50 tasks, limit 5, 1 ms of work"] = CONTENDED
    async with slowed(bench.url, DELAY) as url:
        far = replace(bench, url=url)
        for setting, load in loads.items():
            async with Scripts.at(url) as scripts, Comparison(far, setting) as comparison:
                await comparison.enter_load((*OURS, *PEERS), load)
                comparison.add(TRIP, partial(scripts.trips, bench.effort.burst))
                await comparison.run()
                _report(comparison, load.tasks)
        await handoff.measure(far, "hand-off")


def _report(comparison: Comparison, tasks: int) -> None:
    trips = medians(comparison.bursts[TRIP])

    def pair(_label: str, own: Bursts) -> list[float]:
        return quotients([tasks / rate for rate in rates(own)], trips)

    comparison.report(
        {
            PAIRS: of_pairs,
            "acquire p50, round trips": lambda _, own: quotients(medians(own), trips),
            "a pair, round trips": pair,
        }
    )


P10 = Case(
    "P10",
    "P1 to P4 with a delay of 1 ms each way",
    f"All traffic goes through a proxy process that delays it by {1000 * DELAY:g} ms. A round trip"
    " is one minimal evalsha with redis-py through the same proxy, in the same rounds. A pair is"
    " the time from one acquire of a task to its next. With 200 connections, the proxy limits a"
    " peer. Hand-offs are measured as in P4.",
    _measure,
)
