"""What is explored: processes with their jobs, and how much may go wrong, as scenarios.txt says.

With ``REDSEM_MODELCHECK=long`` each thing may go wrong once more, in every mode.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from redsem_async import AnySemaphore, FairSemaphore, Rate, Semaphore
from redsem_async._core.keys import Mode, mode_with

LONG = os.environ.get("REDSEM_MODELCHECK") == "long"
NAME = "jobs"


class Budget(NamedTuple):
    """How often each thing may happen, in all processes together."""

    cancels: int = 0  # a job is cancelled in the middle of a call
    cuts: int = 0  # a link breaks; what was on its way to the server may run later, or never
    unnoticed: int = 0  # of the cuts and kills, those that the server does not learn of
    lates: int = 0  # commands of a broken link that run after all
    ticks: int = 0  # time passes although something is on its way
    kills: int = 0
    stops: int = 0  # a process stands still, and goes on later


@dataclass(frozen=True, slots=True)
class Party:
    """A process.

    Attributes:
        jobs: what each does, as `Job` reads it. Each starts when the search says so.
        may: what may happen to it: ``c`` its jobs are cancelled, of which digits name some, ``b``
            its link breaks, ``d`` it is killed, or stands still.
    """

    jobs: tuple[str, ...]
    may: str = ""
    limit: int = 1
    lease: float = 10
    key_limit: int | None = None
    weight_of_b: float = 1
    patience: float | None = None
    rate: float = 1  # per second, where the mode has rates

    def semaphore(self, client: Any, mode: Mode) -> AnySemaphore:
        options: dict[str, Any] = {"lease": self.lease, "limit": self.limit}
        if "+slots" in mode:
            options = {"lease": self.lease, "slots": range(self.limit)}
        if "zset" in mode:
            return Semaphore(client, NAME, **options)
        if "+rate" in mode:
            options["rate"] = Rate(self.rate)
        if "+keys" in mode or "+share" in mode:
            options["key_limit"] = self.key_limit
        if "+share" in mode:
            options |= {"share": True, "patience": self.patience}
            options["weight"] = self._weight
        return FairSemaphore(client, NAME, **options)

    def _weight(self, key: str) -> float:
        return self.weight_of_b if key == "b" else 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A few processes that use one semaphore.

    Attributes:
        opening: what has happened before the search begins.
        grain: seconds that pass at least when time passes.
        release: whether the gate leaves it to a release.
    """

    name: str
    mode: Mode
    release: bool
    parties: tuple[Party, ...]
    opening: tuple[str, ...]
    budget: Budget = field(default_factory=Budget)
    grain: float = 0.05

    def __str__(self) -> str:
        return f"{self.mode} {self.name}"


def _read(text: str) -> Iterator[Scenario]:
    lines = text.partition("\n\n")[2].splitlines()
    for i in range(0, len(lines), 3):
        name, _, modes = lines[i].partition(": ")
        opening, common = _options(lines[i + 1])
        costs = {cost: int(common.pop(cost)) for cost in Budget._fields if cost in common}
        grain = common.pop("grain", 0.05)
        parties = tuple(_party(line, common) for line in lines[i + 2].split(" / "))
        gate, _, later = modes.partition("(")
        for mode in cast("list[Mode]", [*gate.split(), *later.rstrip(")").split()]):
            release = mode not in gate.split()
            yield Scenario(name, mode, release, parties, opening, Budget(**costs), grain)


def _party(line: str, common: dict[str, Any]) -> Party:
    words, own = _options(line)
    jobs = tuple(job.strip() for job in " ".join(words).split("|"))
    return Party(jobs, **common | own)


def _options(line: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The words of a line, and what is set in it."""
    words = [word.partition("=") for word in line.split()]
    said = {name: value for name, sign, value in words if sign}
    numbers = {n: v if n == "may" else float(v) if "." in v else int(v) for n, v in said.items()}
    return tuple(word for word, sign, _ in words if not sign), numbers


def _longer(scenario: Scenario) -> Iterator[Scenario]:
    budget = Budget(*(count + 1 if count else 0 for count in scenario.budget))
    modes = {
        scenario.mode,
        mode_with(cast("Mode", scenario.mode.removesuffix("+slots")), slots=True),
    }
    for mode in sorted(modes):
        yield replace(scenario, mode=mode, budget=budget)


_found = [*_read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))]
SCENARIOS = {str(s): s for each in _found for s in (_longer(each) if LONG else [each])}
