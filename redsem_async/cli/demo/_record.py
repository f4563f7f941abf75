"""What happened in a demo, and which promises the semaphore broke. No I/O."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

_LEAST_USED = 0.5  # of the upstream's capacity, with a back-off


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a demo."""

    requests: int  # in each of the two rounds
    limit: int  # concurrent requests that the upstream accepts, and the limit of the semaphore
    # Far longer than a request, so that the requests of a killed worker have left the upstream
    # before its permits are granted to others.
    lease: float
    workers: int = 4
    slots: int = 6  # requests assigned to one worker at a time
    overload: float = 0.0  # seconds in which the upstream accepts a quarter. Nobody is killed
    most: int = 0  # the limit of the semaphore, if that is not the upstream's


@dataclass(frozen=True, slots=True)
class Step:
    """An event at the upstream or in a worker.

    At the upstream, a request ``entered``, ``left`` or was ``refused``; a new ``capacity`` has
    the place of the request. In a worker, it was ``started`` (holding a permit, if there is a
    semaphore), is ``retrying`` after it was refused (or ``waiting``, for another permit), was
    ``answered``, or ``failed``.
    """

    kind: str
    request: int
    at: float  # by time.monotonic(), which all processes of a machine share
    detail: str = ""  # why it failed


Steps = list[tuple[float, int]]
"""A number as it changes, with the times."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The killed worker of a round, its requests and its permits."""

    worker: str
    pid: int
    returncode: int  # -9 after a SIGKILL
    at: float  # when the process had ended
    lost: tuple[int, ...]  # requests that it had started and that were never answered
    passed_on: tuple[int, ...]  # requests it had not started, which other workers processed
    # With a semaphore, the permits that the dead worker held according to status(). Each change
    # has its time, and the last is 0 once all are free.
    permits_by_time: tuple[tuple[float, int], ...] = ()

    @property
    def held(self) -> int:
        """The number of permits it held when it died."""
        return self.permits_by_time[0][1]

    @property
    def unavailable(self) -> float | None:
        """For how many seconds its permits were unavailable. ``None`` if they never were free."""
        at, held = self.permits_by_time[-1]
        return None if held else at - self.at


@dataclass(frozen=True, slots=True)
class Round:
    """One round, without or with a semaphore, with all events in the order of their times."""

    requests: range
    began: float
    events: tuple[Step, ...]
    kill: Kill | None = None  # None if the round ended before

    @property
    def seconds(self) -> float:
        return self.events[-1].at - self.began if self.events else 0.0

    def of_kind(self, kind: str) -> list[Step]:
        return [event for event in self.events if event.kind == kind]

    @property
    def refused(self) -> int:
        """How often the upstream refused a request with 429."""
        return len(self.of_kind("refused"))

    @property
    def unanswered(self) -> tuple[int, ...]:
        answered = {event.request for event in self.of_kind("answered")}
        return tuple(number for number in self.requests if number not in answered)

    def _count(self, more: str, *less: str) -> Steps:
        """How many requests had an event *more*, and none of *less* since then."""
        inside, steps = set[int](), [(self.began, 0)]
        for event in self.events:
            if event.kind == more:
                inside.add(event.request)
            elif event.kind in less:
                inside.discard(event.request)
            if len(inside) != steps[-1][1]:
                steps.append((event.at, len(inside)))
        return steps

    def asked(self) -> Steps:
        """The number of requests that workers wanted answers to."""
        return self._count("started", "answered", "failed", "waiting")

    def inside(self) -> Steps:
        """The number of requests inside the upstream."""
        changes = {"entered": 1, "left": -1}
        steps = [(event.at, changes[event.kind]) for event in self.events if event.kind in changes]
        heights = accumulate(change for _, change in steps)
        times = (at for at, _ in steps)
        return [(self.began, 0), *zip(times, heights, strict=True)]

    def capacities(self) -> Steps:
        """How many requests the upstream accepts at once."""
        return [(event.at, event.request) for event in self.of_kind("capacity")]

    @property
    def used(self) -> float:
        """The share of the upstream's capacity that was in use until the last request entered."""
        last = self.of_kind("entered")[-1].at
        busy = whole = 0.0
        inside = capacity = 0
        for event, after in pairwise(event for event in self.events if event.at <= last):
            inside += (event.kind == "entered") - (event.kind == "left")
            capacity = event.request if event.kind == "capacity" else capacity
            busy += min(inside, capacity) * (after.at - event.at)
            whole += capacity * (after.at - event.at)
        return busy / whole

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": len(self.requests),
            "answered": len(self.of_kind("answered")),
            "refused": self.refused,
            "most_asked": highest(self.asked()),
            "most_inside": highest(self.inside()),
            "unanswered": self.unanswered,
            "lost_with_worker": () if self.kill is None else self.kill.lost,
            "seconds": round(self.seconds, 3),
        }

    def faults(self) -> Iterator[str]:
        """Requests without an answer, or with two, that no killed worker explains."""
        reasons = {event.request: event.detail for event in self.of_kind("failed")}
        for number in self.unanswered:
            if self.kill is None or number not in self.kill.lost:
                yield f"request {number} was lost: {reasons.get(number, 'for an unknown reason')}"
        entered, answered = (
            Counter(event.request for event in self.of_kind(kind))
            for kind in ("entered", "answered")
        )
        for number, times in (entered | answered).items():
            if times > 1:
                yield f"request {number} was processed {times} times"


