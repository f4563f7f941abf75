"""The chart as a PNG, drawn by matplotlib."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure  # Not pyplot, which has global state and windows.

from ._record import Kill, Record, Round

_ASKED, _UNLIMITED, _LIMIT, _DEAD = "#3b7dbd", "#e3a08f", "#c8322b", "#6e7781"
_BIN = 0.1  # seconds; the bin width of the histogram of refusals


def save_chart(record: Record, path: Path) -> None:
    """Save a chart of both rounds to *path*."""
    figure: Any = Figure(figsize=(11, 5.2), dpi=150, layout="constrained")
    figure.suptitle(
        f"{record.plan.workers} processes, and an upstream that accepts"
        f" {record.plan.limit} concurrent requests",
        fontweight="bold",
    )
    grid = figure.add_gridspec(2, 1, height_ratios=(4, 1))
    asked = figure.add_subplot(grid[0])
    refused = figure.add_subplot(grid[1], sharex=asked)
    asked.tick_params(labelbottom=False)
    for axes in (asked, refused):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    _draw_asked(asked, record)
    for round_ in (record.bare, record.guarded):
        if round_.kill is not None:
            _draw_kill(asked, record, round_, round_.kill)
    _draw_refused(refused, record)
    figure.savefig(path)


def _draw_asked(axes: Any, record: Record) -> None:
    limit = record.plan.limit
    titles = ("without a semaphore", f"with FairSemaphore, limit {limit}")
    highest = max(record.bare.most_asked, record.guarded.most_asked, limit)
    colours = (_UNLIMITED, _ASKED)
    for round_, title, colour in zip((record.bare, record.guarded), titles, colours, strict=True):
        instants = [round_.began, *(at for at, _ in round_.asked_at_once())]
        times = [record.axis(round_, at) for at in instants]
        counts = [0, *(count for _, count in round_.asked_at_once())]
        axes.fill_between(times, counts, step="post", color=colour, linewidth=0)
        middle = record.axis(round_, (round_.began + round_.ended) / 2)
        axes.text(middle, highest + 1.5, title, ha="center", va="center", fontsize="large")
    axes.axhline(limit, color=_LIMIT, linewidth=1.5)
    axes.text(0, limit + 0.15, f"limit {limit}", color=_LIMIT, va="bottom")
    axes.set_ylim(0, highest + 3)
    axes.set_ylabel("requests asked at once")


def _draw_kill(axes: Any, record: Record, round_: Round, kill: Kill) -> None:
    """When a worker was killed; its permits, if any, as a hatched area below the limit."""
    limit = record.plan.limit
    if not kill.permits_by_time:
        at, top = record.axis(round_, kill.at), round_.most_asked
        axes.vlines(at, 0, top, color=_DEAD, linestyle=":")
        axes.text(at, top, f" {kill.worker} killed", color=_DEAD, va="top")
        return
    times = [record.axis(round_, at) for at, _ in kill.permits_by_time]
    lower = [limit - held for _, held in kill.permits_by_time]
    if kill.free_at is None:
        times.append(record.seconds)
        lower.append(lower[-1])
    axes.fill_between(
        times,
        lower,
        limit,
        step="post",
        facecolor="none",
        edgecolor=_DEAD,
        hatch="//",
        linewidth=1,
    )
    unavailable = (
        "never free again"
        if kill.unavailable is None
        else f"unavailable for {kill.unavailable:.2f} s"
    )
    axes.annotate(
        f"{kill.worker} killed: its {kill.held} permits {unavailable}",
        xy=((times[0] + times[-1]) / 2, limit),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        color=_DEAD,
    )


def _draw_refused(axes: Any, record: Record) -> None:
    rounds = (record.bare, record.guarded)
    instants = [record.axis(each, event.at) for each in rounds for event in each.refusals]
    edges = [n * _BIN for n in range(int(record.seconds / _BIN) + 2)]
    axes.hist(instants, bins=edges, color=_LIMIT)
    axes.set_ylabel("refused (429)")
    axes.set_xlabel(f"seconds; refusals per {_BIN} s")
    axes.set_ylim(bottom=0)
    middle = (record.axis(record.guarded, record.guarded.began) + record.seconds) / 2
    if not record.guarded.refusals:
        axes.text(middle, axes.get_ylim()[1] / 2, "none", ha="center", va="center", color=_DEAD)
