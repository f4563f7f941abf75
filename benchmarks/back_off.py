"""Single runs of P15, and its picture: ``python -m benchmarks.back_off 64 --simulate``.

On real processes, or with ``--simulate`` in seconds. ``--set`` changes a scenario's attributes.
"""

import asyncio
import json
from ast import literal_eval
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks._fleet import Result, Scenario, run, simulate
from benchmarks._report import number
from benchmarks._servers import server
from benchmarks.cases.back_off import (
    LABELS,
    MORE,
    SCENARIOS,
    STEP,
    processes,
    quicker,
    record,
    summary,
)

ALL = SCENARIOS | MORE
USED, CAPACITY, REFUSED = "#3b7dbd", "#1f2430", "#e0443c"


async def _run(scenario: Scenario, how: str, which: str) -> Result:
    with server(which) as running:
        fleets = scenario.processes * len(scenario.limits)
        async with processes(fleets, "asyncio") as children:
            return await run(scenario, how, running.url, children)


def main(
    titles: Annotated[list[str] | None, typer.Argument(help=", ".join(ALL))] = None,
    *,
    how: Annotated[
        str, typer.Option(help="Of " + ", ".join(LABELS) + "; several by commas.")
    ] = "fair",
    simulated: Annotated[bool, typer.Option("--simulate", help="In simulated time.")] = False,
    factor: Annotated[float, typer.Option(help="Of the duration.")] = 1.0,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="Such as limits=(30,), hold=0.5, heavy=8.")
    ] = None,
    which: Annotated[
        str, typer.Option("--server", help="embedded, container, or a URL.")
    ] = "embedded",
    out: Annotated[Path | None, typer.Option(help="JSON file for all runs.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG file; without TITLES, of the runs in --out.")
    ] = None,
) -> None:
    """Run scenarios, and print the figures of each phase."""
    changes = {
        name: literal_eval(value) for name, _, value in (c.split("=", 1) for c in changed or ())
    }
    runs = list[dict[str, Any]]() if titles or out is None else json.loads(out.read_text())
    for title in titles or ():
        for each in how.split(","):
            scenario = quicker(replace(ALL[title], **changes), factor)
            if simulated:
                result = simulate(scenario, each)
            else:
                result = asyncio.run(_run(scenario, each, which))
            runs.append(record(title, each, scenario, result))
            for row in summary(scenario, result):
                facts = ", ".join(f"{column} {number(value)}" for column, value in row.items())
                print(f"{title} {each}: {facts}", flush=True)
    if out and titles:
        out.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    if picture:
        draw(runs, picture)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """A panel for each run: capacity as a line, use under it, refusals as dots."""
    figure: Any = import_module("matplotlib.figure").Figure((10, 2.4 * len(runs)))
    panels = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)
    for axes, one in zip(panels.flat, runs, strict=True):
        capacity, use, refused = zip(*one["steps"], strict=True)
        times = [STEP * step for step in range(len(use))]
        axes.fill_between(times, use, step="post", color=USED, linewidth=0)
        axes.step(times, capacity, where="post", color=CAPACITY)
        top = 1.15 * max(capacity)
        middles, tops = [at + STEP / 2 for at in times], [1.15 * max(capacity)] * len(times)
        areas = [2 * count for count in refused]
        axes.scatter(middles, tops, areas, color=REFUSED, clip_on=False, linewidth=0)
        share = sum(map(min, use, capacity)) / sum(capacity)
        told = f"{share:.0%} of the capacity used, {sum(refused):,} refused"
        axes.set_title(
            f"{one.get('label') or LABELS[one['how']]}: {told}", loc="left", fontsize=10
        )
        axes.set_ylabel("requests at once")
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("seconds; a dot's area is the number of refusals")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    typer.run(main)
