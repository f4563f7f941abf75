"""The chart as characters, drawn by plotext."""

from importlib import import_module
from itertools import chain
from typing import Any

from rich.console import Console
from rich.text import Text

from ._record import Record

_HEIGHT = 16
_WIDEST = 110


def print_chart(record: Record, console: Console) -> None:
    """Print a chart of both rounds."""
    try:
        plotext: Any = import_module("plotext")
    except ImportError as error:  # Its C++ extension is not built for every platform.
        console.print(f"no chart: {str(error).splitlines()[0]}", markup=False)
        return
    limit, start, end = record.plan.limit, record.bare.began, record.guarded.ended
    width = min(console.width, _WIDEST)
    instants, most = _most_inside(record, 2 * width)
    refused = [event.at - start for event in record.bare.refusals + record.guarded.refusals]

    figure: Any = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, _HEIGHT)
    inside = figure.signal(instants, most, marker=plotext.marker("hd", "blue"))
    figure.draw(inside.lines().fillx())
    figure.line(limit, pixel="red")
    if refused:
        height = [limit + 1] * len(refused)
        figure.draw(figure.signal(refused, height, marker=plotext.marker("x", "red")))
    figure.title(f"requests inside the upstream, limit {limit}; x: refused (429)")
    figure.ruler("y").lim(0, limit + 2)
    figure.ruler("y").ticks(list(range(0, limit + 1, 2)))
    figure.ruler("x").lim(0, end - start)
    figure.label("seconds: without a semaphore, then with FairSemaphore")
    console.print(Text.from_ansi(str(figure.build())))


def _most_inside(record: Record, bins: int) -> tuple[list[float], list[int]]:
    """The maximum number of requests inside, in each of *bins* equal periods."""
    start = record.bare.began
    piece = (record.guarded.ended - start) / bins
    most = [0] * bins
    last = before = 0
    for at, inside in chain(record.bare.inside(), record.guarded.inside()):
        now = min(int((at - start) / piece), bins - 1)
        for between in range(last, now + 1):
            most[between] = max(most[between], before)
        most[now] = max(most[now], inside)
        last, before = now, inside
    return [n * piece for n in range(bins)], most
