"""What happened, as facts: nothing here decides whether that is good."""

from collections.abc import Iterator
from dataclasses import dataclass

from ._ipc import Event
from ._plan import Plan


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that a worker had answered."""

    number: int
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Round:
    """The same work, once without and once with a semaphore.

    Attributes:
        requests: their numbers.
        began: by ``time.monotonic()``, as all instants here.
        ended: when no worker had anything left to do.
        answers: as the workers told of them.
        failures: why, by number, of requests that a worker gave up.
        visits: what the upstream saw, in its own order: ``entered``, ``left``, ``refused``.
    """

    requests: range
    began: float
    ended: float
    answers: tuple[Answer, ...]
    failures: dict[int, str]
    visits: tuple[Event, ...]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def refusals(self) -> tuple[Event, ...]:
        """What the upstream answered with 429."""
        return tuple(event for event in self.visits if event.kind == "refused")

    @property
    def most_inside(self) -> int:
        """How many were inside the upstream at once, at most."""
        return max((inside for _, inside in self.inside()), default=0)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Requests that no worker had answered."""
        answered = {answer.number for answer in self.answers}
        return tuple(number for number in self.requests if number not in answered)

    def inside(self) -> Iterator[tuple[float, int]]:
        """How many were inside the upstream, from each instant at which that changed."""
        inside = 0
        for event in self.visits:
            if event.kind != "refused":
                inside += 1 if event.kind == "entered" else -1
                yield event.at, inside


@dataclass(frozen=True, slots=True)
class Kill:
    """The end of a worker, and what became of what it had.

    Attributes:
        worker: its label.
        pid: its process.
        returncode: of the process; -9 after a SIGKILL.
        at: when it was dead.
        places: permits that the dead worker held by ``status()``, from each instant at which
            that changed; the last is 0 once all have come back.
        lost: requests that it had started and that were never answered.
        passed_on: requests that it had, but had not started; others did them.
    """

    worker: str
    pid: int
    returncode: int
    at: float
    permits_by_time: tuple[tuple[float, int], ...]
    lost: tuple[int, ...]
    passed_on: tuple[int, ...]

    @property
    def held(self) -> int:
        """How many permits it held when it was dead."""
        return self.permits_by_time[0][1]

    @property
    def free_at(self) -> float | None:
        """When all of its places were free for others; ``None`` if they never were."""
        at, held = self.permits_by_time[-1]
        return None if held else at

    @property
    def unavailable(self) -> float | None:
        """For how many seconds its places were missing."""
        return None if self.free_at is None else self.free_at - self.at


@dataclass(frozen=True, slots=True)
class Record:
    """A whole demo."""

    plan: Plan
    server: str
    bare: Round
    guarded: Round
    kill: Kill | None

    @property
    def answered_meanwhile(self) -> int:
        """How many requests were answered while the killed worker's places were missing."""
        if self.kill is None:
            return 0
        began, ended = self.kill.at, self.kill.free_at or self.guarded.ended
        return sum(began < answer.at < ended for answer in self.guarded.answers)
