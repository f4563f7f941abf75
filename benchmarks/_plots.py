"""Plots of a run, as PNG: dark on light, to be read on a page that is either."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks._results import PERCENT, Row, Table
from benchmarks.contenders import OURS

_SIZE = (9, 5.2)  # inches, at 110 dots each
_OURS = ("#0b4f9e", "#c2410c")
_OTHERS = ("#475569", "#6b8e23", "#8b5a9f", "#a3742a", "#0f766e", "#9f1239", "#64748b", "#334155")


def draw(tables: Sequence[Table], folder: Path) -> list[tuple[str, str]]:
    """Draw what the cases give, into *folder*; returns file names, each with what it shows.

    Without matplotlib there are none.
    """
    drawn: list[tuple[str, str]] = []
    if find_spec("matplotlib") is None:
        return drawn
    for table in tables:
        for case, name, shows, plot in _PLOTS:
            if table.case == case and table.rows:
                file = f"{case.lower()}-{name}-{table.loop}.png"
                figure, axes = _figure()
                plot(axes, table)
                axes.set_title(f"{table.case}: {shows} ({table.loop})", loc="left")
                figure.savefig(folder / file)
                _pyplot().close(figure)
                drawn.append((file, f"{shows} ({table.loop})"))
    return drawn


def _pyplot() -> Any:
    import_module("matplotlib").use("Agg")
    return import_module("matplotlib.pyplot")


def _figure() -> tuple[Any, Any]:
    figure, axes = _pyplot().subplots(
        figsize=_SIZE, dpi=110, facecolor="white", layout="constrained"
    )
    axes.grid(visible=True, which="major", color="#d4d4d8", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _style(who: str, number: int) -> dict[str, Any]:
    ours = [library.label for library in OURS]
    if who in ours:
        return {"color": _OURS[ours.index(who)], "linewidth": 2.4, "zorder": 3}
    return {"color": _OTHERS[number % len(_OTHERS)], "linewidth": 1.3, "linestyle": "--"}


def _by_who(table: Table) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        found.setdefault(row.who, []).append(row)
    return found


def _lines(axes: Any, table: Table, figure: str) -> None:
    """A figure against the number that the rows' settings begin with, a line for each subject."""
    for number, (who, rows) in enumerate(_by_who(table).items()):
        points = [
            (_number_in(row.setting), row.figure(figure).median)
            for row in rows
            if figure in {known.name for known in row.figures}
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=who, **_style(who, number))
    axes.set_ylabel(figure)
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)


def _number_in(setting: str) -> int:
    return int(setting.partition(" ")[0].replace(",", ""))


def _throughput(axes: Any, table: Table) -> None:
    _lines(axes, table, "pairs/s")
    ticks = sorted({_number_in(row.setting) for row in table.rows})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yscale("log")
    axes.set_xlabel("tasks")


def _waits(axes: Any, table: Table) -> None:
    for number, row in enumerate(row for row in table.rows if row.acquire):
        assert row.acquire is not None
        times = [max(1000 * seconds, 0.01) for seconds in row.acquire.percentiles]
        axes.plot(times, PERCENT, label=row.who, **_style(row.who, number))
    axes.set_xscale("log")
    axes.set_xlabel("ms that acquiring took")
    axes.set_ylabel("% of acquisitions that took no longer")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _handoffs(axes: Any, table: Table) -> None:
    rows = [row for row in table.rows if row.acquire]
    for number, row in enumerate(rows):
        assert row.acquire is not None
        low, *_, high = (row.acquire.percentiles[percent] for percent in (5, 95))
        style = _style(row.who, number)
        axes.barh(row.who, 1000 * row.acquire.p50, color=style["color"], height=0.55)
        axes.plot([1000 * low, 1000 * high], [row.who, row.who], color="black", linewidth=1.2)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("ms from release to the waiter's first step: median, and 5 to 95 %")


def _population(axes: Any, table: Table) -> None:
    _lines(axes, table, "µs a pair")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("permits held, and requests waiting where there are any")


_PLOTS: tuple[tuple[str, str, str, Callable[[Any, Table], None]], ...] = (
    ("P2", "throughput", "pairs a second by number of tasks", _throughput),
    ("P3", "waits", "how long 50 tasks wait for 5 permits", _waits),
    ("P4", "handoff", "a permit goes from one process to another", _handoffs),
    ("P6", "population", "cost of a pair by number of holders and waiters", _population),
)
