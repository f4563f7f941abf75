"""What happened in a demo, and which promises the semaphore broke. No I/O."""

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

_GAP = 1.0  # seconds between the rounds in a chart
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

    @property
    def most_inside(self) -> int:
        """The maximum number of concurrent requests inside the upstream."""
        steps = ((event.kind == "entered") - (event.kind == "left") for event in self.events)
        return max(accumulate(steps), default=0)

    @property
    def most_asked(self) -> int:
        """The maximum number of concurrent requests to the upstream."""
        return max(asked for _, asked in self.asked_at_once())

    def asked_at_once(self) -> list[tuple[float, int]]:
        """The number of requests that workers wanted answers to, as changes with their times."""
        asked, steps = set[int](), [(self.began, 0)]
        for event in self.events:
            if event.kind == "started":
                asked.add(event.request)
            elif event.kind in {"answered", "failed", "waiting"}:
                asked.discard(event.request)
            if len(asked) != steps[-1][1]:
                steps.append((event.at, len(asked)))
        return steps

    def inside_at_once(self) -> list[tuple[float, int]]:
        """The number of requests inside the upstream, as changes with their times."""
        changes = {"entered": 1, "left": -1}
        times = [self.began, *(event.at for event in self.events if event.kind in changes)]
        steps = (changes[event.kind] for event in self.events if event.kind in changes)
        return list(zip(times, accumulate(steps, initial=0), strict=True))

    def capacities(self) -> list[tuple[float, int]]:
        """How many requests the upstream accepts at once, as changes with their times."""
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
            "most_asked": self.most_asked,
            "most_inside": self.most_inside,
            "unanswered": self.unanswered,
            "lost_with_worker": () if self.kill is None else self.kill.lost,
            "seconds": round(self.seconds, 3),
        }

    def faults(self, which: str) -> Iterator[str]:
        """The records of upstream and workers must agree and include every request."""
        if self.kill is None:
            yield f"{which}, no worker was killed"
        elif self.kill.returncode != -signal.SIGKILL:
            yield f"{self.kill.worker} was not killed: it ended with {self.kill.returncode}"
        yield from self.lost_requests()

    def lost_requests(self) -> Iterator[str]:
        """Requests without an answer, or with two, that no killed worker explains."""
        kill = self.kill
        reasons = {event.request: event.detail for event in self.of_kind("failed")}
        for number in self.unanswered:
            if kill is None or number not in kill.lost:
                yield f"request {number} was lost: {reasons.get(number, 'for an unknown reason')}"
        entered = Counter(event.request for event in self.of_kind("entered"))
        answered = Counter(event.request for event in self.of_kind("answered"))
        for number, times in (entered | answered).items():
            if times > 1:
                yield f"request {number} was processed {times} times"
        for number in sorted(answered.keys() - entered.keys()):
            yield f"request {number} was answered, but the upstream never received it"


@dataclass(frozen=True, slots=True)
class Record:
    """All recorded facts of a demo."""

    plan: Plan
    server: str
    bare: Round
    guarded: Round

    @property
    def titles(self) -> tuple[str, str]:
        """Of the rounds."""
        return "without a semaphore", f"with FairSemaphore, limit {self.plan.limit}"

    @property
    def rounds(self) -> tuple[Round, Round]:
        return self.bare, self.guarded

    def heights(self, round_: Round) -> list[tuple[float, int]]:
        """What a chart shows of *round_*, as changes with their times."""
        return round_.inside_at_once() if self.plan.overload else round_.asked_at_once()

    def axis(self, round_: Round, at: float) -> float:
        """Where *at* is on a time axis on which the second round begins soon after the first."""
        before = 0.0 if round_ is self.bare else self.bare.seconds + _GAP
        return before + at - round_.began

    @property
    def seconds(self) -> float:
        """The length of that axis."""
        return self.bare.seconds + _GAP + self.guarded.seconds

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
        faults, kill = self.faults(), self.guarded.kill
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
        return {
            "ok": not faults,
            "faults": faults,
            "server": self.server,
            "limit": self.plan.limit,
            "lease": self.plan.lease,
            "without_semaphore": self.bare.as_dict(),
            "with_semaphore": self.guarded.as_dict(),
            "killed": killed,
        }

    def faults(self) -> list[str]:
        """The broken promises, one sentence each. Empty if all were kept."""
        return [
            *self._limit_faults(),
            *self.bare.faults("without a semaphore"),
            *self.guarded.faults("with the semaphore"),
            *self._permit_faults(),
        ]

    def _limit_faults(self) -> Iterator[str]:
        limit, inside, refused = self.plan.limit, self.guarded.most_inside, self.guarded.refused
        if not self.bare.refused:
            yield "without a semaphore nothing was refused either: the comparison shows nothing"
        if refused:
            yield f"with the semaphore, the upstream refused {refused} times (429)"
        if inside > limit:
            yield f"with the semaphore, {inside} requests were inside at once: limit {limit}"

    def _permit_faults(self) -> Iterator[str]:
        kill, lease = self.guarded.kill, self.plan.lease
        if kill is None:
            return
        who, lost = kill.worker, len(kill.lost)
        if kill.held < 1:
            yield f"{who} held no permit when it was killed"
        if lost > kill.held:
            yield f"{lost} requests of {who} were lost: it held {kill.held} permits"
        # Where it held all of them, others could not continue.
        if kill.held < self.plan.limit and not self.answered_meanwhile:
            yield f"no request was answered while the permits of {who} were unavailable"
        if kill.unavailable is None:
            yield f"the permits of {who} never became free"
        elif kill.unavailable > 2 * lease:
            after = f"{kill.unavailable:.2f} s"
            yield f"the permits of {who} became free after {after}: lease {lease} s"


@dataclass(frozen=True, slots=True)
class OverloadRecord(Record):
    """A demo with an upstream that is overloaded. In *guarded*, the workers back off."""

    @property
    def titles(self) -> tuple[str, str]:
        return "each process for itself (AIMD)", f"FairSemaphore, limit {self.plan.most}, back_off"

    def as_dict(self) -> dict[str, Any]:
        faults = self.faults()
        return {
            "ok": not faults,
            "faults": faults,
            "server": self.server,
            "limit": self.plan.limit,
            "overload_seconds": self.plan.overload,
            "each_process": self.bare.as_dict() | {"used": round(self.bare.used, 3)},
            "with_back_off": self.guarded.as_dict() | {"used": round(self.guarded.used, 3)},
        }

    def faults(self) -> list[str]:
        bare, guarded = self.bare.refused, self.guarded.refused
        found = [*self.bare.lost_requests(), *self.guarded.lost_requests()]
        if not guarded:
            found.append("with a back-off nothing was refused: the upstream was not overloaded")
        if guarded > bare:
            found.append(f"the back-off left {guarded} refusals: {bare} without it")
        if self.guarded.used < _LEAST_USED:
            found.append(f"with a back-off {self.guarded.used:.0%} of the capacity was used")
        return found
