"""The chart of concurrent requests at the upstream and the limit. A PNG, or characters."""

import tempfile
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ._record import Kill, Record, Round

_BARE, _GUARDED, _LIMIT, _DEAD = "#e3a08f", "#3b7dbd", "#e0443c", "#818b96"
_INK = {"light": "#1f2430", "dark": "#e6e9ef"}  # of text and axes, on no background
_BIN = 0.1  # seconds, the bin width of the histogram of refusals
_WIDEST = 110  # of a chart of characters


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


def _highest(record: Record) -> int:
    heights = (height for round_ in record.rounds for _, height in record.heights(round_))
    return max(record.plan.limit, *heights)


def print_chart(record: Record, console: Console) -> None:
    """Print characters, each as high as two requests."""
    limit, highest = record.plan.limit, _highest(record)
    width = min(console.width, _WIDEST) - 4
    limits = [limit] * (width + 1)
    rounds = [[0] * (width + 1) for _ in record.rounds]

    def columns(round_: Round, began: float, ended: float) -> range:
        first, last = (
            int(width * record.axis(round_, at) / record.seconds) for at in (began, ended)
        )
        return range(first, last + 1)

    for heights, round_ in zip(rounds, record.rounds, strict=True):
        for (began, height), (ended, _) in pairwise(record.heights(round_)):
            for column in columns(round_, began, ended):
                heights[column] = max(heights[column], height)
        for (began, capacity), (ended, _) in pairwise(round_.capacities()):
            for column in columns(round_, began, min(ended, round_.began + round_.seconds)):
                limits[column] = capacity
    dotted = ", and the dots are rejected requests" if record.plan.overload else ""
    console.print(
        f"concurrent requests over time; the line is the limit of the upstream, {limit}{dotted}"
    )
    if record.plan.overload:
        refused = Counter(
            columns(round_, event.at, event.at)[0]
            for round_ in record.rounds
            for event in round_.of_kind("refused")
        )
        dots = (" ·•●"[len(str(refused[at])) if refused[at] else 0] for at in range(width + 1))
        console.print(Text(f"   {''.join(dots)}", "red"))
    top = highest + highest % 2
    for level in range(top, 0, -2):
        named = limit if level - 1 <= limit <= level else highest if level == top else ""
        line = Text(f"{named:>2} ")
        for bare, guarded, most in zip(*rounds, limits, strict=True):
            height = max(bare, guarded)
            full = "█" if height >= level else "▄" if height == level - 1 else ""
            at_limit = level - 1 <= most <= level
            line.append(full or ("─" if at_limit else " "), "red" if bare else "blue")
        console.print(line)
    console.print(f"   0{record.seconds:>{width - 2}.1f} s")
    console.print(f"   {record.titles[0]}, then {record.titles[1]}")


def _save_chart(record: Record, path: Path, **options: Any) -> None:
    """Save a picture of both rounds to *path*, drawn by matplotlib."""
    from matplotlib.figure import Figure  # Not pyplot, which has global state and windows.

    figure: Any = Figure(figsize=(11, 5.2), dpi=150, layout="constrained")
    plan = record.plan
    if plan.overload:
        _draw_overload(figure, record)
        figure.savefig(path, **options)
        return
    title = (
        f"{plan.workers} processes, and an upstream that accepts {plan.limit} concurrent requests"
    )
    figure.suptitle(title, fontweight="bold")
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    asked = figure.add_subplot(grid[0])
    refused = figure.add_subplot(grid[1], sharex=asked)
    asked.tick_params(labelbottom=False)
    for axes in (asked, refused):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    _draw_asked(asked, record)
    _draw_refused(refused, record)
    figure.savefig(path, **options)


