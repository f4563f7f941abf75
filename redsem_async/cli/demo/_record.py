"""The recorded facts of a demo. `_verdict` judges them."""

from collections.abc import Iterator
from dataclasses import dataclass

from ._ipc import Event
from ._plan import Plan

_GAP = 1.0  # seconds between the rounds in a chart


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that was answered, and its worker."""

    number: int
    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Kill:
    """The killed worker of a round, its requests and its permits.

    Attributes:
        worker: its label.
        pid: its process id.
        returncode: return code of the process; -9 after a SIGKILL.
        at: when the process had ended.
        lost: requests that it had started and that were never answered.
        passed_on: requests that it had not started; other workers processed them.
        permits_by_time: with a semaphore, the permits that the dead worker held according to
            ``status()``: each change with its time; the last is 0 once all are free.
    """

    worker: str
    pid: int
    returncode: int
    at: float
    lost: tuple[int, ...]
    passed_on: tuple[int, ...]
    permits_by_time: tuple[tuple[float, int], ...] = ()

    @property
    def held(self) -> int:
        """The number of permits it held when it died."""
        return self.permits_by_time[0][1]

    @property
    def free_at(self) -> float | None:
        """When all of its permits were free; ``None`` if they never were."""
        at, held = self.permits_by_time[-1]
        return None if held else at

    @property
    def unavailable(self) -> float | None:
        """For how many seconds its permits were unavailable to others."""
        return None if self.free_at is None else self.free_at - self.at


@dataclass(frozen=True, slots=True)
class Round:
    """One round, without or with a semaphore.

    Attributes:
        requests: the numbers of the requests.
        began: start, by ``time.monotonic()`` as all times here.
        ended: when all requests were finished.
        answers: answered requests, as reported by the workers.
        failures: the reason for each failed request, by number.
        visits: events of the upstream in order: ``entered``, ``left``, ``refused``.
        asked: by how much the number of requests changed that workers had begun and not finished,
            with the time of each change.
        kill: the worker that was killed; ``None`` if the round ended before.
    """

    requests: range
    began: float
    ended: float
    answers: tuple[Answer, ...]
    failures: dict[int, str]
    visits: tuple[Event, ...]
    asked: tuple[tuple[float, int], ...] = ()
    kill: Kill | None = None

    @property
    def seconds(self) -> float:
        """The duration of the round."""
        return self.ended - self.began

    @property
    def refusals(self) -> tuple[Event, ...]:
        """The requests that the upstream refused with 429."""
        return tuple(event for event in self.visits if event.kind == "refused")

    @property
    def most_inside(self) -> int:
        """The maximum number of requests inside the upstream at once."""
        return max((inside for _, inside in self.inside()), default=0)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """The requests that were never answered."""
        answered = {answer.number for answer in self.answers}
        return tuple(number for number in self.requests if number not in answered)

    @property
    def most_asked(self) -> int:
        """The maximum number of requests that were asked of the upstream at once."""
        return max((asked for _, asked in self.asked_at_once()), default=0)

    def asked_at_once(self) -> Iterator[tuple[float, int]]:
        """The number of requests that workers wanted answers to: each change with its time."""
        asked = 0
        for at, change in sorted(self.asked):
            asked += change
            yield at, asked

    def inside(self) -> Iterator[tuple[float, int]]:
        """The number of requests inside the upstream: each change with its time."""
        inside = 0
        for event in self.visits:
            if event.kind != "refused":
                inside += 1 if event.kind == "entered" else -1
                yield event.at, inside


@dataclass(frozen=True, slots=True)
class Record:
    """All recorded facts of a demo."""

    plan: Plan
    server: str
    bare: Round
    guarded: Round

    @property
    def seconds(self) -> float:
        """The length of the charts' time axis."""
        return self.axis(self.guarded, self.guarded.ended)

    def axis(self, round_: Round, at: float) -> float:
        """Where *at* is on a time axis on which the second round begins soon after the first."""
        before = 0.0 if round_ is self.bare else self.bare.seconds + _GAP
        return before + at - round_.began

    @property
    def answered_meanwhile(self) -> int:
        """The number of requests answered while the killed worker's permits were unavailable."""
        kill = self.guarded.kill
        if kill is None:
            return 0
        began, ended = kill.at, kill.free_at or self.guarded.ended
        return sum(began < answer.at < ended for answer in self.guarded.answers)
