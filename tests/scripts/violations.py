"""What a checker found."""

from collections import Counter
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


class Findings:
    """The violations: all are counted, the first are kept."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.index = 0  # of the current entry

    def add(self, rule: str, where: str, detail: str) -> None:
        self.counts[rule] += 1
        if len(self.violations) < MOST_KEPT:
            self.violations.append(Violation(rule, where, self.index, detail))

    def __str__(self) -> str:
        return "\n".join(map(str, (dict(self.counts), *self.violations[:10])))
