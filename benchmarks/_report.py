"""Figures as people read them."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case: percentiles of acquire first.

    Attributes:
        case: which.
        subject: what was measured.
        pairs: acquire and release pairs a second, a figure for each round.
        ratio: to the floor, in the same round; above 1 is more pairs than the floor.
        floor: what the ratio is to.
        acquire: seconds that acquiring took, all of them; empty for floors.
    """

    case: str
    subject: str
    pairs: Sequence[float]
    ratio: Sequence[float]
    floor: str
    acquire: Sequence[float] = ()

    def as_dict(self) -> dict[str, object]:
        """For a file."""
        return {**asdict(self), "acquire": self.percentiles()}

    def percentiles(self) -> list[float]:
        """p50, p99 and p99.9 of acquire, in seconds."""
        if not self.acquire:
            return []
        cuts = statistics.quantiles(self.acquire, n=1000, method="inclusive")
        return [cuts[499], cuts[989], cuts[998]]


def as_markdown(rows: Sequence[Row]) -> str:
    """A table: medians, and the spread of the ratio in brackets."""
    lines = [
        "| case | subject | acquire p50 / p99 / p99.9, ms | pairs/s | ratio to floor | floor |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        latency = " / ".join(f"{1000 * value:.2f}" for value in row.percentiles()) or "-"
        low, high = min(row.ratio), max(row.ratio)
        ratio = f"{statistics.median(row.ratio):.2f} ({low:.2f}-{high:.2f})"
        pairs = f"{statistics.median(row.pairs):,.0f}"
        cells = (row.case, row.subject, latency, pairs, ratio, row.floor)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
