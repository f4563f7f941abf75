"""The tables of docs/scaling.md, computed from the measured figures."""

import math
import random
import statistics
from collections.abc import Callable, Iterator

from .capacity import (
    BUSY,
    SECOND,
    Costs,
    Process,
    bits_a_second,
    fit_into,
    largest_fleet,
    line_through,
    load_of,
    most_a_second,
)
from .document import number, percent, rough, spread, table
from .figures import MODES, Contention, Cost, Figures, Mode, Subject
from .simulation import Outcome, Workload, simulate
from .slots import by_rank, equal, slots_of, worth
from .strategies import strategies

LEASES = (1.0, 3.0, 10.0, 30.0, 60.0)
RATES = (0.0, 0.1, 1.0, 10.0, 100.0)
NAMES = (10, 100, 1000, 10_000, 100_000)
SHARDS = (3, 12, 48)
NAME_SETS = 9
GIB = 2**30

SEED = 20_261_121
PROCESSES = 10
WORKS = 50_000
SATURATED = Workload(limit=100, tasks=125)
AT_90_PERCENT = Workload(limit=100, tasks=1000, think=1000 / 90 - 1)


def tables(figures: Figures) -> dict[str, str]:
    """All tables by name."""
    return {
        "pairs": pairs(figures),
        "calls": calls(figures),
        "library": library(figures),
        "contention": contention(figures),
        "upkeep": upkeep(figures),
        "fleet": fleet(figures),
        "memory": memory(figures),
        "names": many_names(),
        "split": split(),
    }


def _cpu(cost: Cost) -> float:
    return cost.cpu


def _script(cost: Cost) -> float:
    return cost.script


def _sizes(figures: Figures, subject: Subject, mode: Mode) -> list[int]:
    found = (case.size for case in figures.costs if case[:2] == (subject, mode))
    return sorted(found)


# -- measured


def pairs(figures: Figures) -> str:
    """The cost of a pair, and the maximum rate."""
    subjects: tuple[Subject, ...] = ("free pair", "sparse pair", "home pair", "handed pair")
    lines: list[list[str]] = []
    for subject in subjects:
        for mode in MODES:
            for size in _sizes(figures, subject, mode):
                cpu = figures.rounds(subject, mode, size, _cpu)
                script = statistics.median(figures.rounds(subject, mode, size, _script))
                most = most_a_second(statistics.median(cpu))
                traffic = figures.bytes(subject, mode, size)
                lines.append(
                    [
                        f"{subject}, {mode}",
                        str(size),
                        number(statistics.median(cpu)),
                        spread(cpu),
                        number(script),
                        number(traffic),
                        f"**{rough(most)}**",
                        rough(bits_a_second(most, traffic) / 1e6),
                    ]
                )
    headings = ["", "ids a call", "CPU, µs a pair", "(range)", "in scripts", "bytes a pair"]
    return table([*headings, f"pairs/s at {percent(BUSY)}", "Mbit/s then"], lines)


def calls(figures: Figures) -> str:
    """The cost of single calls."""
    lines = [_call_line(figures, *call) for call in _single_calls(figures)]
    headings = ["one call of", "CPU, µs", "(range)", "in scripts", "calls/s of a whole core"]
    return table(headings, lines)


def _single_calls(figures: Figures) -> Iterator[tuple[str, Subject, Mode, int, int]]:
    """Name, case, and the number of calls per unit of the case."""
    yield "a script that does nothing", "empty script", "fair", 1, 1
    for size in _sizes(figures, "empty script, pipelined", "fair"):
        yield f"the same, {size} in one write", "empty script, pipelined", "fair", size, 1
    yield "acquire or release of one, free, fair", "free pair", "fair", 1, 2
    yield "acquire or release of one, free, zset", "free pair", "zset", 1, 2
    for size in _sizes(figures, "pair beside heavy", "fair"):
        yield (
            f"the same, fair, beside {size:,} heavy holders",
            "pair beside heavy",
            "fair",
            size,
            2,
        )
    for mode in MODES:
        for size in _sizes(figures, "heartbeat", mode):
            about = f", about {size} waiting" if mode == "fair" else ""
            yield f"heartbeat, {mode}{about}", "heartbeat", mode, size, 1
    for size in _sizes(figures, "refresh", "fair"):
        yield f"refresh of {size:,}", "refresh", "fair", size, 1


