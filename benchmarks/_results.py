"""The result of a case: a table of figures, and aims for some of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

PERCENT = tuple(range(101))


@dataclass(frozen=True, slots=True)
class Acquire:
    """Statistics of the durations of acquires, in seconds.

    Attributes:
        count: number of acquires.
        p50: median.
        p99: 99th percentile.
        p999: 99.9th percentile.
        longest: the longest duration.
        percentiles: percentiles 0 to 100, for plots.
    """

    count: int
    p50: float
    p99: float
    p999: float
    longest: float
    percentiles: tuple[float, ...]

    @classmethod
    def of(cls, waits: Sequence[float]) -> Self | None:
        """The statistics of *waits*; ``None`` if it is empty."""
        if not waits:
            return None
        if len(waits) == 1:
            cuts = [waits[0]] * 999
        else:
            cuts = statistics.quantiles(waits, n=1000, method="inclusive")
        shortest, longest = min(waits), max(waits)
        inner = (cuts[10 * percent - 1] for percent in PERCENT[1:-1])
        return cls(
            len(waits), cuts[499], cuts[989], cuts[998], longest, (shortest, *inner, longest)
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured quantity, once for each round.

    Attributes:
        name: name with unit; it is the column of the table.
        values: one value per round.
    """

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of all rounds, which is the value to compare."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound for the median of a figure.

    Attributes:
        figure: name of the figure.
        bound: the lower or upper bound.
        at_most: whether it is an upper bound.
    """

    figure: str
    bound: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{self.figure} {'≤' if self.at_most else '≥'} {self.bound:g}"

    def met_by(self, median: float) -> bool:
        """Whether *median* is within the bound."""
        return median <= self.bound if self.at_most else median >= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One library or baseline in one setting.

    Attributes:
        label: its name.
        setting: the setting, if the table has several.
        acquire: statistics of acquiring, if it was measured.
        figures: all other figures.
        aims: aims for some of the figures.
    """

    label: str
    setting: str = ""
    acquire: Acquire | None = None
    figures: tuple[Figure, ...] = ()
    aims: tuple[Aim, ...] = ()

    @property
    def subject(self) -> str:
        """Label and setting."""
        return f"{self.label}, {self.setting}" if self.setting else self.label

    def figure(self, name: str) -> Figure:
        """The figure of that name; raises ``KeyError`` if there is none."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    def verdicts(self) -> list[tuple[Aim, bool]]:
        """Each aim, and whether it was met."""
        return [(aim, aim.met_by(self.figure(aim.figure).median)) for aim in self.aims]


@dataclass(frozen=True, slots=True)
class Absent:
    """A library that was not measured, and the reason."""

    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The result of a case.

    Attributes:
        case: name of the case, such as ``P1``.
        title: title of the case.
        how: description of the method.
        loop: event loop.
        rows: measured libraries and baselines.
        absent: libraries that were not measured.
    """

    case: str
    title: str
    how: str
    loop: str
    rows: Sequence[Row]
    absent: Sequence[Absent] = field(default=())

    def row(self, label: str, setting: str = "") -> Row:
        """The row of that label and setting; raises ``KeyError`` if there is none."""
        for row in self.rows:
            if (row.label, row.setting) == (label, setting):
                return row
        raise KeyError((label, setting))
