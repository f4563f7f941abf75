"""The chart as characters, drawn by plotext."""

from importlib import import_module
from typing import Any

from rich.console import Console
from rich.text import Text

from ._record import Record, Round

_HEIGHT = 16
_WIDEST = 110


def print_chart(record: Record, console: Console) -> None:
    """Print a chart of both rounds."""
    try:
        plotext: Any = import_module("plotext")
    except ImportError as error:  # Its C++ extension is not built for every platform.
        console.print(f"no chart: {str(error).splitlines()[0]}", markup=False)
        return
    limit = record.plan.limit
    width = min(console.width, _WIDEST)
    highest = max(record.bare.most_asked, record.guarded.most_asked, limit)

    figure: Any = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, _HEIGHT)
    for round_, colour in ((record.bare, "red"), (record.guarded, "blue")):
        instants, most = _most_asked(round_, record.axis(round_, round_.began), width)
        asked = figure.signal(instants, most, marker=plotext.marker("hd", colour))
        figure.draw(asked.lines().fillx())
    figure.line(limit, pixel="default")
    figure.title(f"requests asked of the upstream at once; the line is its limit, {limit}")
    figure.ruler("y").lim(0, highest + 1)
    figure.ruler("y").ticks([0, limit, highest])
    figure.ruler("x").lim(0, record.seconds)
    figure.label("seconds: without a semaphore (red), then with one (blue)")
    console.print(Text.from_ansi(str(figure.build())))


def _most_asked(round_: Round, begins: float, bins: int) -> tuple[list[float], list[int]]:
    """The maximum number of requests asked at once, in each of *bins* equal periods of a round.

    The first of them begins at *begins* on the time axis.
    """
    piece = round_.seconds / bins
    most = [0] * bins
    last = before = 0
    for at, asked in round_.asked_at_once():
        now = min(int((at - round_.began) / piece), bins - 1)
        for between in range(last, now + 1):
            most[between] = max(most[between], before)
        most[now] = max(most[now], asked)
        last, before = now, asked
    return [begins + n * piece for n in range(bins)], most
