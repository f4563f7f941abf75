"""What a case yields: figures, a table of them, and aims that are judged by them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

PERCENT = tuple(range(101))


@dataclass(frozen=True, slots=True)
class Acquire:
    """How long acquiring took, in seconds.

    Attributes:
        count: how many acquisitions these are.
        p50: half of them took no longer.
        p99: 99 of 100 took no longer.
        p999: 999 of 1,000 took no longer.
        longest: what the slowest took.
        percentiles: all of 0 to 100, for plots.
    """

    count: int
    p50: float
    p99: float
    p999: float
    longest: float
    percentiles: tuple[float, ...]

    @classmethod
    def of(cls, waits: Sequence[float]) -> Self | None:
        """Of single times; ``None`` if there are none."""
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
        name: what it is, with its unit; the same name is the same column of a table.
        values: one for each round.
    """

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one to compare."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure's median ought to be.

    Attributes:
        figure: its name.
        bound: the least that it ought to be, or the most.
        at_most: whether it is the most.
    """

    figure: str
    bound: float
    at_most: bool = False

    def met_by(self, median: float) -> bool:
        """Whether a figure of that median does."""
        return median <= self.bound if self.at_most else median >= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One subject in one setting.

    Attributes:
        who: what was measured.
        setting: under which circumstances, where a table has several.
        acquire: how long acquiring took, where anybody acquired.
        figures: all else that was measured.
        aims: what some of the figures ought to be.
    """

    label: str
    setting: str = ""
    acquire: Acquire | None = None
    figures: tuple[Figure, ...] = ()
    aims: tuple[Aim, ...] = ()

    @property
    def subject(self) -> str:
        """Who, and in which setting."""
        return f"{self.label}, {self.setting}" if self.setting else self.label

    def figure(self, name: str) -> Figure:
        """The figure of that name; ``KeyError`` if it was not measured."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    def verdicts(self) -> list[tuple[Aim, bool]]:
        """The aims, each with whether it was met."""
        return [(aim, aim.met_by(self.figure(aim.figure).median)) for aim in self.aims]


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that is not in a table, and why."""

    label: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The outcome of a case.

    Attributes:
        case: its name, such as ``P1``.
        title: what it measures.
        how: what a reader must know to understand the figures.
        loop: the event loop it ran on.
        rows: what was measured.
        absent: what was not.
    """

    case: str
    title: str
    how: str
    loop: str
    rows: Sequence[Row]
    absent: Sequence[Absent] = field(default=())

    def row(self, label: str, setting: str = "") -> Row:
        """The row of that subject in that setting; ``KeyError`` if there is none."""
        for row in self.rows:
            if (row.label, row.setting) == (label, setting):
                return row
        raise KeyError((label, setting))