def _call_line(
    figures: Figures, name: str, subject: Subject, mode: Mode, size: int, shared: int
) -> list[str]:
    cpu = [cost / shared for cost in figures.rounds(subject, mode, size, _cpu)]
    script = statistics.median(figures.rounds(subject, mode, size, _script)) / shared
    typical = statistics.median(cpu)
    return [name, number(typical), spread(cpu), number(script), rough(SECOND / typical)]


def library(figures: Figures) -> str:
    """The cost of a pair by the library itself."""
    lines: list[list[str]] = []
    for mode in MODES:
        for tasks in _sizes(figures, "library pair", mode):
            cpu = figures.rounds("library pair", mode, tasks, _cpu)
            made = figures.rounds("library pair", mode, tasks, lambda cost: cost.calls)
            lines.append(
                [
                    f"{mode}, {tasks:,} task{'s' if tasks > 1 else ''}",
                    number(2 / statistics.median(made)),
                    number(statistics.median(cpu)),
                    spread(cpu),
                ]
            )
    return table(["one process", "ids a call", "CPU, µs a pair", "(range)"], lines)


def contention(figures: Figures) -> str:
    """What Redis does for processes alone with their semaphores, and for contended ones."""
    lines: list[list[str]] = []
    for fleet, rounds in figures.contention.items():
        typical = Contention(*map(statistics.median, zip(*rounds, strict=True)))
        most = most_a_second(typical.cpu) if typical.calls >= 0.001 else math.inf
        lines.append(
            [
                f"{fleet.label}, {'contended' if fleet.contended else 'alone'}",
                f"{typical.pairs:,.0f}",
                spread([found.pairs for found in rounds]),
                number(typical.pairs * typical.calls),
                f"{typical.calls:.3f}",
                number(typical.cpu),
                number(typical.client_cpu),
                "no calls" if most == math.inf else f"**{rough(most)}**",
            ]
        )
    headings = ["4 processes of 50 tasks", "pairs/s", "(range)", "commands/s", "commands a pair"]
    costs = ["server's CPU, µs a pair", "clients' CPU, µs a pair"]
    return table([*headings, *costs, f"pairs/s of a core at {percent(BUSY)}"], lines)


def memory(figures: Figures) -> str:
    """Bytes per item, and items per gibibyte."""
    typical = figures.typical_memory()
    parts = (
        ("a holder", typical.holder),
        ("a waiter of a `FairSemaphore`", typical.waiter),
        ("a process, in each semaphore that it uses", typical.process),
        ("a process's connection", typical.connection),
    )
    lines = [[what, number(size), rough(fit_into(GIB, size))] for what, size in parts]
    return table(["", "bytes", "in 1 GiB"], lines)


# -- computed


def costs_of(figures: Figures) -> Costs:
    """The costs of many processes. They do not share calls, so each call has one id."""
    (few, some), (one, many) = (
        _sizes(figures, subject, "fair") for subject in ("heartbeat", "refresh")
    )
    handed = figures.cpu("handed pair", "fair", 1)
    # A hand-over between processes adds a push message, and the refresh that follows it.
    refreshed = figures.cpu("refresh", "fair", one)
    message = max(0.0, handed - figures.cpu("home pair", "fair", 1) - refreshed)
    return Costs(
        pair=handed - message,
        message=message,
        heartbeat=line_through(
            (few, figures.cpu("heartbeat", "fair", few)),
            (some, figures.cpu("heartbeat", "fair", some)),
        ),
        refresh=line_through(
            (one, refreshed),
            (many, figures.cpu("refresh", "fair", many)),
        ),
    )


