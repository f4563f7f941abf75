"""The books of a simulation, one of each semaphore: how it stood, and what its clients may trust.

They are beside the rules of every world, and tell when clients may be certain to hold, and how
attempts may end.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import redsem_async._protocol.operations as op
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
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import clock_margin, heartbeat_interval
from redsem_async._hub.model import Lease, LeaseState, Request
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.operations import KeyTerms, QueuedRequest
from tests.worlds.judge import Broken, Judge
from tests.worlds.look import Look, Ran, key_of, lets_go
from tests.worlds.look import Permit as Trusted
from tests.worlds.process import Process

if TYPE_CHECKING:
    from .walk import Walk

CLOCKS = 1.01  # of two processes, beside each other
REMEMBERED = 60.0  # seconds for which it is known how everything stood
NEWS = 1.06  # seconds that the last answer may be old: the lead, and a process's turn
LATE = 0.1 + 0.06  # seconds by which a deadline may be missed: a look at an outage, and grace
RENEWED = 8.1  # trips: the answer that a refresh follows, and its own, by clocks that differ
FAR = 20  # trips: to connect, and to wait for others' commands and for one's own
PRECISION = 1e-6


@dataclass(eq=False)
class Attempt:
    """One task's attempt to acquire or adopt a permit, and the permit for as long as it trusts it.

    Attributes:
        stalled: for how long its process was, until it began.
        old: the id that it adopts.
        handed_over: a call of another request granted it.
        lost: the permit was, when it ended.
        risked: it asked for a near expiry, or sent its id too early.
        until: when trust ends, if nothing happens.
    """

    process: Process
    semaphore: AnySemaphore
    action: str
    permits: int
    timeout: float | None
    key: str | None
    ahead: float
    began: float
    stalled: float
    old: str = ""
    task: "asyncio.Task[None] | None" = None
    handed_over: bool = False
    answered: float | None = None
    cancelled: bool = False
    lease: Lease | None = None
    ended: float = math.inf
    lost: bool = False
    risked: bool = False
    until: float = -math.inf

    @property
    def adopts(self) -> bool:
        return self.action == "adopt"

    @property
    def guarded(self) -> bool:
        return self.action in ("enter", "guard") and self.semaphore._terms.cancel_on_loss

    @property
    def waits(self) -> bool:
        return not self.adopts and (self.timeout is None or self.timeout > 0)

    @property
    def request(self) -> QueuedRequest:
        """As the server has it."""
        semaphore, terms = self.semaphore, None
        if self.key is not None and isinstance(semaphore, FairSemaphore):
            terms = KeyTerms(self.key, semaphore._terms.declared_limit(self.key))
        costs = semaphore._terms.costs(None)
        return QueuedRequest(0, 0, semaphore.limit, self.permits, terms, costs)

    def __str__(self) -> str:
        what = f"{self.action} of {self.permits} of {self.semaphore.name} by {self.process.name}"
        held = f", which holds {self.lease.id} to {self.ended:.6f}" if self.lease else ""
        return f"{what}, begun at {self.began:.6f}{held}"

    def look(self) -> None:
        """A turn of its process is over."""
        assert self.lease is not None
        if self.lease.state is LeaseState.HELD:
            self.until = self.process.world_time(self.lease.trusted_until)
        else:
            self.lost |= self.lease.state is LeaseState.LOST
            self.end()

    def end(self) -> None:
        if self.ended == math.inf:
            self.ended = min(self.process.world.now, self.until)


class Books:
    """Watches one semaphore, on the server and in its clients."""

    def __init__(self, world: "Walk", name: str) -> None:
        self.name = name
        self.grants = 0
        self.flushed_at = -math.inf
        self.orders = world.orders[name]
        self.excused = set[str]()  # detached, or granted to late duplicates that were forgotten
        self.pending: dict[Attempt, None] = {}
        self.holds: list[Attempt] = []
        self._world = world
        self._rules = Judge()
        self._looks: deque[tuple[float, Look]] = deque([(-math.inf, Look(0, {}, []))])
        self._since: dict[str, float] = {}  # from when on each is held
        self._closed = set[str]()  # given up or given back by their own hub
        self._heir: dict[str, str] = {}  # who adopted, by the id that it adopted
        self._adopters = Counter[tuple[Process, str]]()  # who asked for which id
        self._answered: WeakSet[Request] = WeakSet()
        self._ids = set[str]()  # of all permits that clients had

    def _unless(self, holds: bool, otherwise: str) -> None:
        self._world.unless(holds, f"{self.name}: {otherwise}")

    def _report(self, found: Iterable[Broken]) -> None:
        for broken in found:
            self._unless(False, str(broken))

    # -- on the server

    def ran(self, ran: Ran, *, late: bool) -> bool:
        """Judge what a call has done. Returns whether that was anything.

        *late* says that its link was closed before.
        """
        (before, call, hub, _, after, _), now = ran, self._world.now
        trusted = [pair for process in self._world.processes for pair in self._trusted(process)]
        self._report(self._rules.ran(ran, trusted))
        if not ran.done:
            return False
        if isinstance(call, op.Acquire):
            self._see_that_it_came_in_turn(call, hub)
        new = after.live.keys() - before.live.keys()
        gone = before.live.keys() - after.live.keys()
        found = list(self.orders.ran(ran))
        forgot = self.flushed_at > -math.inf
        if late and forgot:  # that it ran before, perhaps long ago
            waits = {waiter.id for waiter in after.line} - {waiter.id for waiter in before.line}
            self.excused |= new | waits
        else:
            self._report(found)
        for identity in new & self._closed:
            self._unless(forgot, f"{identity} holds, having ended before")
        if isinstance(call, op.Adopt):
            self._heir |= {permit_id(call.owner, call.old): identity for identity in new}
        else:
            self.grants += len(new)
        self._since = {i: self._since.get(i, now) for i in after.live}
        for identity in new - ran.own:
            self._hand_over(identity)
        if isinstance(call, op.Abandon) or (isinstance(call, op.Release) and call.owner == hub):
            self._closed |= ran.own
        elif isinstance(call, op.Detach):
            self.excused |= ran.own
        self._looked(after)
        return bool(new or gone or before.line != after.line)

    def forgot_some(self, before: Look, after: Look) -> None:
        """The server forgot what is missing *after*, with marks that stop delayed duplicates."""
        self.flushed_at = self._world.now
        self._rules.forgot(before, after)
        self._since = {i: at for i, at in self._since.items() if i in after.live}
        self.orders.forgot(after)
        self._looked(after)

    def _looked(self, after: Look) -> None:
        self._looks.append((self._world.now, after))
        while self._looks[1][0] < self._world.now - REMEMBERED:
            self._looks.popleft()

    def _hand_over(self, identity: str) -> None:
        """It was granted, and its process is not told of that by an answer."""
        hub, _, number = identity.partition(".")
        for state in self._states(hub):
            request = state.requests.get(int(number))
            for attempt in self.pending if request else ():
                attempt.handed_over |= getattr(attempt.task, "_fut_waiter", None) is request

    def _see_that_it_came_in_turn(self, call: op.Acquire, hub: str) -> None:
        """Requests of one process that nobody has answered come in the order of their calls."""
        for state in self._states(hub):
            asked = [request for request in state.pending() if not request.call]
            for request in [state.requests[n] for n in call.numbers if n in state.requests]:
                self._answered.add(request)
                passed = any(
                    other.order < request.order
                    and other.started <= request.started  # one may have had a lease for a moment
                    and other.ahead == request.ahead
                    and other not in self._answered
                    for other in asked
                )
                self._unless(not passed, f"{request.number} of {hub} came before its turn: {call}")

    def _states(self, hub: str) -> list[RemoteSemaphore]:
        remotes = self._world.owners[hub].remotes
        mine = [remote for remote in remotes if remote.address.name == self.name]
        return [remote for remote in mine if remote.identity.id == hub]

    def _held_since(self, identity: str, margin: float = 0.0) -> float:
        """From when on a permit has been held under *identity*, without a break until now.

        One that expires within *margin* seconds counts as held no more.
        """
        held, at = self._looks[-1][1].holders.get(identity), self._world.now + margin
        if not (held and held.token) or self._world.by_server_clock(held.expiry_ms) <= at:
            return math.inf
        return self._since[identity]

    def _granted_at(self, token: int) -> float:
        """When *token* was granted, to whoever has it now."""
        granted_ms = self._rules.granted_ms.get(token)
        return math.inf if granted_ms is None else self._world.by_server_clock(granted_ms)

    # -- what clients trust

    def _trusted(self, process: Process) -> list[tuple[str, Trusted]]:
        at, now = self._world.server_us_at, self._world.now
        return [
            (hold.lease.id, Trusted.trusted(hold.lease, at(hold.until)))
            for hold in self.held_by(process)
            if hold.lease and hold.until > now
        ]

    def held_by(self, process: Process) -> list[Attempt]:
        return [hold for hold in self.holds if hold.process is process and hold.ended == math.inf]

    def look(self, process: Process) -> None:
        """A turn of *process* is over."""
        if held := self.held_by(process):
            for hold in held:
                hold.look()
            holders = self._looks[-1][1].holders
            self._report(self._rules.trust(self._trusted(process), holders))

    def adopt(self, attempt: Attempt, identity: str) -> None:
        attempt.old = identity
        self._adopters[attempt.process, identity] += 1

    def answered(self, attempt: Attempt) -> None:
        if self.pending.pop(attempt, self) is self:
            return
        attempt.answered = now = self._world.now
        if attempt.timeout is None or attempt.adopts or attempt.cancelled:
            return
        waited = now - attempt.began - (attempt.process.stalled_so_far - attempt.stalled)
        most = attempt.timeout if attempt.timeout > 0 else 5.0
        self._unless(waited <= 1.01 * most + LATE, f"{attempt} waited for {waited:.3f} s")

    def granted(self, attempt: Attempt, permit: Permit) -> None:
        world, lease = self._world, permit._lease
        self.answered(attempt)
        attempt.lease = lease
        attempt.look()
        self.holds.append(attempt)
        world.note(attempt.process.name, "holds", lease.id[:4], lease.id[32:], lease.token)
        granted_at = self._granted_at(lease.token)
        self._unless(granted_at < math.inf, f"{attempt}, and was never granted")
        self._unless(lease.id not in self._ids, f"{attempt}, whose id was used before")
        self._ids.add(lease.id)
        if not attempt.adopts:
            self._unless(permit.permits == attempt.permits, f"{attempt} got {permit.permits}")
            # Not if a stall is just over, nor if what would renew it was refused.
            unclear = world.refused_at > world.now - 10 * world.trip
            terms, left = lease.terms, lease.trusted_until - attempt.process.loop.time()
            most = math.inf if terms.max_hold is None else granted_at + terms.max_hold - world.now
            fresh = left > min(terms.lease - terms.refresh_interval, most) - 0.3
            fresh |= attempt.process.woken_busy or unclear
            self._unless(fresh, f"{attempt}, and trusts it too briefly")

    def end(self, attempt: Attempt, permit: Permit) -> None:
        """It asks for its release."""
        attempt.lost |= permit.lost
        attempt.end()
        self._world.note(attempt.process.name, "lets go", permit._lease.id[32:], attempt.lost)

    def gone(self, process: Process, ids: Collection[str] | None = None) -> None:
        """A process learnt just now that the server does not hold *ids* any more, or none."""
        for hold in self.held_by(process):
            if hold.lease and (ids is None or hold.lease.id in ids):
                hold.look()
                self._unless(hold.ended < math.inf, f"{hold}, and knows it to be gone")

    def killed(self, process: Process) -> None:
        """What a killed process held ends with it, or with its trust."""
        for hold in self.held_by(process):
            hold.end()
        self.pending = {a: None for a in self.pending if a.process is not process}

    # -- how attempts end

    def judge_end(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        """A task has ended: in a permit, an error that it may raise, or a cancellation."""
        world, process = self._world, attempt.process
        if task.cancelled() or not isinstance(task.exception(), PermitLost):
            self.answered(attempt)
        else:  # given back before it could be used, which has a time limit of its own
            self.pending.pop(attempt, None)
        if task.cancelled():
            world.ends["cancelled"] += 1
            self._unless(task in process.cancelled, f"{attempt} was cancelled by nobody")
            return
        error = task.exception()
        world.ends[type(error).__name__ if error else "served"] += 1
        obeyed = task not in process.cancelled
        self._unless(obeyed, f"{attempt} was cancelled, and ended with {error!r}")
        self._unless(self._allowed(attempt, error), f"{attempt} ended with {error!r}")
        if attempt.lost:
            # While nothing is wrong, nobody loses anything who leaves time for it.
            right = world.unruly or self._cuts_it_fine(attempt) or attempt.risked
            right |= self._held_for_so_long(attempt)
            self._unless(right, f"{attempt} lost it for no reason")
            told = isinstance(error, PermitLost | BackendUnavailable) or not attempt.guarded
            self._unless(told, f"{attempt} lost it, and left its block as {error!r}")

    def _allowed(self, attempt: Attempt, error: BaseException | None) -> bool:
        world, held = self._world, attempt.lease is not None
        match error:
            case None:
                return attempt.answered is not None
            case AcquireTimeout():
                in_time = attempt.timeout is not None and not held
                full = world.out_of_memory or self._was_full(attempt, error)
                # A message may have granted it, whose refresh had no answer by the deadline.
                return in_time and (full or (world.unruly and attempt.handed_over))
            case QueueFull():
                return not held
            case PermitLost() if held:
                return attempt.lost
            case PermitLost():
                if attempt.adopts:
                    return not self._was_held(attempt)
                return attempt.guarded and world.unruly  # lost between the grant and the block
            case SemaphoreClosed():
                return attempt.process in world.closed and (attempt.action == "detach" or not held)
            case BackendUnavailable():
                return world.unruly or (attempt.timeout or math.inf) < FAR * world.trip
            case BackendError():
                return world.out_of_memory and not held
            case _:
                return False

    def _held_for_so_long(self, attempt: Attempt) -> bool:
        """Whether its `max_hold` has ended."""
        terms = attempt.semaphore._terms
        if terms.max_hold is None or attempt.lease is None:
            return False
        # What is left of it is told by a refresh, and counted from when that was sent.
        left = clock_margin(terms.lease) + 0.01 * terms.max_hold + RENEWED * self._world.trip
        return attempt.ended >= self._granted_at(attempt.lease.token) + terms.max_hold - left

    def _cuts_it_fine(self, attempt: Attempt) -> bool:
        """Whether what a refresh interval leaves of a lease is less than a refresh may take."""
        terms = attempt.semaphore._terms
        left = terms.lease - clock_margin(terms.lease) - terms.refresh_interval
        return left < RENEWED * self._world.trip

    def _was_full(self, attempt: Attempt, error: AcquireTimeout) -> bool:
        """Whether *attempt* had to wait a moment ago: its answer is no older than that."""
        process, semaphore, world = attempt.process, attempt.semaphore, self._world
        since = world.now - NEWS - 4 * world.trip
        if process.stalled_until > since:  # the answer lay there meanwhile
            since = min(since, process.stalled_at - NEWS - 4 * world.trip)
        if self.flushed_at > since - heartbeat_interval(semaphore.lease):
            return True  # those who wait find out with a heartbeat
        request = attempt.request
        if not isinstance(semaphore, FairSemaphore):
            # Those who wait here longer go first, and a heavy one may hold up all.
            siblings = [other for other in self.pending if other.process is process]
            first = sum(other.permits for other in siblings if other.began <= attempt.began)
            most = [other.permits for other in siblings if other.permits <= semaphore.limit]
            request = request._replace(permits=max(attempt.permits + first, *most, 0))
        held_up = self._held_up(since, request, process.hubs, waits=attempt.waits)
        # What is waited for is told with a heartbeat: it may be another since.
        told = world.unruly or attempt.waits or not semaphore.keyed
        return bool(held_up) and (told or error.blocked_by in held_up)

    def _held_up(
        self, since: float, request: QueuedRequest, hubs: Collection[str], *, waits: bool
    ) -> set[str]:
        """What a request of one of *hubs* had to wait for at some moment since *since*.

        One that *waits* has a place in line, which is in nobody's way.
        """
        found = set[str]()
        looks = [pair for pair in self._looks if pair[0] > since]
        for moment, look in looks + [pair for pair in self._looks if pair[0] <= since][-1:]:
            if look.set_limit == 0:
                found.add("paused")
            room = look.room(self._world.server_us_at(max(moment, since)) // 1000)
            if room.backs_off(request):
                found.add("back_off")
            if look.has_lost_facts or look.is_held_up or not room.fits(request):
                found.add("limit")
            asked = request, *(waiter.request for waiter in look.line)
            if not all(lets_go(room.full_in, each) for each in asked):
                found.add("rate")
            of_its_key = [waiter.id for waiter in look.line if waiter.key == key_of(request)]
            others = any(identity.partition(".")[0] not in hubs for identity in of_its_key)
            in_its_way = not look.passes_over and (others or len(of_its_key) > waits)
            if in_its_way or not room.fits_key(request):
                found.add("limit" if request.key is None else "key")
        return found

    def _was_held(self, attempt: Attempt) -> bool:
        """Whether the permit that *attempt* adopts has been held all the time that it asked."""
        process, old = attempt.process, attempt.old
        heir = self._heir.get(old, "")
        most, live = attempt.semaphore._terms.max_hold, self._looks[-1][1].live
        for held in [live[i] for i in (old, heir) if i in live][:1]:
            if most is not None and self._world.now >= self._granted_at(held.token) + 0.97 * most:
                return False  # it may be held no longer by who asks
        if self._adopters[process, old] == 1 and heir.partition(".")[0] in process.hubs:
            # By itself, without an answer. With less of a lease than its margin nobody trusts it.
            margin = clock_margin(attempt.semaphore.lease)
            return self._held_since(heir, margin) < math.inf
        return self._held_since(old) <= attempt.began

    def judge_longest_holds(self) -> None:
        """Nobody trusts a permit for longer than its `max_hold`, since it was granted."""
        for hold in self.holds:
            hold.end()
            assert hold.lease is not None
            first, most = self._granted_at(hold.lease.token), hold.lease.terms.max_hold
            right = most is None or hold.ended <= first + CLOCKS * most + PRECISION
            self._unless(right, f"{hold}, for longer than {most} s, since {first:.6f}")
