"""P15: what a fleet that backs off uses of an upstream's capacity, and what is refused."""

from dataclasses import replace
from typing import Any

from benchmarks._bench import FULL, Bench, Case
from benchmarks._fleet import Result, Scenario, children, run
from benchmarks._upstream import Phase, uses

LABELS = {
    "fair": "FairSemaphore",
    "zset": "Semaphore",
    "aimd": "each process: AIMD (Netflix)",
    "gentle": "each process: AIMD (TCP)",
}


def _steady(seconds: float, capacity: int = 20, **options: Any) -> tuple[Phase, ...]:
    return (Phase(seconds, capacity, **options),)


def _begun(seconds: float, later: float) -> tuple[Phase, ...]:
    """The same capacity twice: the first requests come all at once, and many are refused."""
    return (Phase(seconds, 20), Phase(later, 20))


CHANGING = (Phase(20, 20), Phase(20, 5), Phase(20, 40))
DOWN, UP = Phase(8, 0, 503), Phase(20, 20)
SCENARIOS = {
    "20": Scenario(phases=_steady(8), limits=(20,)),
    "24": Scenario(phases=_steady(12), limits=(24,)),
    "30": Scenario(phases=_steady(12), limits=(30,)),
    "64": Scenario(phases=_steady(30)),
    "told-1": Scenario(phases=_steady(20, retry_after="1")),
    "told-0.2": Scenario(phases=_steady(12, retry_after="0.2")),
    "changing": Scenario(phases=CHANGING),
    "down": Scenario(phases=(Phase(3, 20), DOWN, UP)),
    "keys": Scenario(phases=_begun(4, 16), keys=2, hold=0.2, tasks=48),
    "hold-0.05": Scenario(phases=_begun(2, 10), hold=0.05),
    "hold-0.5": Scenario(phases=_begun(5, 15), hold=0.5),
    "hold-5": Scenario(phases=_begun(10, 20), hold=5.0),
    "two": Scenario(phases=(Phase(6, 20), Phase(20, 20), Phase(15, 20)), limits=(64, 64), joins=6),
}
MORE = {  # which are not part of P15
    "heavy": Scenario(phases=_steady(20), heavy=8),
    "heavy-16": Scenario(phases=_steady(20), heavy=16),
    "stray": Scenario(phases=_steady(20, 200, stray=0.001), tasks=10),
    "slows": Scenario(phases=_steady(12, slows=True)),
    "late": Scenario(phases=(Phase(10, 20), Phase(30, 5, 503, late=10), UP)),
    "down-told": Scenario(phases=(Phase(3, 20), replace(DOWN, retry_after="1"), UP)),
    "unequal": Scenario(phases=_steady(60), limits=(64, 24)),
    "three": Scenario(phases=_steady(60), limits=(64, 64, 64)),
    "minute": Scenario(phases=(Phase(60, 20), Phase(30, 20)), limits=(64, 64)),
    "hubs": Scenario(phases=_steady(20), processes=200, tasks=1),  # for simulated time
}
OTHERS = (("zset", "64"), ("gentle", "changing"))


def figures(scenario: Scenario, result: Result) -> list[dict[str, float]]:
    """Those of each phase; and of the whole run, beside those of the first."""
    keys, rows = max(1, scenario.keys), list[dict[str, float]]()
    parts = [(phase.seconds, keys * phase.capacity) for phase in scenario.phases]
    for use in uses(result.events, parts):
        whole = use.capacity * use.seconds
        row = {"used, %": 100 * use.busy / whole} if whole else {}
        if whole and len(use.by) > 1:
            row |= {f"by {who}, %": 100 * busy / whole for who, busy in use.by.items()}
        row["refused, %"] = 100 * use.refused / max(1, use.refused + use.answered)
        rows.append(row | {"refused": use.refused, "answered": use.answered})
    answers = sum(row["answered"] for row in rows)
    rows[0]["scripts an answer"] = result.scripts / max(1, answers)
    rows[0] |= {"µs a script": result.script_us, "load": result.load}
    return rows


def lasting(scenario: Scenario, factor: float) -> Scenario:
    """The same with *factor* times its duration."""
    phases = tuple(replace(phase, seconds=phase.seconds * factor) for phase in scenario.phases)
    return replace(scenario, phases=phases, joins=scenario.joins * factor)


async def _measure(bench: Bench) -> None:
    async with children(6, bench.loop) as processes:
        for how, title in (*(("fair", title) for title in SCENARIOS), *OTHERS):
            bench.progress(f"{LABELS[how]}, {title}")
            scenario = lasting(SCENARIOS[title], bench.effort.window / FULL.window)
            result = await run(scenario, how, bench.url, processes)
            for phase, row in enumerate(figures(scenario, result), 1):
                setting = f"{title}, phase {phase}" if len(scenario.phases) > 1 else title
                bench.row(LABELS[how], setting, figures={name: [n] for name, n in row.items()})


P15 = Case(
    "P15",
    "Back-off: what a fleet uses of an upstream",
    "Three processes of 24 tasks call an upstream on and on. It processes as many requests at once"
    " as its capacity, which takes 0.05 to 0.15 s each, and refuses others at once with 429."
    " A number is the limit over a capacity of 20. The limit is 64 elsewhere: told, Retry-After"
    " says so many seconds; changing, the capacity is 20, 5 and 40; down, 20, 8 s of 503, and 20;"
    " keys, each of two keys has that limit and a capacity of 20; hold, a request takes so many"
    " seconds; two, another fleet of that limit joins after 6 s. The upstream records all. At the"
    " beginning 64 requests come at once, so 44 are refused whatever the rule is; keys and hold"
    " have that in phase 1, and the same capacity in phase 2. Scripts are the server's, and load"
    " is the machine's when a run began.",
    _measure,
)