def _draw_overload(figure: Any, record: Record) -> None:
    """A panel for each round: the capacity as a line, its use below, and refusals as dots."""
    panels = figure.subplots(2, sharex=True)
    pairs = zip(panels, record.rounds, record.titles, (_BARE, _GUARDED), strict=True)
    for axes, round_, title, colour in pairs:
        use, capacity = (
            ([at - round_.began for at, _ in steps], [height for _, height in steps])
            for steps in (round_.inside_at_once(), round_.capacities())
        )
        axes.fill_between(*use, step="post", color=colour, linewidth=0)
        ends = [*capacity[0], round_.seconds], [*capacity[1], capacity[1][-1]]
        axes.step(*ends, where="post", color=_LIMIT, linewidth=1.5)
        refused = Counter(
            int((event.at - round_.began) / _BIN) for event in round_.of_kind("refused")
        )
        top, areas = [1.1 * record.plan.limit] * len(refused), [6 * n for n in refused.values()]
        axes.scatter([_BIN * at for at in refused], top, areas, color=_LIMIT, linewidth=0)
        told = f"{title}: {round_.used:.0%} of the capacity used, {round_.refused:,} rejected"
        axes.set_title(told, loc="left")
        axes.set_ylabel("at once")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds; the area of a dot is the number of requests rejected")


def _draw_asked(axes: Any, record: Record) -> None:
    limit, highest = record.plan.limit, _highest(record)
    for round_, title, colour in zip(record.rounds, record.titles, (_BARE, _GUARDED), strict=True):
        times = [record.axis(round_, at) for at, _ in round_.asked_at_once()]
        heights = [asked for _, asked in round_.asked_at_once()]
        axes.fill_between(times, heights, step="post", color=colour, linewidth=0)
        middle = (times[0] + times[-1]) / 2
        axes.text(middle, highest + 1.5, title, ha="center", va="center", fontsize="large")
    axes.axhline(limit, color=_LIMIT, linewidth=1.5)
    axes.text(
        record.seconds, limit + 0.15, f"limit {limit}", color=_LIMIT, ha="right", va="bottom"
    )
    if (kill := record.bare.kill) is not None:
        at, top = record.axis(record.bare, kill.at), record.bare.most_asked
        axes.vlines(at, 0, top, color=_DEAD, linestyle=":")
        axes.text(at, top, f" {kill.worker} killed", color=_DEAD, va="top")
    if (kill := record.guarded.kill) is not None:
        _draw_permits(axes, record, kill)
    axes.set_ylim(0, highest + 3)
    axes.set_ylabel("concurrent requests")


def _draw_permits(axes: Any, record: Record, kill: Kill) -> None:
    """The permits of a killed worker, as a hatched area below the limit."""
    limit = record.plan.limit
    times = [record.axis(record.guarded, at) for at, _ in kill.permits_by_time]
    lower = [limit - held for _, held in kill.permits_by_time]
    unavailable = "never free again"
    if kill.unavailable is not None:
        unavailable = f"unavailable for {kill.unavailable:.2f} s"
    else:
        times.append(record.seconds)
        lower.append(lower[-1])
    hatched = {"facecolor": "none", "edgecolor": _DEAD, "hatch": "//", "linewidth": 1}
    axes.fill_between(times, lower, limit, step="post", **hatched)
    axes.annotate(
        f"{kill.worker} killed: its {kill.held} permits {unavailable}",
        xy=(times[0], limit),
        xytext=(0, 22),
        textcoords="offset points",
        ha="left",
        color=_DEAD,
    )


def _draw_refused(axes: Any, record: Record) -> None:
    instants = [
        record.axis(round_, event.at)
        for round_ in record.rounds
        for event in round_.of_kind("refused")
    ]
    edges = [n * _BIN for n in range(int(record.seconds / _BIN) + 2)]
    axes.hist(instants, bins=edges, color=_LIMIT)
    axes.set_ylabel("rejected (429)")
    axes.set_xlabel(f"seconds; rejections per {_BIN} s")
    axes.set_ylim(bottom=0)
    if not record.guarded.refused:
        middle = record.seconds - record.guarded.seconds / 2
        axes.text(middle, axes.get_ylim()[1] / 2, "none", ha="center", va="center", color=_DEAD)
