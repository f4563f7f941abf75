"""What this process knows of one semaphore, and the verbs that change it. No input, no output.

Tasks, replies, push messages and time call verbs, which mark the semaphore as changed. At the end
of the turn of the event loop, `todo` recomputes what is to be done. It returns how much there is
to write, and when time alone may change something. No verb needs an event loop or a socket. The
commands that are written, and what their replies change, are in `commands` and `calls`.

A request is in one place at a time, by its state (`model` has the transitions):

    NEW      `new`, a heap by place. One whose caller left stays there until it is popped.
    SENT     `requests`, by number, because the server may know it from now on.
    WAITING  `requests` and `waiting`, whose order is the server's.
    GRANTED  `requests`, and its lease is in `leases` under the same number.
    DONE     nowhere, or in `undo` and still in `requests` if the server may yet grant it.

What ties them together:

- The server may grant a number for as long as it is in `requests`. A grant of any other number
  that was drawn here is released at once, so a number leaves `requests` only after a reply says
  that the server has nothing of it, or when its lease is in `leases` or was released.
- Every lease that the server may hold for this process is in `leases`, or in `releases`. A permit
  that is lost without word of the server stays in `leases`, because it may be held there still.
- Numbers are drawn when a command is written, so they increase in the order of the wire. While
  `acquires_in_flight` has a number, the next acquire names it as `after`, and the server refuses
  that one if it has not run. Requests that were refused go back to their places in `new`. Until
  none is in flight, no acquire is written (`drains`), because one of them would pass them.
- An abandon may overtake the acquire that it undoes, on another connection. So it is sent for what
  was SENT, and `drains` holds back the next acquire, too.
- `unsure` has waiters that the server may have forgotten or served without a message. They are
  asked about before all others. One that is gone makes all others unsure.
"""

import heapq
import logging
import math
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context

from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._core.lease import Lost, Outcome, after_refresh, reply_timeout
from redsem_async._core.log import facts
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import SemaphoreRef
from redsem_async._protocol.pushes import Deleted, Granted, Push, Recheck, Revoked

from .identity import HubIdentity, Introduction
from .model import (
    Agenda,
    Call,
    Confirmed,
    Lease,
    LeaseState,
    PendingRefresh,
    PendingRelease,
    Request,
    RequestState,
)
from .server import LinkState, Route

logger = logging.getLogger("redsem_async")

MAX_BATCH = 256  # requests or permits in one script, because it holds the server for as long
MAX_KEYED = 32  # the same where each may have another key, because all of these are looked at
SOON = 0.05  # seconds, until a lease that a message granted is refreshed
MAX_LEAD = (
    0.95  # seconds before a deadline at which the server is asked, unless it is farther away
)
AVERAGED = 8  # over about so many, the usual hold is averaged


class Heartbeats:
    """Sent at the earlier of the next heartbeat and the next moment that matters.

    Attributes:
        due: whether a heartbeat is to be written.
        in_flight: whether one has no reply yet.
        look_at: when one is due next. Infinite where nothing is expected.
    """

    def __init__(self) -> None:
        self.due: bool = False
        self.in_flight: bool = False
        self.look_at: float = math.inf
        self._next_at = math.inf

    @property
    def expected(self) -> bool:
        """Whether a reply to a heartbeat will come."""
        return self.due or self.in_flight

    def written(self) -> None:
        """A heartbeat is on its way."""
        self.due, self.in_flight = False, True

    def answered(self, now: float, interval: float) -> None:
        """The next heartbeat is *interval* away, whatever else is sent.

        Other commands say that this process is alive, too. But they ask about no waiters, and do
        not keep the queue.
        """
        self.in_flight = False
        self._next_at = now + interval

    def expect(self, moment: float | None, interval: float, now: float) -> None:
        """Something may change by itself in *moment* seconds. None for never."""
        if self.look_at == math.inf:
            self._next_at = now + interval
        self.look_at = self._next_at if moment is None else min(self._next_at, now + moment)

    def look_in(self, moment: float, now: float) -> None:
        """Something changes by itself in *moment* seconds, if not earlier."""
        self.look_at = min(self.look_at, now + moment + 0.001)

    def stop(self) -> None:
        """No request waits any more, or the time has come."""
        self.look_at = math.inf

    def forget(self) -> None:
        """The connection was closed on purpose, so no reply will come."""
        self.due = self.in_flight = False


