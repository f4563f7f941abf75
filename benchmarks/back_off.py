"""Single runs of P15, and its picture: ``python -m benchmarks.back_off 64 --simulate``."""

import asyncio
import json
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks._fleet import Result, Scenario, children, run, simulate
from benchmarks._report import number
from benchmarks._servers import server
from benchmarks._upstream import uses
from benchmarks.cases.back_off import LABELS, MORE, SCENARIOS, figures, lasting
from benchmarks.chart import INK, in_ink

ALL = SCENARIOS | MORE
STEP = 0.25  # seconds, of the picture
USED, REFUSED = "#3b7dbd", "#e0443c"


async def _run(scenario: Scenario, how: str) -> Result:
    with server("embedded") as running:
        async with children(scenario.processes * len(scenario.limits), "asyncio") as processes:
            return await run(scenario, how, running.url, processes)


def main(
    titles: Annotated[list[str] | None, typer.Argument(help=", ".join(ALL))] = None,
    *,
    how: Annotated[str, typer.Option(help=", ".join(LABELS))] = "fair",
    simulated: Annotated[bool, typer.Option("--simulate", help="In simulated time.")] = False,
    factor: Annotated[float, typer.Option(help="Of the duration.")] = 1.0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Such as limits=(30,), hold=0.5, heavy=8.")
    ] = None,
    label: Annotated[str, typer.Option(help="In the picture.")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file that the runs are added to.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Of all runs in --out; -light.png and -dark.png are added.")
    ] = None,
) -> None:
    """Run scenarios, and print the figures of each phase."""
    changed = {name: literal_eval(of) for name, of in (one.split("=") for one in changes or ())}
    runs: list[Any] = json.loads(out.read_text()) if out and out.exists() else []
    for title in titles or ():
        scenario = lasting(replace(ALL[title], **changed), factor)
        for each in how.split(","):
            result = simulate(scenario, each) if simulated else asyncio.run(_run(scenario, each))
            rows = figures(scenario, result)
            for row in rows:
                facts = (f"{column} {number(value)}" for column, value in row.items())
                print(title, each, ", ".join(facts), flush=True)
            steps = _steps(scenario, result)
            about = {"scenario": title, "how": each, "label": label or LABELS[each]}
            runs.append(about | {"simulated": simulated, "phases": rows, "steps": steps})
    if out:
        out.write_text(json.dumps(runs) + "\n", encoding="utf-8")
    for scheme in INK if picture else ():
        with in_ink(scheme):
            draw(runs, Path(f"{picture}-{scheme}.png"), INK[scheme])


def _steps(scenario: Scenario, result: Result) -> list[tuple[int, float, int]]:
    """Capacity, mean use and refusals of each step."""
    keys = max(1, scenario.keys)
    capacities = [
        (STEP, keys * phase.capacity)
        for phase in scenario.phases
        for _ in range(round(phase.seconds / STEP))
    ]
    found = uses(result.events, capacities)
    return [(use.capacity, round(use.busy / STEP, 2), use.refused) for use in found]


def draw(runs: list[Mapping[str, Any]], path: Path, ink: str) -> None:
    """A panel for each run: the capacity as a line, its use below, and refusals as dots."""
    figure: Any = import_module("matplotlib.figure").Figure((10, 2.2 * len(runs)))
    panels = figure.subplots(len(runs), sharex=True, squeeze=False)[:, 0]
    for axes, each in zip(panels, runs, strict=True):
        capacity, use, refused = zip(*each["steps"], strict=True)
        times = [STEP * step for step in range(len(use))]
        axes.fill_between(times, use, step="post", color=USED, linewidth=0)
        axes.step(times, capacity, where="post", color=ink)
        top, areas = [1.1 * max(capacity)] * len(times), [2 * count for count in refused]
        axes.scatter(times, top, areas, color=REFUSED, clip_on=False, linewidth=0)
        told = f"{sum(use) / sum(capacity):.0%} of the capacity used, {sum(refused):,} refused"
        axes.set_title(f"{each['label']}: {told}", loc="left", fontsize=10, pad=10)
        axes.set_ylabel("at once")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds; the area of a dot is the number of requests refused")
    figure.tight_layout()
    figure.savefig(path, transparent=True, dpi=150)


if __name__ == "__main__":
    typer.run(main)
