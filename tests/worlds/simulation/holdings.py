"""What must be true of the clients: when they may be certain to hold, and how attempts end."""

import asyncio
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
)
from redsem_async._core.lease import clock_margin, heartbeat_interval
from redsem_async._hub.model import Lease, LeaseState
from redsem_async._hub.model import Request as Asked
from redsem_async._protocol.operations import KeyTerms, QueuedRequest
from tests.worlds.look import Permit as Trusted
from tests.worlds.process import Process

from .judge import CLOCKS

if TYPE_CHECKING:
    from .walk import Walk

NEWS = 0.06  # seconds that the last answer may be old: grace, or a process's turn
LATE = 0.1 + 0.06  # seconds by which a deadline may be missed: a look at an outage, and grace
RENEWED = 8.1  # trips: the answer that a refresh follows, and its own, by clocks that differ
FAR = 20  # trips: to connect, and to wait for others' commands and for one's own
PRECISION = 1e-6


@dataclass(eq=False)
class Hold:
    """A permit, for as long as its holder trusts it; looked at after each turn of its process."""

    process: Process
    name: str
    lease: Lease
    began: float
    ended: float = math.inf
    lost: bool = False  # when it ended
    risked: bool = False  # its holder asked for a near expiry, or sent its id too early
    until: float = -math.inf  # when trust ends, if nothing happens

    def __post_init__(self) -> None:
        self.look()

    def __str__(self) -> str:
        return f"{self.id} held by {self.process.name} from {self.began:.6f} to {self.ended:.6f}"

    @property
    def id(self) -> str:
        return self.lease.id

    def look(self) -> None:
        lease = self.lease
        if lease.state is LeaseState.HELD:
            self.until = self.process.world_time(lease.trusted_until)
        else:
            self.lost |= lease.state is LeaseState.LOST
            self.end()

    def end(self) -> None:
        if self.ended == math.inf:
            self.ended = min(self.process.world.now, self.until)

    @property
    def trusted(self) -> tuple[str, Trusted]:
        until_us = self.process.world.server_us_at(self.until)
        return self.id, Trusted.trusted(self.lease, until_us)


def _is_fresh(hold: Hold, granted_at: float) -> bool:
    """Whether it is trusted for a lease, less a refresh interval, or nearly so."""
    terms, left = hold.lease.terms, hold.lease.trusted_until - hold.process.loop.time()
    most = math.inf if terms.max_hold is None else granted_at + terms.max_hold - hold.began
    return left > min(terms.lease - terms.refresh_interval, most) - 0.3


@dataclass(eq=False)
class Attempt:
    """One task's attempt to acquire or adopt a permit."""

    process: Process
    semaphore: AnySemaphore
    permits: int
    timeout: float | None
    began: float
    stalled: float  # of its process, until it began
    adopts: bool = False
    old: str = ""  # the id that it adopts
    detaches: bool = False
    guarded: bool = False
    key: str | None = None
    ahead: float = 0.0
    task: "asyncio.Task[None] | None" = None
    handed_over: bool = False  # a call of another request granted it
    answered: float | None = None
    cancelled: bool = False
    holds: list[Hold] = field(default_factory=list[Hold])

    @property
    def waits(self) -> bool:
        return not self.adopts and (self.timeout is None or self.timeout > 0)

    @property
    def request(self) -> QueuedRequest:
        """As the server has it."""
        semaphore, terms = self.semaphore, None
        if self.key is not None and isinstance(semaphore, FairSemaphore):
            terms = KeyTerms(self.key, semaphore._terms.declared_limit(self.key))
        return QueuedRequest(0, 0, semaphore.limit, self.permits, key=terms)

    def __str__(self) -> str:
        what = "an adoption" if self.adopts else f"an attempt for {self.permits}"
        return f"{what} of {self.semaphore.name} by {self.process.name}, begun at {self.began:.6f}"


