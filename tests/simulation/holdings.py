"""What must be true of the clients: when they may be certain to hold, and how asking ends."""

import asyncio
import math
from collections import defaultdict
from dataclasses import dataclass, field

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    Permit,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
)
from redsem_async._claim import Claim, State
from redsem_async._lease import margin

from .judge import Judge, Tenure
from .world import Process, World

LATE = 0.1 + 0.06  # seconds by which a deadline may be missed: a look at an outage, and grace
RENEWED = 8.1  # trips: the answer that a refresh follows, and its own, by clocks that differ
FAR = 20  # trips: to connect, and to wait for others' letters and for one's own
PRECISION = 1e-6


@dataclass(eq=False)
class Hold:
    """A permit, from when its holder was told of it until it gave it up or could not be sure."""

    process: Process
    name: str
    id: str
    token: int
    permits: int
    began: float
    claim: Claim
    ended: float = math.inf
    lost: bool = False  # when it ended

    def __str__(self) -> str:
        return f"{self.id} held by {self.process.name} from {self.began:.6f} to {self.ended:.6f}"


@dataclass(eq=False)
class Attempt:
    """One task's asking for a permit."""

    process: Process
    semaphore: AnySemaphore
    permits: int
    timeout: float | None
    began: float
    stalled: float  # of its process, until it began
    adopts: bool = False
    detaches: bool = False
    guarded: bool = False
    answered: float | None = None
    cancelled: bool = False
    holds: list[Hold] = field(default_factory=list[Hold])

    @property
    def waits(self) -> bool:
        return not self.adopts and (self.timeout is None or self.timeout > 0)

    def __str__(self) -> str:
        what = "an adoption" if self.adopts else f"an attempt for {self.permits}"
        return f"{what} of {self.semaphore.name} by {self.process.name}, begun at {self.began:.6f}"


