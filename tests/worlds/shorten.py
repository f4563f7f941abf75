"""Delta debugging: what failed in a long run is shown in a shorter one that fails alike."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def kind_of(wrong: str) -> str:
    """What two failures have in common that are alike."""
    return "".join(c for c in wrong.partition("(")[0] if not (c.isdigit() or c in ".abcdef"))


def shortened(
    steps: Sequence[Step],
    same: Callable[[Sequence[Step]], Sequence[Step] | None],
    most: int,
) -> Sequence[Step]:
    """The fewest of *steps* that are found in *most* runs.

    *same* runs some of them, and returns those that were taken, if it fails in the same way.
    """
    size = (len(steps) + 1) // 2
    start = 0
    while size and most:
        most -= 1
        taken = same([*steps[:start], *steps[start + size :]])
        if taken is not None and len(taken) < len(steps):
            steps = taken
        else:
            start += size
        if start >= len(steps):
            start, size = 0, size // 2
    return steps
