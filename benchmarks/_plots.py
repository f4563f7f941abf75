"""Plots of a run, as PNG: dark on light, readable on light and dark pages."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks._node import LABEL
from benchmarks._results import PERCENT, Table
from benchmarks.libraries import ALL_OURS, LINGERING, OURS, PEERS, REDIS_LOCK

_SIZE = (9, 5.2)  # inches, at 110 dots each
_COLORS = dict(
    zip(
        [*(library.label for library in (*OURS, *PEERS, REDIS_LOCK)), LABEL],
        ["#0b4f9e", "#c2410c", "#8b5a9f", "#a3742a", "#0f766e", "#be123c", "#64748b", "#4d7c0f"],
        strict=True,
    )
)
_BASELINE = "#18181b"


def draw(tables: Sequence[Table], folder: Path) -> list[tuple[str, str]]:
    """Draw the plots into *folder*; returns file names with titles.

    Returns none if matplotlib is missing.
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
    axes.set_axisbelow(True)
    return figure, axes


def _style(label: str) -> dict[str, Any]:
    """The line style of a library, the same in all plots."""
    color = _COLORS.get(label.removesuffix(", linger"), _BASELINE)
    if label in {library.label for library in ALL_OURS}:
        lingers = label in {library.label for library in LINGERING}
        return {
            "color": color,
            "linewidth": 2.4,
            "zorder": 3,
            "linestyle": ":" if lingers else "-",
        }
    return {"color": color, "linewidth": 1.3, "linestyle": "--"}


def _lines(axes: Any, table: Table, figure: str) -> None:
    """Plot a figure over the number at the start of each setting, one line per subject."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in table.rows:
        if figure in {known.name for known in row.figures}:
            count, of_what = _split(row.setting)
            point = count, row.figure(figure).median
            lines.setdefault((row.label, of_what), []).append(point)
    several = len({of_what for _, of_what in lines}) > 1
    for (subject, of_what), points in lines.items():
        style = _style(subject)
        if several and "waiting" in of_what:
            style["linestyle"] = ":"
        label = f"{subject}, {of_what}" if several else subject
        axes.plot(*zip(*points, strict=True), marker="o", label=label, **style)
    axes.set_ylabel(figure)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _plain_log(axes: Any, *names: str) -> None:
    """Logarithmic axes with plain numbers as ticks."""
    axes.set(**{f"{name}scale": "log" for name in names})
    for name in names:
        getattr(axes, f"{name}axis").set_major_formatter(_written_out)


def _written_out(value: float, _: int) -> str:
    return f"{value:,g}"


def _split(setting: str) -> tuple[int, str]:
    """The number and the noun of a setting such as ``1,000 tasks``."""
    count, _, of_what = setting.partition(" ")
    return int(count.replace(",", "")), of_what


def _throughput(axes: Any, table: Table) -> None:
    _lines(axes, table, "pairs/s")
    ticks = sorted({_split(row.setting)[0] for row in table.rows})
    _plain_log(axes, "x", "y")
    axes.set_xticks(ticks)
    axes.minorticks_off()
    axes.set_xlabel("tasks")


def _waits(axes: Any, table: Table) -> None:
    for row in table.rows:
        if row.acquire is None:
            continue
        times = [max(1000 * seconds, 0.01) for seconds in row.acquire.percentiles]
        axes.plot(times, PERCENT, label=row.label, **_style(row.label))
    _plain_log(axes, "x")
    axes.set_xlabel("acquire, ms")
    axes.set_ylabel("% of acquires that took at most that long")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _handoffs(axes: Any, table: Table) -> None:
    for row in table.rows:
        if row.acquire is None:
            continue
        ends = [1000 * row.acquire.percentiles[percent] for percent in (5, 95)]
        color = _style(row.label)["color"]
        axes.plot(
            ends, [row.label] * 2, color=color, linewidth=5, alpha=0.45, solid_capstyle="butt"
        )
        axes.plot(1000 * row.acquire.p50, row.label, "o", color=color, markersize=9)
    axes.invert_yaxis()
    _plain_log(axes, "x")
    axes.set_xlabel("ms from release to the waiter's first step: median, and 5 to 95 %")


def _population(axes: Any, table: Table) -> None:
    _lines(axes, table, "µs per pair")
    _plain_log(axes, "x")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("permits held (and requests waiting)")


_PLOTS: tuple[tuple[str, str, str, Callable[[Any, Table], None]], ...] = (
    ("P2", "throughput", "pairs per second by number of tasks", _throughput),
    ("P3", "waits", "acquire times of 50 tasks with 5 permits", _waits),
    ("P4", "handoff", "hand-off of a permit between processes", _handoffs),
    ("P6", "population", "cost of a pair by number of holders and waiters", _population),
)
