"""The chart of docs/performance.md, of the published figures: ``python -m benchmarks.chart``."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

FIGURES = Path("benchmarks/published/main-cases.md")
PICTURE = Path("docs/pictures")
OURS, OTHERS = "#3b7dbd", "#9aa3ad"
INK = {"light": "#1f2430", "dark": "#e6e9ef"}  # of text and axes, on no background
PAIRS, FIRST = "pairs/s", "acquire p50, ms"
LEFT_OUT = re.compile("tasks|evalsha|scripts|baseline")
PANELS = (  # case, end of the labels in the table, column, title, longest bar
    ("P1", "", PAIRS, "One task: pairs a second", 8_000),
    ("P2", ", 50 tasks", PAIRS, "50 tasks in one process: pairs a second", 60_000),
    ("P9", "", PAIRS, "4 processes of 50 tasks, contended: pairs a second", 12_000),
    ("P4", "", FIRST, "Hand-off to another process: ms (less is better)", 2),
)


def rows(text: str, case: str, end: str, column: str) -> Iterator[tuple[str, float]]:
    """The labels of a case's table that end so, with the medians of *column*."""
    section = re.split(r"^## ", text.partition(f"## {case}: ")[2], flags=re.MULTILINE)[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    place = table[0].index(column) + 1  # its first heading is empty
    for label, *cells in table[2:]:
        without = label.removesuffix(end)
        value = re.match(r"[\d,.]+", cells[place - 1]) if len(cells) >= place else None
        if label.endswith(end) and value and not LEFT_OUT.search(without):
            yield without, float(value[0].replace(",", ""))


def draw(path: Path) -> None:
    """Four panels of bars, the best first; a bar that is too long says its length."""
    figure: Any = import_module("matplotlib.figure").Figure((12, 6.4))
    text = FIGURES.read_text(encoding="utf-8")
    for axes, (case, end, column, title, longest) in zip(
        figure.subplots(2, 2).flat, PANELS, strict=True
    ):
        found = sorted(rows(text, case, end, column), key=lambda one: one[1])
        found = found if column == PAIRS else found[::-1]
        colours = [OURS if label.endswith("Semaphore") else OTHERS for label, _ in found]
        shown = [min(value, longest) for _, value in found]
        axes.barh([label for label, _ in found], shown, color=colours)
        for place, (length, (_, value)) in enumerate(zip(shown, found, strict=True)):
            axes.text(length, place, f" {value:,g}{' →' * (value > longest)}", va="center")
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
        axes.set_xlim(0, 1.2 * max(shown))
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.tight_layout(h_pad=2, w_pad=3)
    figure.savefig(path, transparent=True, dpi=150)


def in_ink(scheme: str) -> AbstractContextManager[None]:
    """Text and axes are drawn in the colour of *scheme*."""
    parts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    context: AbstractContextManager[None] = import_module("matplotlib").rc_context(
        dict.fromkeys(parts, INK[scheme])
    )
    return context


if __name__ == "__main__":
    for scheme in INK:
        with in_ink(scheme):
            draw(PICTURE / f"performance-{scheme}.png")
