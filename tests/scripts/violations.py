"""What a checker found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_KEPT = 200


class Violation(NamedTuple):
    """A promise that was not kept: by which entry of the journal, and on which semaphore."""

    rule: str
    where: str
    entry: int
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail} ({self.where}, entry {self.entry})"


@dataclass
class Findings:
    """The violations: all are counted, the first are kept."""

    violations: list[Violation] = field(default_factory=list[Violation])
    counts: Counter[str] = field(default_factory=Counter[str])
    index: int = 0  # of the entry that is looked at

    def add(self, rule: str, where: str, detail: str) -> None:
        self.counts[rule] += 1
        if len(self.violations) < MOST_KEPT:
            self.violations.append(Violation(rule, where, self.index, detail))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        lines = [f"{count} x {rule}" for rule, count in self.counts.most_common()]
        return "\n".join([*lines, *map(str, self.violations[:10])])