def highest(steps: Steps) -> int:
    """The largest of the numbers."""
    return max(height for _, height in steps)


@dataclass(frozen=True, slots=True)
class Record:
    """All recorded facts of a demo. If the upstream is overloaded, *guarded* backs off."""

    plan: Plan
    server: str
    bare: Round
    guarded: Round

    @property
    def titles(self) -> tuple[str, str]:
        """Of the rounds."""
        if self.plan.overload:
            together = f"FairSemaphore, limit {self.plan.most}, back_off"
            return "each process for itself (AIMD)", together
        return "without a semaphore", f"with FairSemaphore, limit {self.plan.limit}"

    @property
    def rounds(self) -> tuple[Round, Round]:
        return self.bare, self.guarded

    def heights(self, round_: Round) -> Steps:
        """What a chart shows of *round_*."""
        return round_.inside() if self.plan.overload else round_.asked()

    @property
    def highest(self) -> int:
        """The top of a chart."""
        return max(self.plan.limit, *(highest(self.heights(round_)) for round_ in self.rounds))

    @property
    def answered_meanwhile(self) -> int:
        """The number of requests answered while the killed worker's permits were unavailable."""
        kill = self.guarded.kill
        if kill is None:
            return 0
        seconds = self.guarded.seconds if kill.unavailable is None else kill.unavailable
        answered = self.guarded.of_kind("answered")
        return sum(kill.at < event.at < kill.at + seconds for event in answered)

    def as_dict(self) -> dict[str, Any]:
        """The summary for ``--json``."""
        faults, (bare, guarded) = self.faults(), (round_.as_dict() for round_ in self.rounds)
        facts: dict[str, Any] = {"ok": not faults, "faults": faults, "server": self.server}
        facts["limit"] = self.plan.limit
        if self.plan.overload:
            facts["overload_seconds"] = self.plan.overload
            facts["each_process"] = bare | {"used": round(self.bare.used, 3)}
            return facts | {"with_back_off": guarded | {"used": round(self.guarded.used, 3)}}
        kill = self.guarded.kill
        killed = kill and {
            "worker": kill.worker,
            "pid": kill.pid,
            "returncode": kill.returncode,
            "held": kill.held,
            "unavailable_seconds": kill.unavailable and round(kill.unavailable, 3),
            "answered_meanwhile": self.answered_meanwhile,
            "lost": kill.lost,
            "passed_on": kill.passed_on,
        }
        rounds = {"without_semaphore": bare, "with_semaphore": guarded, "killed": killed}
        return facts | {"lease": self.plan.lease} | rounds

    def faults(self) -> list[str]:
        """The broken promises, one sentence each. Empty if all were kept."""
        own = self._overload_faults() if self.plan.overload else self._limit_faults()
        return [*own, *self.bare.faults(), *self.guarded.faults()]

    def _limit_faults(self) -> Iterator[str]:
        inside, refused = highest(self.guarded.inside()), self.guarded.refused
        if refused:
            yield f"with the semaphore, the upstream rejected {refused} requests (429)"
        if inside > self.plan.limit:
            yield f"with the semaphore, {inside} requests were inside: limit {self.plan.limit}"
        if (kill := self.guarded.kill) is None:
            yield "with the semaphore, no worker was killed"
        elif kill.unavailable is None or kill.unavailable > 2 * self.plan.lease:
            yield f"the permits of {kill.worker} did not become free within two leases"

    def _overload_faults(self) -> Iterator[str]:
        bare, guarded, used = self.bare.refused, self.guarded.refused, self.guarded.used
        if not 0 < guarded <= bare:
            yield f"with a back-off {guarded} requests were rejected, and {bare} without it"
        if used < _LEAST_USED:
            yield f"with a back-off {used:.0%} of the capacity was used"
