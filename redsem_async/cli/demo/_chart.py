"""How many were inside the upstream over time, against the limit: a PNG, or characters."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.text import Text

from ._record import Record, Round

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BIN = 0.1  # seconds
_INK, _INSIDE, _LIMIT, _DEAD = "#24292f", "#2a78b8", "#c8322b", "#9a9a9a"


def chart_of(record: Record, console: Console, folder: Path | None) -> Path | None:
    """Draw a PNG into *folder* and return where it is; without matplotlib, print a chart."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        _print_chart(record, console)
        return None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="redsem-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "redsem-demo.png"
    _save_chart(record, path)
    console.print(f"\nchart: {path}", soft_wrap=True)
    return path


# -- as a picture


def _save_chart(record: Record, path: Path) -> None:
    from matplotlib.figure import Figure  # No pyplot: no windows, no state.

    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    inside, refused = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    _draw_inside(inside, record)
    _draw_refused(refused, record)
    figure.savefig(path)


def _draw_inside(axes: "Axes", record: Record) -> None:
    start, limit = record.bare.began, record.plan.limit
    axes.set_title(
        f"Four processes and an upstream that takes {limit} requests at once",
        loc="left",
        fontweight="bold",
    )
    axes.set_ylabel("inside the upstream")
    axes.set_ylim(0, limit + 2.2)
    for round_, title in ((record.bare, "without a semaphore"), (record.guarded, "FairSemaphore")):
        times = [round_.began - start, *(at - start for at, _ in round_.inside())]
        counts = [0, *(inside for _, inside in round_.inside())]
        axes.fill_between(times, counts, step="post", color=_INSIDE, linewidth=0, alpha=0.85)
        middle = (round_.began + round_.ended) / 2 - start
        axes.text(middle, limit + 1.4, title, ha="center", va="center", color=_INK)
    axes.axhline(limit, color=_LIMIT, linewidth=1.5, linestyle="--")
    axes.text(0, limit + 0.15, f"limit {limit}", color=_LIMIT, va="bottom")
    ...


