"""A timeline of the hand-off between two processes, on the clock that both share."""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks._children import JobContext, child
from benchmarks._comparison import name_for
from benchmarks._results import Figure, Row, Table
from benchmarks._server_stats import script_times
from benchmarks._setup import Setup
from benchmarks.libraries import OURS, Options
from redsem_async import Permit
from redsem_async._api import acquiring
from redsem_async._hub.pipeline import Pipeline
from redsem_async._hub.request import Request
from redsem_async._redis.connection import Connection

CALLED = "release called"
SERVER = ("script begun", "script ended")  # by the server's clock
STATIONS = (
    "send begun",
    "bytes written",
    *SERVER,
    "message read",
    "decoded",
    "request granted",
    "task resumed",
    "block entered",
)
GAPS = {"warm": 0.001, "cold": 0.010}  # seconds that the other process waits before a release
HOW = (
    "Two processes pass one permit to and fro. Times are medians in µs since release was called,"
    " by CLOCK_MONOTONIC. Warm: the other has waited for about 1 ms; cold: for 10 ms. The server's"
    " times are those of MONITOR, so it has to run on the same machine: a script begins with its"
    " call and ends with the last command inside it. It may begin before the call that wrote"
    " has returned. MONITOR adds about a tenth to all times."
)

Stamp = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Pass:
    """Take and release a permit *count* times; returns what happened when."""

    label: str
    options: Options
    count: int
    gap: float

    async def run(self, context: JobContext) -> list[Stamp]:
        stamps: list[Stamp] = context.shared.setdefault("stamps", [])
        if not context.shared.get("wrapped"):
            context.shared["wrapped"] = True
            _wrap(stamps)
        semaphore = await context.semaphore(self.label, self.options)
        stamps.clear()
        for _ in range(self.count):
            async with semaphore.permit():
                stamps.append(("block entered", time.monotonic()))
                await asyncio.sleep(2 * self.gap)
            await asyncio.sleep(self.gap)
        return list(stamps)


def _wrap(stamps: list[Stamp]) -> None:
    """Note when the parts of the library are called."""

    def wrap(owner: Any, name: str, station: str, *, after: bool = False) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            if not after:
                stamps.append((station, time.monotonic()))
            result = original(*args, **options)
            if after:
                stamps.append((station, time.monotonic()))
            return result

        setattr(owner, name, noted)

    wrap(Permit, "__aexit__", CALLED)
    wrap(Connection, "send", "send begun")
    wrap(Connection, "send", "bytes written", after=True)
    wrap(Connection, "data_received", "message read")
    wrap(Pipeline, "push_received", "decoded")
    wrap(Request, "serve", "request granted", after=True)
    wrap(acquiring, "_permit", "task resumed")


async def measure(setup: Setup) -> Table:
    """Measure both classes, warm and cold."""
    times: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {}
    async with child(setup.loop) as one, child(setup.loop) as two:
        for temperature, gap in GAPS.items():
            for library in OURS:
                setup.progress(f"{library.label}, {temperature}")
                options = Options(url=setup.url, name=name_for("p4"), limit=1, tasks=1)
                job = Pass(library.label, options, setup.effort.handoffs, gap)
                with script_times(setup.url, options.name) as scripts:
                    both = await asyncio.gather(one.run(job), two.run(job))
                times[library.label, temperature] = _medians(*both, scripts)
    rows = [
        Row(
            label=label,
            setting=station,
            figures=tuple(Figure(f"{t}, µs", times[label, t][station]) for t in GAPS),
        )
        for label in dict.fromkeys(label for label, _ in times)
        for station in times[label, "warm"]
    ]
    return Table(case="P4", title="Timeline of a hand-off", how=HOW, loop=setup.loop, rows=rows)


def _medians(
    one: list[Stamp], two: list[Stamp], scripts: list[tuple[float, float]]
) -> dict[str, tuple[float, ...]]:
    """The median time of each station; hand-offs that nobody waited for are left out."""
    taken: dict[str, list[float]] = {station: [] for station in STATIONS}
    for giver, taker in ((one, two), (two, one)):
        for place, (station, released) in enumerate(giver):
            if station != CALLED:
                continue
            found = {what: at for what, at in giver[place + 1 : place + 3] if what in STATIONS}
            later = [(what, at) for what, at in taker if released < at < released + 0.005]
            decoded = next((n for n, (what, _) in enumerate(later) if what == "decoded"), None)
            if not decoded:
                continue
            # The message is what was read last before it was decoded.
            found["message read"] = later[decoded - 1][1]
            for what, at in later[decoded:]:
                found.setdefault(what, at)
            sent, read = found.get("send begun", released), found["message read"]
            within = (script for script in scripts if sent < script[0] <= script[1] < read)
            found |= zip(SERVER, next(within, ()), strict=False)
            if set(STATIONS) <= set(found):
                for what in STATIONS:
                    taken[what].append(1e6 * (found[what] - released))
    return {what: (statistics.median(of_one),) for what, of_one in taken.items()}
