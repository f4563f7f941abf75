"""A timeline of the hand-off between two processes, on the clock that both share."""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks._bench import Bench, Case
from benchmarks._children import Context, child
from benchmarks._comparison import name_for
from benchmarks._floors import publish, receive
from benchmarks._libraries import OURS, Options
from benchmarks._stats import script_times
from redsem_async import Permit
from redsem_async._hub.model import Request
from redsem_async._hub.pipeline import Pipeline
from redsem_async._hub.refresher import Refresher
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
FLOORS = {"floor: asyncio protocols": False, "floor: blocking sockets": True}
GAPS = {"warm": 0.001, "cold": 0.010}  # seconds that the other process waits before a release
HOW = (
    "Two processes pass one permit to and fro. Times are medians in µs since release was called,"
    " by CLOCK_MONOTONIC. Warm: the other has waited for about 1 ms; cold: for 10 ms. The server's"
    " times are those of MONITOR, so it has to run on the same machine: a script begins with its"
    " call and ends with the last command inside it. It may begin before the call that wrote"
    " has returned. MONITOR adds about a tenth to all times. Floors: from PUBLISH in one process"
    " to its message in the other."
)

Stamp = tuple[str, float]


async def _pass(
    context: Context, label: str, options: Options, count: int, gap: float
) -> list[Stamp]:
    """A job: take and release a permit *count* times; returns what happened when."""
    if (stamps := context.shared.get("stamps")) is None:
        stamps = context.shared["stamps"] = list[Stamp]()
        _wrap(stamps)
    semaphore = await context.semaphore(label, options)
    stamps.clear()
    for _ in range(count):
        async with semaphore.permit():
            stamps.append(("block entered", time.monotonic()))
            await asyncio.sleep(2 * gap)
        await asyncio.sleep(gap)
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
    wrap(Refresher, "add", "task resumed")


async def _measure(bench: Bench) -> None:
    async with child(bench.loop) as one, child(bench.loop) as two:
        for library in OURS:
            medians: dict[str, dict[str, float]] = {}
            for temperature, gap in GAPS.items():
                bench.progress(f"{library.label}, {temperature}")
                options = Options(url=bench.url, name=name_for("p4"), limit=1)
                both = (
                    process.run(_pass, library.label, options, bench.effort.handoffs, gap)
                    for process in (one, two)
                )
                with script_times(bench.url, options.name) as scripts:
                    stamps = await asyncio.gather(*both)
                medians[temperature] = _medians(stamps, scripts)
            for station in STATIONS:
                figures = {f"{t}, µs": [medians[t][station]] for t in GAPS}
                bench.row(library.label, station, figures=figures)
        for label, blocking in FLOORS.items():
            figures = dict[str, list[float]]()
            for temperature, gap in GAPS.items():
                at = bench.url, name_for("p4"), bench.effort.handoffs
                _, times = await asyncio.gather(
                    one.run(publish, *at, gap, blocking), two.run(receive, *at, blocking)
                )
                figures[f"{temperature}, µs"] = [1e6 * statistics.median(times)]
            bench.row(label, "message read", figures=figures)


def _medians(both: list[list[Stamp]], scripts: list[tuple[float, float]]) -> dict[str, float]:
    """The median time of each station; hand-offs that nobody waited for are left out."""
    taken: dict[str, list[float]] = {station: [] for station in STATIONS}
    for giver, taker in (both, both[::-1]):
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
    return {what: statistics.median(of_one) for what, of_one in taken.items()}


TIMELINE = Case("P4", "Timeline of a hand-off", HOW, _measure)