class Changed(dict["SemaphoreState", None]):
    """The semaphores of one server whose state was changed in this turn of the loop.

    Every verb notes its semaphore here. That is all it can do, so nothing is written or set up in
    the middle of a change. At the end of the turn *settle* does what is to be done for all.

    Attributes:
        marks: how many changes there were.
        due: the call of *settle*, if there were any.
    """

    def __init__(self, loop: AbstractEventLoop, settle: Callable[[], None]) -> None:
        super().__init__()
        self.marks: int = 0
        self.due: Handle | None = None
        self._loop = loop
        self._settle = settle

    def add(self, semaphore: "SemaphoreState") -> None:
        """The state of *semaphore* was changed."""
        self[semaphore] = None
        self.marks += 1
        # A task may be collected after its loop was closed by hand.
        if self.due is None and not self._loop.is_closed():
            self.due = self._loop.call_soon(self._settle, context=Context())


class SemaphoreState(SemaphoreRef):
    """What this process knows of one semaphore, and what it will write.

    Attributes:
        new: requests to be written, a heap by place.
        requests: that the server may know, by number.
        waiting: requests that were told to wait, first come first.
        leases: that the server may hold, by number.

        refreshes: to be written, by the number of the lease.
        releases: to be written, by the hub that drew the ids.
        undo: requests whose callers left, and calls that were sent, have no reply, and may not be
            carried out any more.
        calls: without a reply, in the order in which they were made.
        reaps: a reap is to be written, because a command stopped early to let others have the
            server.
        heartbeats: when the next is due.

        drains: the next acquire waits until none is in flight.
        acquires_in_flight: the last number of each acquire that has no reply yet.
        unsure: waiters to be asked about before all others.
        deadlines: when to look at which request.
        by_message: leases that a message granted, and when they are refreshed to confirm it.
        reminders: of requests that wait for long.
        logged_at: when a remark was logged last, by what it is about.
        told_back_off_at: when observers were notified of a back-off last.
        overloaded_at: when a permit met an overload that told no time, by key, or None for all.
        again: place of the last request that asked again, and what it was in microseconds.
        outlasted: by an outage, so that the server forgets those that leave.

        shortest_lease: of any request so far, in seconds (longest_lease likewise).
        own_hold: how long requests of this process held their permits recently, in seconds times
            permits. None before the first release.
        others_hold: the same of all processes, as a reply told it.
        hold_told_at: when a release told *own_hold* last.
        released_at: when a task of this process released a permit last.
        release_refused_at: when a release had to be written again last, behind what was sent
            until then.
        seen: the set limit, and when the pause of a back-off ends, as the last acquire or
            heartbeat told. None if it told of neither.

        changed: notes that a verb changed something.
        scheduled: the pipeline has noted that there is something to write, or holds it back.
        timer: of the pipeline, which looks again at *look_at*.
    """

    def __init__(
        self,
        identity: HubIdentity,
        address: Address,
        link_state: LinkState,
        changed: Changed,
        label: str | None,
    ) -> None:
        super().__init__(address)
        self.changed: Changed = changed
        self.identity: HubIdentity = identity
        self.name: str = address.name
        self.max_batch: int = MAX_KEYED if address.keyed else MAX_BATCH
        self.route: Route = Route(address.name, link_state)
        self.introduction: Introduction = Introduction(self.route, label)
        self.new: list[tuple[float, int, Request]] = []
        self.requests: dict[int, Request] = {}
        self.waiting: OrderedDict[Request, None] = OrderedDict()
        self.leases: dict[int, Lease] = {}
        self.refreshes: dict[int, PendingRefresh] = {}
        self.releases: dict[str, list[PendingRelease]] = {}
        self.undo: list[Request | Call] = []
        self.calls: list[Call] = []
        self.reaps: bool = False
        self.heartbeats: Heartbeats = Heartbeats()
        self.drains: bool = False
        self.acquires_in_flight: deque[int] = deque()
        self.unsure: tuple[Request, ...] = ()
        self.deadlines: Agenda = Agenda()
        self.by_message: deque[tuple[float, Lease]] = deque()
        self.reminders: Agenda = Agenda()
        self.logged_at: dict[str, float] = {}
        self.told_back_off_at: float = -math.inf
        self.overloaded_at: dict[str | None, float] = {}
        self.again: tuple[float, int] = (-math.inf, 0)
        self.outlasted: bool = False
        self.shortest_lease: float = math.inf
        self.longest_lease: float = 0.0
        self.own_hold: float | None = None
        self.others_hold: float | None = None
        self.hold_told_at: float = -math.inf
        self.released_at: float = -math.inf
        self.release_refused_at: float = -math.inf
        self.seen: tuple[int | None, float] | None = None
        self.scheduled: bool = False
        self.timer: TimerHandle | None = None
        self.look_at: float = math.inf

    # -- what is to be done

    def todo(self) -> tuple[int, float]:
        """How many things there may be to write, and when time alone may change something."""
        size, at, new = 0, math.inf, self.new
        while new and new[0][2].state is not RequestState.NEW:
            heapq.heappop(new)  # its caller left
        if new and not (self.drains and self.acquires_in_flight):
            size = len(new)
        if self.releases:
            size += sum(map(len, self.releases.values()))
        if self.refreshes or self.undo or self.calls or self.heartbeats.due or self.reaps:
            size += len(self.refreshes) + len(self.undo) + self.heartbeats.due + self.reaps
            for call in self.calls:
                size += call.keeps_connection and not call.in_flight
        if self.waiting:
            at = self.heartbeats.look_at
        else:
            self.heartbeats.look_at = math.inf
        if self.deadlines:
            at = min(at, self.deadlines.next())
        if by_message := self.by_message:
            while by_message and by_message[0][1].state > LeaseState.HELD:
                by_message.popleft()
            at = min(at, by_message[0][0]) if by_message else at
        if self.reminders:
            at = min(at, self.reminders.next())
        return size, at

    @property
    def active(self) -> bool:
        """Whether anything is held, waited for or to be written, so the connection is kept."""
        return bool(
            self.requests
            or self.leases
            or any(request.state is RequestState.NEW for _, _, request in self.new)
            or self.releases
            or self.reaps
            or any(isinstance(each, Call) or not self.outlasted for each in self.undo)
            or any(call.keeps_connection for call in self.calls)
        )

    @property
    def used_up(self) -> int:
        """Up to this number, no request is sent any more. The server may have forgotten that."""
        again = (request.number for _, _, request in self.new if request.number)
        return min(again, default=self.identity.last_number + 1) - 1

    def pending(self) -> list[Request]:
        """Requests whose callers wait for the outcome."""
        new = (request for _, _, request in self.new)
        known = (*self.requests.values(), *new)
        return [request for request in dict.fromkeys(known) if request.pending]

    def holding(self) -> list[Lease]:
        """Leases that the server holds, as far as is known here."""
        return [lease for lease in self.leases.values() if lease.holding]

    # -- asking

    def ask(self, request: Request) -> None:
        """Ask for a permit."""
        lease = request.terms.lease
        self.longest_lease = max(self.longest_lease, lease)
        self.shortest_lease = min(self.shortest_lease, lease)
        self.changed.add(self)
        heapq.heappush(self.new, (request.started - request.ahead, request.order, request))
        if (deadline := request.deadline) < math.inf:
            lead = min(MAX_LEAD, (deadline - request.started) / 2)
            if lead < (far := self.route.link_state.round_trip) < math.inf:
                lead = far
            self.deadlines.add(request, deadline - lead if request.waits else deadline)

    def remind(self, request: Request, overlong: Callable[[], None], leases: int = 1) -> None:
        """Call *overlong* if *request* waits for longer than so many leases."""
        self.changed.add(self)
        request.overlong = overlong
        self.reminders.add(request, request.started + leases * request.terms.lease)

    def beat(self) -> None:
        """Have a heartbeat written."""
        self.changed.add(self)
        self.heartbeats.due = True

    def forget_number(self, request: Request) -> None:
        """The server has nothing under the number of *request*, which gets another."""
        self.requests.pop(request.number, None)
        request.number, request.was_sent = 0, False

    def ask_again(self, requests: Iterable[Request]) -> None:
        """Write *requests* again, in their places among those that are new."""
        for request in requests:
            request.ask_again()
            place = request.started - request.ahead
            heapq.heappush(self.new, (place, request.order, request))
        self.changed.add(self)

    def fix_place(self, request: Request) -> None:
        """*request* asks again, after those that did so before it and were asked at its moment."""
        if request.asked_us is None:
            place = request.started - request.ahead
            last, used = self.again
            self.again = place, used + 1 if place == last else round(1e6 * place)
            request.asked_us = self.again[1]

    def ask_under_new_number(self, request: Request) -> None:
        """The server has nothing for *request* any more. A new number, the same deadline."""
        self.waiting.pop(request, None)
        self.forget_number(request)
        request.again = request.waits
        self.ask_again([request])

    def wait(self, requests: Sequence[Request]) -> None:
        """The server replied to *requests*, in this order, that they have to wait."""
        for request in requests:
            request.told_to_wait()
            self.waiting[request] = None
        for notifier in observers.notifiers:
            notifier.queued(requests)

    def turn_down(self, request: Request, error: Exception) -> None:
        """*request* ends with *error*. The server has nothing of it that has to be undone."""
        self.requests.pop(request.number, None)
        request.fail(error)

    def leave(self, request: Request) -> None:
        """The caller left without a permit. Whatever it was or will be granted is undone."""
        self.changed.add(self)
        state, lease = request.state, request.lease
        if state <= RequestState.WAITING:
            self.waiting.pop(request, None)
            if request.number:
                # An acquire that is sent after the abandon cannot tell whether this one's has run.
                self.drains |= state is RequestState.SENT
                self.undo.append(request)
        request.end()
        if lease is not None and lease.state is not LeaseState.ENDED:
            self.requests.pop(request.number, None)
            lease.unused()
            self.give_back(lease, clock(), trusted=False)

    def refuse(self, request: Request, error: Exception) -> None:
        """End a request whose caller waits, with *error*, and undo it at the server."""
        self.leave(request)
        request.fail(error)

    # -- granting
    #
    # A caller that gets a permit may trust it for the lease less a refresh interval. Most grants
    # are handed out at once. One that may be older is refreshed first. Until that has its reply
    # the request is GRANTED, and its caller continues to wait. If replies take longer than a
    # refresh interval, one refresh is still awaited, but the permit may be trusted for less.

    def granted(
        self,
        number: int,
        token: int,
        left: float | None,
        sent_at: float,
        slots: Sequence[int] = (),
    ) -> None:
        """The server granted *number*, with *left* seconds of its lease left.

        *left* is None if it said so in reply to the command that granted it, sent at *sent_at*.
        Otherwise it said so in reply to a command sent then, or later.
        """
        request = self.requests.get(number)
        if request is None:
            if number not in self.leases and number <= self.identity.last_number:
                # No caller waits with that number any more.
                self.give_back_unknown(self.identity.id, number)
            return
        if request.state is not RequestState.WAITING and request.state is not RequestState.SENT:
            return  # known already, or its caller left and an abandon is on its way
        terms = request.terms
        if left is None:
            trusted = sent_at + terms.lease - terms.margin
            self.hand_out(request, self.accept(request, token, slots, trusted, sent_at))
            return
        now = clock()
        lease = self.accept(request, token, slots, sent_at + left - terms.margin, now)
        # A refresh finds out a forged grant, and tells how much of ``max_hold`` is left. It is
        # sent soon, unless the permit is released by then, as most are.
        if lease.refresh_is_due(now):
            self.refresh(lease).request = request
        else:
            self.by_message.append((now + SOON, lease))
            self.serve(request, lease)

    def accept(  # positional, because keywords cost time
        self,
        request: Request,
        token: int,
        slots: Sequence[int],
        trusted: float,
        since: float,
    ) -> Lease:
        """The server holds a lease for *request*. Its caller does not have it yet."""
        lease = Lease(request, token, slots, trusted, since)
        self.leases[request.number] = lease
        self.waiting.pop(request, None)
        request.accept(lease)
        return lease

    def serve(self, request: Request, lease: Lease) -> None:
        """The caller of *request* gets *lease*."""
        self.requests.pop(request.number, None)
        request.serve(lease)

    def hand_out(self, request: Request, lease: Lease) -> None:
        """Give the caller its permit, once it is refreshed if that is due."""
        now = clock()
        if not lease.trusted_at(now):
            self.give_back_and_retry(request)  # the loop stood still for a lease
        elif lease.refresh_is_due(now):
            self.refresh(lease).request = request
        else:
            self.serve(request, lease)

    # -- releasing

    def released(
        self, lease: Lease, now: float, held: float, future: Confirmed | None = None
    ) -> PendingRelease:
        """A permit is released after *held* seconds. *future* gets whether it was held."""
        held, usual, self.released_at = lease.permits * held, self.own_hold, now
        if not lease.met_overload:  # a refusal may take no time
            self.own_hold = held if usual is None else usual + (held - usual) / AVERAGED
        pending = self.give_back(lease, now, trusted=lease.trusted_at(now), future=future)
        for notifier in observers.notifiers:
            notifier.permit("released", lease)
        return pending

    def give_back(
        self, lease: Lease, now: float, *, trusted: bool, future: Confirmed | None = None
    ) -> PendingRelease:
        """Release *lease*. A caller that waits for the reply passes a *future*."""
        self.changed.add(self)
        number = lease.number
        self.leases.pop(number, None)
        if self.refreshes:
            self.refreshes.pop(number, None)  # one that is not written yet is of no use
        # Every refresh was sent before the release. But an adopted lease may last for longer, and
        # so may one that a detach was written for.
        ends = now + lease.terms.lease
        if lease.adopted or lease.renewable_after != -math.inf:
            ends = math.inf
        lease.end()
        pending = PendingRelease(number, now, ends, trusted, future, settled=lease.settled)
        self.releases.setdefault(lease.hub_id, []).append(pending)
        return pending

    def give_back_unknown(self, owner: str, number: int, future: Confirmed | None = None) -> None:
        """Release a permit that is known by its id alone."""
        self.changed.add(self)
        pending = PendingRelease(number, clock(), math.inf, False, future)  # noqa: FBT003
        self.releases.setdefault(owner, []).append(pending)

    def give_back_and_retry(self, request: Request) -> None:
        """Release what was granted before the caller came to hold it, and ask again."""
        lease = request.lease
        if request.state is RequestState.GRANTED and lease is not None:
            if request.call:
                # Another permit would not do for an adoption, which wants this one's job.
                self.refuse(request, lease.loss())
                return
            # Not trusted here, it may be held there. Perhaps only the reply came too late.
            lease.unused()
            self.give_back(lease, clock(), trusted=False)
            request.lease = None
            self.ask_under_new_number(request)

    # -- refreshing

    def refresh(self, lease: Lease) -> PendingRefresh:
        """Have a lease refreshed. Callers add to the result who is told of the outcome."""
        self.changed.add(self)
        lease.asked_at = clock()
        pending = self.refreshes.get(lease.number)
        if pending is None:
            pending = self.refreshes[lease.number] = PendingRefresh(lease)
        return pending

    def refresh_again(self, pending: PendingRefresh) -> None:
        """Write a refresh again, together with others."""
        self.changed.add(self)
        known = self.refreshes.setdefault(pending.lease.number, pending)
        if known is not pending:
            known.join(pending)

    def refreshed(
        self, pending: PendingRefresh, outcome: Outcome, sent_at: float, now: float
    ) -> None:
        """A refresh that was sent at *sent_at* has ended by *now*. Wakes who waits for that."""
        self.note_refreshed(pending.lease, outcome, sent_at, now)
        pending.settle(outcome)
        request, lease = pending.request, pending.lease
        if request is None or request.state is not RequestState.GRANTED:
            return
        # A connection without a reply is dropped, so the loop was blocked if this one is so late.
        late = now - sent_at > reply_timeout(request.terms.lease)
        if outcome is Outcome.RENEWED and late:
            self.hand_out(request, lease)
        elif lease.trusted_at(clock()):
            self.serve(request, lease)
        else:
            self.give_back_and_retry(request)  # the loop stood still for a lease

    def note_refreshed(self, lease: Lease, outcome: Outcome, sent_at: float, now: float) -> None:
        """Trust *lease* for longer, or lose it."""
        if not lease.holding:
            return
        if outcome is Outcome.RENEWED and sent_at <= lease.renewable_after:
            outcome = Outcome.UNKNOWN  # a detach may have been carried out after it
        verdict = after_refresh(
            lease.trusted_until, lease.terms.lease, outcome, sent_at=sent_at, now=now
        )
        if isinstance(verdict, Lost):
            known = outcome is Outcome.GONE
            self.gone(lease, verdict.reason if known else lease.doubt)
        else:
            lease.renew(verdict)
            if outcome is Outcome.RENEWED:
                for notifier in observers.notifiers:
                    notifier.permit("refreshed", lease, expires_in=lease.trusted_until - now)

    def detached(self, lease: Lease) -> None:
        """The server keeps *lease* for another process."""
        self.changed.add(self)
        self.leases.pop(lease.number, None)
        lease.end()

    # -- losing

    def gone(self, lease: Lease, reason: str, *, expected: bool = False) -> None:
        """The server does not hold *lease* any more, or it cannot be trusted."""
        self.changed.add(self)
        if lease.state is LeaseState.HELD:
            self.leases.pop(lease.number, None)
            self.lose(lease, reason, expected=expected)
        elif lease.state is LeaseState.GRANTED:  # its caller does not have it yet
            self.give_back_and_retry(self.requests[lease.number])

    def lose(self, lease: Lease, reason: str, *, expected: bool = False) -> None:
        """The permit of *lease* is lost, so wake its holder, notify observers, and log it.

        *expected* means that this process ended the permit itself, which is not logged. A loss
        that cancels a block, or that its block cannot be told of, is logged as a warning.
        """
        if lease.state is not LeaseState.HELD:
            return
        cancels = lease.guard is not None
        lease.lose(reason)
        for notifier in observers.notifiers:
            notifier.permit("lost", lease, reason=reason, cancels=cancels)
        if not expected:
            own = {"fencing_token": lease.token, "permits": lease.permits, "reason": reason}
            extra = facts("lost", semaphore=self.name, **own)
            level = logging.WARNING if cancels or lease.is_nobodys else logging.INFO
            text = "a permit of %r was lost: %s"
            logger.log(level, text, self.name, reason, extra=extra)

    def lose_unless_trusted(self, lease: Lease) -> bool:
        """Whether the permit of *lease* is lost, or ends now because its trust has run out."""
        if lease.state is LeaseState.HELD and not lease.trusted_at(clock()):
            self.lose(lease, lease.doubt)
        return lease.state is not LeaseState.HELD

    # -- time, push messages, connections

    def time_passed(self, now: float) -> None:
        """Send the heartbeat and the refreshes whose time has come."""
        heartbeats, by_message = self.heartbeats, self.by_message
        if now >= heartbeats.look_at:
            heartbeats.stop()
            if self.waiting and not heartbeats.in_flight:
                self.beat()
        while by_message and (by_message[0][0] <= now or not by_message[0][1].holding):
            lease = by_message.popleft()[1]
            if lease.holding and not lease.unsettled:  # a detach would become a whole lease again
                _ = self.refresh(lease)

    def pushed(self, push: Push, fresh_at: float | None) -> None:
        """Apply a push message. The newest command with a reply was sent at *fresh_at*."""
        match push:
            case Granted(grants=grants):
                # The server had carried out that command before it granted these.
                sent_at = -math.inf if fresh_at is None else fresh_at
                for number, (token, left_ms, slots) in grants:
                    self.granted(number, token, left_ms / 1000, sent_at, slots)
            case Revoked(numbers=numbers):
                self.revoked(numbers)
            case Deleted():
                self.deleted()
            case Recheck(in_ms=0):
                if self.waiting:
                    self.beat()
            case Recheck(in_ms=in_ms):
                if self.waiting:
                    self.heartbeats.look_in(in_ms / 1000, clock())

    def revoked(self, numbers: Iterable[int]) -> None:
        """Another client released or adopted permits of this process."""
        for number in numbers:
            if (lease := self.leases.get(number)) is not None:
                self.gone(lease, "revoked: another process released or adopted it")

    def deleted(self) -> None:
        """The semaphore was deleted. Holders lose their permits, and waiters start again."""
        self.introduction.sent = False
        self.seen = None
        for lease in self.holding():
            self.gone(lease, "the semaphore was deleted")
        for request in list(self.waiting):
            self.ask_under_new_number(request)
