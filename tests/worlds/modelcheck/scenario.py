"""What is explored: processes with their jobs, and how much may go wrong."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from redsem_async._core.keys import Mode

if TYPE_CHECKING:
    from .process import Job

Script = Callable[["Job"], Awaitable[None]]
"""What a job does, by the public methods of the semaphore."""


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
        scripts: of its jobs. Each starts when the search says so.
        cancels: the jobs that may be cancelled.
        breaks: whether its link may break.
        dies: whether it may be killed, or stand still.
        key_limit: of each key, where requests have keys.
        weights: of keys that share the limit, where they are not 1.
        patience: with which their requests wait, in seconds.
    """

    scripts: tuple[Script, ...]
    limit: int = 1
    lease: float = 10.0
    cancels: tuple[int, ...] = (0, 1, 2)
    breaks: bool = True
    dies: bool = True
    key_limit: int | None = None
    weights: tuple[tuple[str, float], ...] = ()
    patience: float | None = None

    def but(self, *scripts: Script, **changes: Any) -> Self:
        return replace(self, scripts=scripts or self.scripts, **changes)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A few processes that use one semaphore.

    Attributes:
        opening: what has happened before the search begins: ``10`` if the first job of the second
            process has begun, ``10.`` if all that follows has, too.
        grain: seconds that pass at least when time passes.
        release: whether the gate leaves it to a release, because it takes long.
    """

    name: str
    parties: tuple[Party, ...]
    budget: Budget
    opening: str = ""
    mode: Mode = "fair"
    grain: float = 0.05
    release: bool = False

    def __str__(self) -> str:
        return f"{self.mode} {self.name}"


def scenario(
    name: str,
    *parties: Party,
    opening: str = "",
    mode: Mode = "fair",
    grain: float = 0.05,
    release: bool = False,
    budget: Budget | None = None,
    **costs: int,
) -> Scenario:
    return Scenario(name, parties, budget or Budget(**costs), opening, mode, grain, release)