class _Bell:
    """Stands in for the future of one who waits for a loss, and notes when it came."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def done(self) -> bool:
        return self._hold.ended < math.inf

    def set_result(self, result: None) -> None:
        hold = self._hold
        trusted = hold.process.world_time(hold.claim.trusted_until)
        hold.ended = min(hold.process.world.now, trusted)


class Holdings:
    """The books of the clients."""

    def __init__(self, world: World) -> None:
        self.holds: list[Hold] = []
        self.ids: set[str] = set()  # of all of them
        self.pending: dict[Attempt, None] = {}
        self.unruly = False  # something happened that may keep the server from answering
        self.closed: set[Process] = set()
        self.out_of_memory = False
        self.trip = 0.0  # seconds one way
        self.ends: defaultdict[str, int] = defaultdict(int)
        self._world = world

    # -- as it happens

    def ask(self, attempt: Attempt) -> None:
        self.pending[attempt] = None

    def granted(self, attempt: Attempt, permit: Permit) -> Hold:
        """A caller was given *permit*."""
        world = self._world
        self.answered(attempt)
        process = attempt.process
        name, token = permit.name, permit.fencing_token
        hold = Hold(process, name, permit.id, token, permit.permits, world.now, permit._claim)
        claim = permit._claim
        claim.wakes_on_loss = [*(claim.wakes_on_loss or ()), _Bell(hold)]  # type: ignore[list-item]
        if claim.state is State.LOST:  # before its caller could run
            hold.ended, hold.lost = world.now, True
        self.holds.append(hold)
        self.ids.add(hold.id)
        attempt.holds.append(hold)
        world.note(process.name, "holds", permit.id[:4], permit.id[32:], permit.fencing_token)
        return hold

    def answered(self, attempt: Attempt) -> None:
        """A caller has its answer, whatever it is."""
        if self.pending.pop(attempt, self) is self:
            return
        attempt.answered = self._world.now
        if attempt.timeout is None or attempt.adopts or attempt.cancelled:
            return
        waited = (
            self._world.now - attempt.began - (attempt.process.stalled_so_far - attempt.stalled)
        )
        most = attempt.timeout if attempt.timeout > 0 else 5.0
        if waited > 1.01 * most + LATE:
            self._world.violated(
                f"{attempt.process.name} waited for {waited:.3f} s, not {attempt.timeout}"
            )

    def end(self, hold: Hold, permit: Permit) -> None:
        """The holder is about to release, or notices that it holds no more."""
        hold.lost |= permit.lost
        self.end_unseen(hold)
        self._world.note(hold.process.name, "lets go", hold.id[32:], hold.lost)

    def gone(self, identity: str) -> None:
        """A process was told just now that the server does not hold *identity* any more."""
        for hold in self.holds:
            if hold.id == identity and hold.ended == math.inf:
                self._world.violated(f"{hold.process.name} was told that {identity} is gone")

    def killed(self, process: Process) -> None:
        """What a killed process held ends with it, or with its trust."""
        for hold in self.holds:
            if hold.process is process:
                self.end_unseen(hold)
        for attempt in list(self.pending):
            if attempt.process is process:
                del self.pending[attempt]

    def end_unseen(self, hold: Hold) -> None:
        if hold.ended == math.inf:
            trusted = hold.process.world_time(hold.claim.trusted_until)
            hold.ended = min(self._world.now, trusted)

    def judge_end(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        """A task has ended: in a permit, an error that it may raise, or a cancellation."""
        if task.cancelled() or not isinstance(task.exception(), PermitLost):
            self.answered(attempt)
        else:  # given back before it could be used, which has a time limit of its own
            self.pending.pop(attempt, None)
        if task.cancelled():
            self.ends["cancelled"] += 1
            self._check(task in attempt.process.cancelled, f"{attempt} was cancelled by nobody")
            return
        error = task.exception()
        self.ends[type(error).__name__ if error else "served"] += 1
        self._check(
            task not in attempt.process.cancelled,
            f"{attempt.process.name} was cancelled, and ended with {error!r}",
        )
        self._check(self._allowed(attempt, error), f"{attempt} ended with {error!r}")
        lost = attempt.guarded and any(hold.lost for hold in attempt.holds)
        if lost:
            self._check(
                isinstance(error, PermitLost | BackendUnavailable),
                f"a lost permit left its block as {error!r}",
            )

    def _allowed(self, attempt: Attempt, error: BaseException | None) -> bool:
        match error:
            case None:
                return attempt.answered is not None
            case AcquireTimeout():
                return attempt.timeout is not None and not attempt.holds
            case QueueFull():
                return not attempt.holds
            case PermitLost():
                if attempt.adopts and not attempt.holds:
                    return True
                if not attempt.holds:  # lost between the grant and the block that it guards
                    return attempt.guarded and self.unruly
                lost = attempt.detaches or any(hold.lost for hold in attempt.holds)
                # While nothing is wrong, nobody loses anything who leaves time for it.
                return lost and (self.unruly or self._cuts_it_fine(attempt))
            case SemaphoreClosed():
                waited = attempt.detaches or not attempt.holds
                return attempt.process in self.closed and waited
            case BackendUnavailable():
                return self.unruly or (attempt.timeout or math.inf) < FAR * self.trip
            case BackendError():
                return self.out_of_memory and not attempt.holds
            case _:
                return False

    def _cuts_it_fine(self, attempt: Attempt) -> bool:
        """Whether what a refresh interval leaves of a lease is less than a refresh may take."""
        terms = attempt.semaphore._terms
        left = terms.lease - margin(terms.lease) - terms.refresh_interval
        return left < RENEWED * self.trip

    # -- at the end

    def judge(self, judges: dict[str, Judge], limits: dict[str, int]) -> None:
        """Compare what clients were certain of with what the server knew."""
        for hold in self.holds:
            self.end_unseen(hold)
            tenure = judges[hold.name].tenures.get((hold.id, hold.token))
            if tenure is None:
                self._check(False, f"{hold.id} was held with {hold.token} and never granted")
                return
            self._compare(hold, tenure)
        for name, limit in limits.items():
            self._judge_overlap(name, limit)

    def _compare(self, hold: Hold, tenure: Tenure) -> None:
        ended = min(tenure.ended, self._world.by_server_clock(tenure.expiry_ms))
        if hold.ended <= ended + PRECISION:
            return
        taken = tenure.cause in ("cleared", "flushed", "released by somebody else", "adopted")
        self._check(
            taken,
            f"{hold.process.name} was certain of {hold.id} until {hold.ended:.6f},"
            f" and the server let go at {ended:.6f} ({tenure.cause})",
        )
        hold.ended = max(hold.began, ended)

    def _judge_overlap(self, name: str, limit: int) -> None:
        steps: list[tuple[float, int]] = []
        for hold in self.holds:
            if hold.name == name and hold.ended > hold.began:
                steps += [(hold.began, hold.permits), (hold.ended, -hold.permits)]
        held = 0
        for moment, change in sorted(steps):
            held += change
            self._check(
                held <= limit, f"{held} permits of {name} were held at {moment:.6f}, not {limit}"
            )

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._world.violated(otherwise)