class Holdings:
    """The books of the clients."""

    def __init__(self, world: "Walk") -> None:
        self.holds: list[Hold] = []
        self.ids: set[str] = set()  # of all of them
        self.pending: dict[Attempt, None] = {}
        self.unruly = False  # something happened that may keep the server from answering
        self.closed: set[Process] = set()
        self.out_of_memory = False
        self._adopters: Counter[tuple[Process, str]] = Counter()  # who asked for which id
        self.ends: defaultdict[str, int] = defaultdict(int)
        self._watched: defaultdict[Process, list[Hold]] = defaultdict(list)
        self._world = world

    # -- as it happens

    def trusted(self, name: str) -> list[tuple[str, Trusted]]:
        """What clients trust at this moment."""
        return [pair for process in self._watched for pair in self._trusted(process, name)]

    def _trusted(self, process: Process, name: str) -> list[tuple[str, Trusted]]:
        now, watched = self._world.now, self._watched[process]
        return [hold.trusted for hold in watched if hold.name == name and hold.until > now]

    def watched(self, process: Process) -> list[Hold]:
        """What it trusts."""
        watched = [hold for hold in self._watched[process] if hold.ended == math.inf]
        self._watched[process] = watched
        return watched

    def look(self, process: Process) -> None:
        """A turn of *process* is over."""
        if self._watched[process]:
            for hold in self._watched[process]:
                hold.look()
            for name in dict.fromkeys(hold.name for hold in self.watched(process)):
                self._world.judge(name).judge_trust(self._trusted(process, name))

    def ask(self, attempt: Attempt) -> None:
        self.pending[attempt] = None

    def granted(self, attempt: Attempt, permit: Permit) -> Hold:
        world = self._world
        self.answered(attempt)
        process, name, lease = attempt.process, permit.name, permit._lease
        judge, hold = self._world.judge(name), Hold(process, name, lease, world.now)
        granted_at = judge.granted_at(lease.token)
        self._world.unless(granted_at < math.inf, f"{hold} was never granted")
        right = attempt.adopts or permit.permits == attempt.permits
        self._world.unless(right, f"{attempt} got {permit.permits}")
        self.holds.append(hold)
        self._watched[process].append(hold)
        attempt.holds.append(hold)
        world.note(process.name, "holds", hold.id[:4], hold.id[32:], lease.token)
        self._world.unless(hold.id not in self.ids, f"{hold}, whose id was used before")
        if not attempt.adopts:
            # Not if a stall is just over, nor if what would renew it was refused.
            unclear = process.woken_busy or self._world.refused_at > world.now - 10 * world.trip
            self._world.unless(
                _is_fresh(hold, granted_at) or unclear, f"{hold}, which is trusted too briefly"
            )
        self.ids.add(hold.id)
        return hold

    def handed_over(self, request: Asked | None) -> None:
        """*request* was granted, and its process is not told of that by an answer."""
        for attempt in self.pending if request else ():
            waits_for = getattr(attempt.task, "_fut_waiter", None)
            attempt.handed_over |= request is not None and waits_for is request

    def adopt(self, attempt: Attempt, identity: str) -> None:
        attempt.old = identity
        self._adopters[attempt.process, identity] += 1

    def answered(self, attempt: Attempt) -> None:
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
        hold.lost |= permit.lost
        hold.end()
        self._world.note(hold.process.name, "lets go", hold.id[32:], hold.lost)

    def gone(self, identity: str) -> None:
        """A process learnt just now that the server does not hold *identity* any more."""
        for hold in self.holds:
            if hold.id == identity:
                self._must_have_ended(hold)

    def deleted(self, process: Process, name: str) -> None:
        """A process learnt just now that no permit of *name* is held."""
        for hold in self.watched(process):
            if hold.name == name:
                self._must_have_ended(hold)

    def _must_have_ended(self, hold: Hold) -> None:
        hold.look()
        if hold.ended == math.inf:
            self._world.violated(
                f"{hold.process.name} trusts {hold.id}, which it knows to be gone"
            )

    def killed(self, process: Process) -> None:
        """What a killed process held ends with it, or with its trust."""
        for hold in self.watched(process):
            hold.end()
        for attempt in list(self.pending):
            if attempt.process is process:
                del self.pending[attempt]

    def judge_end(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        """A task has ended: in a permit, an error that it may raise, or a cancellation."""
        if task.cancelled() or not isinstance(task.exception(), PermitLost):
            self.answered(attempt)
        else:  # given back before it could be used, which has a time limit of its own
            self.pending.pop(attempt, None)
        if task.cancelled():
            self.ends["cancelled"] += 1
            self._world.unless(
                task in attempt.process.cancelled, f"{attempt} was cancelled by nobody"
            )
            return
        error = task.exception()
        self.ends[type(error).__name__ if error else "served"] += 1
        self._world.unless(
            task not in attempt.process.cancelled,
            f"{attempt.process.name} was cancelled, and ended with {error!r}",
        )
        self._world.unless(self._allowed(attempt, error), f"{attempt} ended with {error!r}")
        lost = [hold for hold in attempt.holds if hold.lost]
        # While nothing is wrong, nobody loses anything who leaves time for it.
        fine = self.unruly or self._cuts_it_fine(attempt)
        for hold in lost:
            right = fine or hold.risked or self._held_for_so_long(attempt, hold)
            self._world.unless(right, f"{hold} was lost for no reason")
        if attempt.guarded and lost:
            self._world.unless(
                isinstance(error, PermitLost | BackendUnavailable),
                f"a lost permit left its block as {error!r}",
            )

    def _allowed(self, attempt: Attempt, error: BaseException | None) -> bool:
        match error:
            case None:
                return attempt.answered is not None
            case AcquireTimeout():
                in_time = attempt.timeout is not None and not attempt.holds
                full = self.out_of_memory or self._was_full(attempt, error)
                # A message may have granted it, whose refresh had no answer by the deadline.
                return in_time and (full or (self.unruly and attempt.handed_over))
            case QueueFull():
                return not attempt.holds
            case PermitLost():
                if attempt.adopts and not attempt.holds:
                    return not self._was_held(attempt)
                if not attempt.holds:  # lost between the grant and the block that it guards
                    return attempt.guarded and self.unruly
                return any(hold.lost for hold in attempt.holds)
            case SemaphoreClosed():
                waited = attempt.detaches or not attempt.holds
                return attempt.process in self.closed and waited
            case BackendUnavailable():
                return self.unruly or (attempt.timeout or math.inf) < FAR * self._world.trip
            case BackendError():
                return self.out_of_memory and not attempt.holds
            case _:
                return False

    def _held_for_so_long(self, attempt: Attempt, hold: Hold) -> bool:
        """Whether its `max_hold` has ended."""
        terms = attempt.semaphore._terms
        if terms.max_hold is None:
            return False
        since = self._world.judge(hold.name).granted_at(hold.lease.token)
        # What is left of it is told by a refresh, and counted from when that was sent.
        left = clock_margin(terms.lease) + 0.01 * terms.max_hold + RENEWED * self._world.trip
        return hold.ended >= since + terms.max_hold - left

    def _was_full(self, attempt: Attempt, error: AcquireTimeout) -> bool:
        """Whether *attempt* had to wait a moment ago: its answer is no older than that."""
        process, now = attempt.process, self._world.now
        since = now - NEWS - 4 * self._world.trip
        if process.stalled_until > since:  # the answer lay there meanwhile
            since = min(since, process.stalled_at - NEWS - 4 * self._world.trip)
        judge = self._world.judge(attempt.semaphore.name)
        if judge.flushed_at > since - heartbeat_interval(attempt.semaphore.lease):
            return True  # those who wait find out with a heartbeat
        request = attempt.request
        if not isinstance(attempt.semaphore, FairSemaphore):
            # Those who wait here longer go first, and a heavy one may hold up all.
            siblings = [
                other
                for other in self.pending
                if other.process is process and other.semaphore.name == attempt.semaphore.name
            ]
            permits = attempt.permits
            permits += sum(other.permits for other in siblings if other.began <= attempt.began)
            most = [o.permits for o in siblings if o.permits <= attempt.semaphore.limit]
            request = request._replace(permits=max(permits, *most, 0))
        held_up = judge.held_up(since, request, process.hubs, waits=attempt.waits)
        # What is waited for is told with a heartbeat: it may be another since.
        told = self.unruly or attempt.waits or not attempt.semaphore.keyed
        return bool(held_up) and (told or error.blocked_by in held_up)

    def _was_held(self, attempt: Attempt) -> bool:
        """Whether the permit that *attempt* adopts has been held all the time that it asked."""
        judge, process = self._world.judge(attempt.semaphore.name), attempt.process
        if judge.unsure:
            return False
        since = judge.held_since(attempt.old)
        heir = judge.heir.get(attempt.old, "")
        most = attempt.semaphore._terms.max_hold
        granted_at = judge.last_granted(attempt.old, heir)
        if most is not None and self._world.now >= granted_at + 0.97 * most:
            return False  # it may be held no longer by who asks
        alone = self._adopters[process, attempt.old] == 1
        if alone and heir.partition(".")[0] in process.hubs:
            # By itself, without an answer. With less of a lease than its margin nobody trusts it.
            margin = clock_margin(attempt.semaphore.lease)
            return judge.held_since(heir, margin) < math.inf
        return since <= attempt.began

    def _cuts_it_fine(self, attempt: Attempt) -> bool:
        """Whether what a refresh interval leaves of a lease is less than a refresh may take."""
        terms = attempt.semaphore._terms
        left = terms.lease - clock_margin(terms.lease) - terms.refresh_interval
        return left < RENEWED * self._world.trip

    # -- at the end

    def judge_longest_holds(self) -> None:
        """Nobody trusts a permit for longer than its `max_hold`, since it was granted."""
        for hold in self.holds:
            hold.end()
            first = self._world.judge(hold.name).granted_at(hold.lease.token)
            most = hold.lease.terms.max_hold
            self._world.unless(
                most is None or hold.ended <= first + CLOCKS * most + PRECISION,
                f"{hold} was held for longer than {most} s, since {first:.6f}",
            )