def upkeep(figures: Figures) -> str:
    """The number of processes that only wait, or only hold."""
    costs = costs_of(figures)
    kinds: tuple[tuple[str, Callable[[float], Process]], ...] = (
        ("1 waits", lambda lease: Process(lease, waiting=1)),
        ("100 wait", lambda lease: Process(lease, waiting=100)),
        ("1 is held", lambda lease: Process(lease, held=1)),
        ("100 are held", lambda lease: Process(lease, held=100)),
        ("1,000 are held", lambda lease: Process(lease, held=1000)),
    )
    lines = [
        [f"{lease:g} s"]
        + [
            rough(largest_fleet(load_of(kind(lease), costs), connections=10**12).processes)
            for _, kind in kinds
        ]
        for lease in LEASES
    ]
    return table(["lease", *(name for name, _ in kinds)], lines)


def fleet(figures: Figures) -> str:
    """The maximum number of processes that wait, hold and hand over."""
    costs = costs_of(figures)
    lines: list[list[str]] = []
    for rate in RATES:
        load = load_of(Process(held=10, waiting=10, pairs=rate), costs)
        largest = largest_fleet(load)
        traffic = largest.processes * rate * figures.bytes("handed pair", "fair", 1)
        lines.append(
            [
                f"{rate:g}",
                f"**{rough(largest.processes)}**",
                largest.bound_by,
                rough(largest.processes * rate),
                *(percent(part * largest.processes / SECOND) for part in load),
                rough(8 * traffic / 1e6) if traffic else "–",
            ]
        )
    headings = ["pairs/s of each", "processes", "bound by", "pairs/s in all"]
    shares = ["heartbeats", "refreshes", "pairs", "messages"]
    return table([*headings, *shares, "Mbit/s of pairs"], lines)


def many_names() -> str:
    """The throughput of several shards in units of one."""
    rng = random.Random(SEED)
    lines: list[list[str]] = []
    for names in NAMES:
        sets = [slots_of(names, rng) for _ in range(NAME_SETS)]
        cells = [f"{names:,}"]
        for shards in SHARDS:
            for weights in (equal(names), by_rank(names)):
                found = [worth(slots, weights, shards) for slots in sets]
                cells.append(f"{statistics.median(found):.1f} ({min(found):.1f})")
        lines.append(cells)
    kinds = ("equally busy", "busy by 1/rank")
    headings = [f"{shards} shards, {kind}" for shards in SHARDS for kind in kinds]
    return table(["names", *headings], lines)


def split() -> str:
    """The cost of dividing one limit."""
    lines = [
        [
            name,
            _ceiling(names, full),
            percent(full.utilisation),
            f"{full.wait_p99:.1f}",
            _ceiling(names, usual),
            percent(usual.idle),
            f"{usual.wait_p99:.1f}",
        ]
        for name, names, full, usual in _simulated()
    ]
    full = ("full: ceiling ×", "permits in use", "wait p99")
    usual = ("at 90 %: ceiling ×", "free while somebody waits", "wait p99")
    return table(["", *full, *usual], lines)


def _ceiling(names: int, outcome: Outcome) -> str:
    return f"**{rough(names / outcome.pairs)}**" if names else "no calls"


def _simulated() -> Iterator[tuple[str, int, Outcome, Outcome]]:
    def outcomes(workload: Workload) -> Iterator[tuple[str, int, Outcome]]:
        rng = random.Random(SEED)
        for name, names, policy in strategies(workload, PROCESSES, rng):
            yield name, names, simulate(policy, workload, WORKS, rng)

    both = zip(outcomes(SATURATED), outcomes(AT_90_PERCENT), strict=True)
    for (name, names, saturated), (_, _, usual) in both:
        yield name, names, saturated, usual
