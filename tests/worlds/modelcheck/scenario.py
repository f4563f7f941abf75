"""What is explored: processes with their jobs, and how much may go wrong."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from redsem_async._core.keys import Mode

if TYPE_CHECKING:
    from .process import Job

Script = Callable[["Job"], Awaitable[None]]
"""What a job does, by the public methods of the semaphore."""


Opening = tuple[tuple[str, int, int], ...]


def opened(*jobs: tuple[int, int]) -> Opening:
    """Each of these has begun, and has the answer to its first call."""
    rest = ("rest", 0, 0)
    return tuple(event for who, which in jobs for event in (("go", who, which), rest))


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


@dataclass(frozen=True, slots=True)
class Scenario:
    """A few processes that use one semaphore.

    Attributes:
        opening: events that have happened before the search begins.
        grain: seconds that pass at least when time passes.
        prompt: whether a free permit and a waiter must meet without the slow heartbeat, where
            no link broke and nobody died or stood still.
        horizon: seconds in which everything has ended once nothing goes wrong any more.
        release: whether the gate leaves it to a release, because it takes long.
    """

    name: str
    parties: tuple[Party, ...]
    budget: Budget = field(default_factory=Budget)
    opening: Opening = ()
    mode: Mode = "fair"
    grain: float = 0.05
    prompt: bool = True
    horizon: float = 90.0
    release: bool = False

    def __str__(self) -> str:
        return f"{self.mode} {self.name}"
