"""The chart of concurrent requests at the upstream and the limit. A PNG, or characters."""

import math
import tempfile
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ._record import Record, Round, Steps

_COLOURS = ("#e3a08f", "#3b7dbd")  # of the rounds
_LIMIT, _DEAD = "#e0443c", "#818b96"
_INK = {"light": "#1f2430", "dark": "#e6e9ef"}  # of text and axes, on no background
_BIN = 0.1  # seconds of refusals that one dot stands for
_WIDEST = 110  # of a chart of characters
_GAP = 1.0  # seconds between the rounds in it


def make_folder(folder: Path) -> None:
    """Make *folder* where the chart will be drawn.

    Raises:
        OSError: it cannot be made, or files cannot be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def chart_of(record: Record, console: Console, folder: Path | None) -> Path | None:
    """Draw the chart with matplotlib and return its path. Without matplotlib, print one.

    A *folder* also gets one for pages in each colour scheme.
    """
    console.print()
    if find_spec("matplotlib") is None:
        print_chart(record, console)
        return None
    path = (folder or Path(tempfile.mkdtemp(prefix="redsem-demo-"))) / "redsem-demo.png"
    _save_chart(record, path)
    for scheme, ink in _INK.items() if folder else ():
        import matplotlib as mpl

        library: Any = mpl  # its types are partly unknown
        parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        with library.rc_context(dict.fromkeys(parts, ink)):
            _save_chart(record, path.with_name(f"demo-{scheme}.png"), transparent=True)
    console.print(f"chart: {path}", soft_wrap=True, markup=False)
    return path


def print_chart(record: Record, console: Console) -> None:
    """Print characters, each as high as two requests."""
    limit, top = record.plan.limit, record.highest + record.highest % 2
    seconds = sum(round_.seconds for round_ in record.rounds) + _GAP
    scale = (min(console.width, _WIDEST) - 4) / seconds
    console.print(f"concurrent requests over time; the line is the limit of the upstream, {limit}")
    columns = [_columns(record, round_, scale) for round_ in record.rounds]
    gap = [(0, limit, "")] * (round(scale * seconds) - sum(map(len, columns)) + 1)
    shown = [*columns[0], *gap, *columns[1]]
    for level in range(top, 0, -2):
        named = limit if level - 1 <= limit <= level else record.highest if level == top else ""
        line = Text(f"{named:>2} ")
        for height, most, colour in shown:
            full = "█" if height >= level else "▄" if height == level - 1 else ""
            line.append(full or ("─" if level - 1 <= most <= level else " "), colour)
        console.print(line)
    console.print(f"   0{seconds:>{len(shown) - 3}.1f} s\n   {', then '.join(record.titles)}")


def _columns(record: Record, round_: Round, scale: float) -> list[tuple[int, int, str]]:
    """For each column the highest number of requests, the limit and the colour."""
    count, colour = int(scale * round_.seconds) + 1, "red" if round_ is record.bare else "blue"
    heights, limits = [0] * count, [record.plan.limit] * count
    for steps, kept in ((record.heights(round_), heights), (round_.capacities(), limits)):
        for (began, height), (ended, _) in pairwise([*steps, (round_.began + round_.seconds, 0)]):
            first, last = (int(scale * (at - round_.began)) for at in (began, ended))
            for column in range(first, last + 1):
                kept[column] = height if kept is limits else max(kept[column], height)
    return [*zip(heights, limits, [colour] * count, strict=True)]


def _save_chart(record: Record, path: Path, **options: Any) -> None:
    """Save a panel for each round to *path*, drawn by matplotlib."""
    from matplotlib.figure import Figure  # Not pyplot, which has global state and windows.

    plan = record.plan
    figure: Any = Figure(figsize=(11, 5.2), dpi=150, layout="constrained")
    of = f"an upstream that accepts {plan.limit} concurrent requests"
    figure.suptitle(f"{plan.workers} processes, and {of}", fontweight="bold")
    panels = figure.subplots(2, sharex=True, sharey=True)
    for axes, round_, title, colour in zip(
        panels, record.rounds, record.titles, _COLOURS, strict=True
    ):
        _draw(axes, record, round_, colour)
        used = f"{round_.used:.0%} of the capacity used, " if plan.overload else ""
        axes.set_title(f"{title}: {used}{round_.refused:,} rejected", loc="left")
        axes.set_ylabel("at once")
        axes.set_ylim(0, 1.2 * record.highest)
        axes.margins(x=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds; the area of a dot is the number of requests rejected")
    figure.savefig(path, **options)


def _draw(axes: Any, record: Record, round_: Round, colour: str) -> None:
    """The capacity as a line, its use below, the permits of a killed worker, and refusals."""

    def line(steps: Steps) -> tuple[list[float], list[int]]:
        ended = (round_.began + round_.seconds, steps[-1][1])
        times, heights = zip(*steps, ended, strict=True)
        return [at - round_.began for at in times], [*heights]

    axes.fill_between(*line(record.heights(round_)), step="post", color=colour, linewidth=0)
    axes.step(*line(round_.capacities()), where="post", color=_LIMIT, linewidth=1.5)
    bins = Counter(int((event.at - round_.began) / _BIN) for event in round_.of_kind("refused"))
    areas, top = [6 * count for count in bins.values()], 1.1 * record.highest
    axes.scatter([_BIN * at for at in bins], [top] * len(bins), areas, color=_LIMIT, linewidth=0)
    if (kill := round_.kill) is None:
        return
    at, text = kill.at - round_.began, f" {kill.worker} killed"
    axes.axvline(at, color=_DEAD, linestyle=":")
    if kill.permits_by_time:
        times, held = line([*kill.permits_by_time])
        lower = [record.plan.limit - permits for permits in held]
        hatched = {"facecolor": "none", "edgecolor": _DEAD, "hatch": "//", "linewidth": 1}
        axes.fill_between(times, lower, record.plan.limit, step="post", **hatched)
        text += f": its {kill.held} permits are free {kill.unavailable or math.inf:.2f} s later"
    axes.text(at, record.highest, text, color=_DEAD, va="top")
