"""P15: what of an upstream's capacity a fleet uses that backs off, and what is refused."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from benchmarks._bench import FULL, Bench, Case, LoopName
from benchmarks._children import Child, child
from benchmarks._fleet import Result, Scenario, run
from benchmarks._upstream import Phase, uses

LABELS = {
    "fair": "FairSemaphore",
    "zset": "Semaphore",
    "aimd": "each process: Netflix's AIMD",
    "gentle": "each process: TCP's AIMD",
}
STEP = 0.25  # seconds, of the picture


def _steady(seconds: float, capacity: int = 20, **options: Any) -> tuple[Phase, ...]:
    return (Phase(seconds, capacity, **options),)


DOWN = (Phase(3, 20), Phase(8, 0, 503), Phase(20, 20))
CHANGING = (Phase(10, 20), Phase(10, 5), Phase(10, 40))
SCENARIOS = {
    "20": Scenario(phases=_steady(8), limits=(20,)),
    "24": Scenario(phases=_steady(12), limits=(24,)),
    "30": Scenario(phases=_steady(12), limits=(30,)),
    "64": Scenario(phases=_steady(12)),
    "told-1": Scenario(phases=_steady(20, retry_after="1")),
    "told-0.2": Scenario(phases=_steady(12, retry_after="0.2")),
    "changing": Scenario(phases=CHANGING),
    "down": Scenario(phases=DOWN),
    "keys": Scenario(phases=_steady(12), keys=2, hold=0.2, tasks=48),
    "hold-0.05": Scenario(phases=_steady(12), hold=0.05),
    "hold-0.5": Scenario(phases=_steady(20), hold=0.5),
    "hold-5": Scenario(phases=_steady(50), hold=5.0),
    "two": Scenario(phases=(Phase(6, 20), Phase(24, 20), Phase(15, 20)), limits=(64, 64), joins=6),
}
MORE = {  # for single runs
    "heavy": Scenario(phases=_steady(20), heavy=8),
    "heavy-16": Scenario(phases=_steady(20), heavy=16),
    "stray": Scenario(phases=_steady(20, 200, stray=0.001), tasks=10),
    "slows": Scenario(phases=_steady(12, slows=True)),
    "late": Scenario(phases=(Phase(10, 20), Phase(30, 5, 503, late=10), Phase(20, 20))),
    "down-told": Scenario(phases=(DOWN[0], Phase(8, 0, 503, "1"), DOWN[2])),
    "unequal": Scenario(phases=_steady(60), limits=(64, 24)),
    "three": Scenario(phases=_steady(60), limits=(64, 64, 64)),
    "minute": Scenario(phases=(Phase(60, 20), Phase(30, 20)), limits=(64, 64)),
    "hubs": Scenario(phases=_steady(20), processes=200, tasks=1),  # simulated alone
}


def summary(scenario: Scenario, result: Result) -> list[dict[str, float]]:
    """The figures of each phase, and in the first those of the whole run."""
    rows = list[dict[str, float]]()
    for use in uses(result.events, scenario.phases, max(1, scenario.keys)):
        row = {"capacity": use.capacity, "used, %": 100 * use.share}
        row |= {"refused, %": 100 * use.share_refused, "refused": use.refused}
        row["answered"] = use.answered
        for who, busy in use.by.items() if len(use.by) > 1 and use.capacity else ():
            row[f"used by {who}, %"] = 100 * busy / (use.capacity * use.seconds)
        rows.append(row)
    answers = sum(int(row["answered"]) for row in rows)
    rows[0]["scripts an answer"] = result.scripts / max(1, answers)
    rows[0]["µs a script"] = result.script_us
    rows[0]["load"] = result.load
    return rows


def record(title: str, how: str, scenario: Scenario, result: Result) -> dict[str, Any]:
    """All that is kept of a run."""
    steps = uses(result.events, scenario.phases, max(1, scenario.keys), STEP)
    line = [(use.capacity, use.busy / use.seconds, use.refused) for use in steps]
    rows = summary(scenario, result)
    return {"scenario": title, "how": how, "phases": rows, "steps": line, **asdict(scenario)}


def quicker(scenario: Scenario, factor: float) -> Scenario:
    """The same in *factor* times its duration."""
    phases = tuple(replace(phase, seconds=phase.seconds * factor) for phase in scenario.phases)
    return replace(scenario, phases=phases, joins=scenario.joins * factor)


@asynccontextmanager
async def processes(count: int, loop: LoopName) -> AsyncGenerator[list[Child]]:
    """So many processes, and one before them for the upstream."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(child(loop)) for _ in range(1 + count)]


async def _measure(bench: Bench) -> None:
    factor = bench.effort.window / FULL.window
    planned = [("fair", title) for title in SCENARIOS]
    planned += [("zset", "64"), ("aimd", "64"), ("gentle", "64"), ("gentle", "changing")]
    async with processes(6, bench.loop) as children:
        for how, title in planned:
            bench.progress(f"{LABELS[how]}, {title}")
            scenario = quicker(SCENARIOS[title], factor)
            fleets = scenario.processes * len(scenario.limits)
            result = await run(scenario, how, bench.url, children[: 1 + fleets])
            for phase, row in enumerate(summary(scenario, result), 1):
                setting = f"{title}, phase {phase}" if len(scenario.phases) > 1 else title
                figures = {column: [value] for column, value in row.items()}
                bench.row(LABELS[how], setting, figures=figures)


P15 = Case(
    "P15",
    "Back-off: what a fleet uses of an upstream, and what is refused",
    "Three processes of 24 tasks call an upstream on and on that bears so many requests at once as"
    " its capacity says, and refuses others at once with 429. Settings: the limit over a capacity"
    " of 20; told: 64, and Retry-After says so many seconds; changing: 64 over 20, then 5, then"
    " 40; down: 64 over 20, 503 for 8 s, 20; keys: 64 for each of two keys; hold: 64, and a"
    " request takes so many seconds, half more or less (0.1 elsewhere); two: two fleets of 64,"
    " one of which comes after 6 s. The upstream records what it was used, over the whole of each"
    " phase. Scripts and the machine's load when it began are those of the whole run.",
    _measure,
)
