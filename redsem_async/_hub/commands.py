"""Each batched command: what it takes of a semaphore's state, and what its reply changes there.

A batch is the operation itself, with the requests or leases that it is for. It ends in one of
three ways. It gets its reply, or it is refused, or it has to be written again because its
connection was lost or because the server did not carry it out. Operations that are not batched are
in `calls`.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from heapq import heappop
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot, Terms
from redsem_async._core.errors import (
    BackendError,
    LayoutMismatch,
    ModeMismatch,
    QueueFull,
    SemaphoreError,
    SlotsMismatch,
)
from redsem_async._core.lease import Outcome, heartbeat_interval
from redsem_async._core.log import facts
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.hub_info import UNCHANGED
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Heartbeat,
    Operation,
    QueuedRequest,
    Refresh,
    Release,
    RequestOptions,
)
from redsem_async._protocol.replies import (
    FULL,
    FULL_FOR_KEY,
    GONE,
    QUEUE_FULL,
    QUEUE_FULL_FOR_KEY,
    WAITING_FOR_KEY,
    Holding,
    Reply,
)

from .estimates import retry_after_of, timed_out
from .model import Call, Lease, PendingRefresh, PendingRelease, QueueReport, Request, RequestState
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")

STAGGER = 0.03  # seconds, once to twice that, for which a process leaves an expiry to others
MAX_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when nothing is in doubt
MAX_REFRESHES = 1250
MAX_HEAVY_REFRESHES = 64  # where some are for several permits
TELL_HOLD = 5.0  # seconds, at least, between two releases that tell others of the usual hold
FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment

_TO_WRITE_AGAIN = frozenset(
    {
        ErrorKind.RETRY_NOW,
        ErrorKind.BUSY,
        ErrorKind.READ_ONLY,
        ErrorKind.MOVED,
        ErrorKind.ASK,
        ErrorKind.RETRY_LATER,
    }
)
_NO_EFFECT = frozenset(
    {
        ErrorKind.MODE_MISMATCH,
        ErrorKind.LAYOUT_MISMATCH,
        ErrorKind.SLOTS_MISMATCH,
        ErrorKind.NO_MEMORY,
    }
)
_ANY_FULL = frozenset({FULL, FULL_FOR_KEY, QUEUE_FULL, QUEUE_FULL_FOR_KEY})
_NEW, _SENT, _WAITING = RequestState.NEW, RequestState.SENT, RequestState.WAITING

_number = attrgetter("number")

T = TypeVar("T")
R = TypeVar("R")


class Batch(Operation[R], Generic[R, T]):
    """A command of one semaphore, with the requests, leases or calls that it is for."""

    __slots__ = ()

    state: SemaphoreState
    items: Sequence[T]

    def settle_error(self, error: CommandError, now: float) -> None:
        """Apply an error reply."""
        if error.kind in _TO_WRITE_AGAIN:
            self.state.introduction.sent = False
            self.write_again(arrived=False)
        else:
            self.refused(self.error_for(error), now)

    def error_for(self, refusal: CommandError) -> SemaphoreError:
        """The error to raise for an error reply that another attempt does not mend."""
        name = self.state.name
        error: SemaphoreError = BackendError(name, str(refusal.error))
        if refusal.layout is not None:
            error = LayoutMismatch(name, *refusal.layout)
        elif refusal.use is not None:
            error = ModeMismatch(name, self.state.address.kind, *refusal.use)
        elif refusal.slots:
            declared: Sequence[Slot] | None = getattr(self, "slots", None)
            own = ", ".join(map(str, declared or ()))
            error = SlotsMismatch(name, own, ", ".join(refusal.slots))
        error.__cause__ = refusal.error
        return error

    def apply(self, reply: R, now: float) -> None:
        """Apply the reply, which came *now*."""
        raise NotImplementedError

    def refused(self, error: SemaphoreError, now: float) -> None:
        """The command failed, or was carried out in part, and sending it again will not help."""
        raise NotImplementedError

    def write_again(self, *, arrived: bool) -> None:
        """Have the command written again, in its place. It may have *arrived* all the same."""
        raise NotImplementedError


AnyBatch = Batch[Any, Any]


class AcquireBatch(Batch[Reply, Request], Acquire):
    """Requests that ask for permits, all with the same terms."""

    __slots__ = ("items", "state")

    @classmethod
    def take(cls, state: SemaphoreState) -> "AcquireBatch | None":
        """The next batch. None if there is no request to write, or none may be written yet."""
        in_flight, new = state.acquires_in_flight, state.new
        while new and new[0][2].state is not _NEW:
            heappop(new)  # its caller left
        # What was refused goes back in front. An acquire that is written now would pass it.
        if not new or (state.drains and in_flight):
            return None
        identity, most, first = state.identity, state.max_batch, new[0][2]
        terms: Terms = first.terms
        # One that was sent before may have been carried out, or not. Until that is known, no batch
        # may name it as its `after`, so it has a batch of its own kind, and the next one waits.
        state.drains = sent_before = first.was_sent
        requests: list[Request] = []
        numbers: list[int] = []
        options: dict[int, RequestOptions] = {}
        while new and len(requests) < most:
            request = new[0][2]
            if request.state is _NEW:
                alike = request.terms is terms or request.terms == terms
                if not alike or request.was_sent is not sent_before:
                    break
                if not request.number:  # drawn in the order of the wire
                    identity.last_number += 1
                    request.number, request.hub_id = identity.last_number, identity.id
                number = request.number
                state.requests[number] = request  # from here on, the server may grant it
                request.written()
                requests.append(request)
                numbers.append(number)
                if (
                    request.permits != 1
                    or not request.waits
                    or request.ahead
                    or request.key
                    or request.again
                    or request.costs
                ):
                    if request.again:
                        state.fix_place(request)
                    options[number] = request.options
            heappop(new)
        info = UNCHANGED if state.introduction.sent else state.introduction.take()
        batch = cls(
            numbers,
            terms.lease_ms,
            terms.limit,
            options,
            terms.max_waiters,
            terms.max_waiters_per_key,
            in_flight[-1] if in_flight else 0,
            info,
            terms.slots,
        )
        if options and any(request.again for request in requests):
            batch.now_us = round(1e6 * clock())
        batch.items, batch.semaphore, batch.state = requests, state, state
        in_flight.append(numbers[-1])  # behind the batch, whose `after` is the one before
        return batch

    def settle_error(self, error: CommandError, now: float) -> None:
        state = self.state
        state.acquires_in_flight.popleft()
        if error.kind not in _NO_EFFECT:
            super().settle_error(error, now)
            return
        for request in self.items:
            if request.state is _SENT:
                # One that was sent before may be known to the server from then.
                end = state.refuse if request.was_sent else state.turn_down
                end(request, self.error_for(error))

    def apply(self, reply: Reply, now: float) -> None:
        state, sent_at, slots = self.state, self.sent_at, reply.slots
        state.acquires_in_flight.popleft()  # first, because what asks anew may be written at once
        terms = self.items[0].terms
        trusted = sent_at + terms.lease - terms.margin
        at_once = trusted - now > terms.lease - terms.refresh_interval
        report: QueueReport | None = None
        again: list[Request] = []
        wait: list[Request] = []
        # A request that asked anew has another number by now.
        for request, number, answer in zip(self.items, self.numbers, reply.answers, strict=True):
            if isinstance(answer, Holding):
                # By its number, as its caller may have left: then it is given back.
                left = answer.left_ms / 1000
                state.granted(number, answer.token, left, sent_at, answer.slots)
            elif request.state is not _SENT or request.number != number:
                continue  # its caller left and an abandon is on its way, or it asked anew
            elif answer > 0:
                had = slots.get(number, ()) if slots else ()
                if at_once:
                    # `leases` first: a number that is in neither would be released if it is
                    # granted once more. As `granted` does it, without its calls.
                    lease = Lease(request, answer, had, trusted, sent_at)
                    state.leases[number] = lease
                    del state.requests[number]
                    request.serve(lease)
                else:
                    lease = state.accept(request, answer, had, trusted, sent_at)
                    state.hand_out(request, lease)
            elif answer == GONE or (
                answer in _ANY_FULL and (reply.next_ms == 0 or sent_at <= state.release_refused_at)
            ):
                # It was ended, or there may be room behind a reap, or a release that it overtook.
                state.forget_number(request)
                request.again = answer == GONE and request.waits
                again.append(request)
            else:
                request.report = report = report or _report(state, sent_at, reply)
                request.waits_for_key = answer in (WAITING_FOR_KEY, FULL_FOR_KEY)
                if not request.waits or answer in (QUEUE_FULL, QUEUE_FULL_FOR_KEY):
                    _reject_full(state, request, for_key=answer == QUEUE_FULL_FOR_KEY)
                else:
                    wait.append(request)
        if again:
            state.ask_again(again)
        if wait:
            state.wait(wait)
        if state.seen is not None or reply.set_limit is not None or reply.ramp is not None:
            note_limit(state, reply, now)
        if reply.granted or reply.next_ms is not None or state.waiting:
            apply_common(state, reply, sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for request in self.items:
            if request.state is _SENT:
                self.state.refuse(request, error)

    def write_again(self, *, arrived: bool) -> None:
        state = self.state
        # For those whose callers left, an abandon is on its way.
        asking = [each for each in self.items if each.state is _SENT]
        if arrived:
            state.acquires_in_flight.clear()
        else:
            state.drains = True  # those that were sent behind it are refused, too
        for request in asking:
            if arrived:
                request.was_sent = True
            elif not request.was_sent:
                state.forget_number(request)
        state.ask_again(asking)


class HeartbeatBatch(Batch[Reply, Request], Heartbeat):
    """Says that this process is alive, and asks whether its waiters still wait."""

    __slots__ = ("items", "state")

    @classmethod
    def take(cls, state: SemaphoreState) -> "HeartbeatBatch":
        """The next heartbeat."""
        state.heartbeats.written()
        asked = _asked_about(state)
        lease_ms = math.ceil(1000 * state.longest_lease)
        info = state.introduction.take(state.used_up)
        batch = cls(lease_ms, [each.queued for each in asked], info)
        batch.items, batch.semaphore, batch.state = asked, state, state
        return batch

    def apply(self, reply: Reply, now: float) -> None:
        state, sent_at = self.state, self.sent_at
        state.heartbeats.answered(now, heartbeat_interval(state.longest_lease))
        gone: list[Request] = []
        report = _report(state, sent_at, reply)
        for request, queued, answer in zip(self.items, self.requests, reply.answers, strict=True):
            number = queued.number  # a request that asked anew has another by now
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                state.granted(number, answer.token, left, sent_at, answer.slots)
            elif request.state is not _WAITING or request.number != number:
                continue
            elif answer == GONE:
                gone.append(request)
            else:
                request.report = report
                request.waits_for_key = answer == WAITING_FOR_KEY
        note_limit(state, reply, now)
        apply_common(state, reply, sent_at, now)
        # The server does not know these any more. One that is gone makes all others doubtful.
        for request in gone:
            state.ask_under_new_number(request)
        if gone:
            state.unsure = tuple(dict.fromkeys((*state.unsure, *state.waiting)))
        if state.unsure:
            state.beat()

    def refused(self, error: SemaphoreError, now: float) -> None:
        state = self.state
        state.heartbeats.in_flight = False
        for request in list(state.waiting):
            state.refuse(request, error)

    def write_again(self, *, arrived: bool) -> None:
        self.state.heartbeats.in_flight = False
        self.state.unsure = (*self.items, *self.state.unsure)
        self.state.beat()


class ReleaseBatch(Batch[Reply, PendingRelease], Release):
    """Releases of one hub's ids."""

    __slots__ = ("items", "state")

    @classmethod
    def take(cls, state: SemaphoreState, now: float) -> "ReleaseBatch":
        """The next batch. There is one."""
        owner, pending = next(iter(state.releases.items()))
        most, waiting = state.max_batch, state.waiting
        if len(pending) > most:
            state.releases[owner] = pending[most:]
            pending = pending[:most]
        else:
            del state.releases[owner]
        numbers = list(map(_number, pending))
        own: Sequence[QueuedRequest] = ()
        if waiting and not state.address.fair:
            own = [request.queued for request in islice(waiting, len(numbers))]
        waits = bool(waiting or state.acquires_in_flight)
        hold, hold_ms = state.own_hold, None
        if hold is not None and now >= state.hold_told_at + TELL_HOLD:
            state.hold_told_at, hold_ms = now, math.ceil(1000 * max(hold, 0.0))
        batch = cls(owner, numbers, hold_ms, waits, own)
        if state.address.rated:
            batch.settled = {each.number: each.settled for each in pending if each.settled}
        batch.items, batch.semaphore, batch.state = pending, state, state
        return batch

    def apply(self, reply: Reply, now: float) -> None:
        for pending, held in zip(self.items, reply.answers, strict=True):
            if pending.future is not None:
                # If it is sent twice, the second finds nothing although the first did.
                pending.settle(bool(held) or (pending.was_sent and pending.trusted))
        if reply.granted or reply.next_ms is not None or self.state.waiting:
            apply_common(self.state, reply, self.sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        fail_releases(self.state, self.items, error)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self.items:
            pending.was_sent |= arrived
        self.state.release_refused_at = clock()
        owner, releases = self.owner, self.state.releases
        releases[owner] = [*self.items, *releases.get(owner, ())]


class RefreshBatch(Batch[Reply, PendingRefresh], Refresh):
    """Leases to be refreshed, all of one length."""

    __slots__ = ("items", "state")

    @classmethod
    def take(cls, state: SemaphoreState) -> "RefreshBatch":
        """The next batch. There is one."""
        refreshes = state.refreshes
        first = next(iter(refreshes.values())).lease.terms
        alike = (each for each in refreshes.values() if _refreshed_alike(each.lease.terms, first))
        items = list(islice(alike, MAX_REFRESHES))
        if any(pending.lease.permits > 1 for pending in items):
            items = items[:MAX_HEAVY_REFRESHES]
        for pending in items:
            del refreshes[pending.lease.number]
        batch = cls([each.lease.number for each in items], first.lease_ms, first.max_hold_ms)
        batch.items, batch.semaphore, batch.state = items, state, state
        return batch

    def apply(self, reply: Reply, now: float) -> None:
        for pending, held in zip(self.items, reply.answers, strict=True):
            if held:
                assert isinstance(held, int)
                pending.lease.note_hold_left(held, self.sent_at)
            self._settle(pending, Outcome.RENEWED if held else Outcome.GONE, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for pending in self.items:
            self._settle(pending, Outcome.UNKNOWN, now)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self.items:
            if pending.lease.holding:
                self.state.refresh_again(pending)
            else:
                self._settle(pending, Outcome.UNKNOWN, clock())

    def _settle(self, pending: PendingRefresh, outcome: Outcome, now: float) -> None:
        self.state.refreshed(pending, outcome, self.sent_at, now)


class AbandonBatch(Batch[Reply, Request | Call], Abandon):
    """Requests and calls of callers that left."""

    __slots__ = ("items", "state")

    @classmethod
    def take(cls, state: SemaphoreState) -> "AbandonBatch":
        """The next batch. There is one."""
        most = state.max_batch
        items, state.undo = state.undo[:most], state.undo[most:]
        requests = [each for each in items if isinstance(each, Request)]
        calls: list[Any] = [each for each in items if isinstance(each, Call)]
        changes = [call.call for call in calls if call.is_change]
        void = [each.call for each in requests] + [c.call for c in calls if not c.is_change]
        queued = [request.queued for request in requests]
        batch = cls(queued, max(void, default=0), max(changes, default=0))
        batch.items, batch.semaphore, batch.state = items, state, state
        return batch

    def apply(self, reply: Reply, now: float) -> None:
        self._forget()
        for each in self.items:
            if isinstance(each, Call):
                each.ended()
        apply_common(self.state, reply, self.sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        self._forget()  # what the server has of them ends with its lease

    def _forget(self) -> None:
        for each in self.items:
            if isinstance(each, Request):
                self.state.requests.pop(each.number, None)

    def write_again(self, *, arrived: bool) -> None:
        self.state.undo[:0] = self.items


# -- what a reply brings about besides its answers


def note_limit(state: SemaphoreState, reply: Reply, now: float) -> None:
    """Note the set limit in a reply, and the pause of a back-off. Log it if Redis lost them."""
    lost, (limit, paused_until) = "", state.seen or (None, 0.0)
    if reply.forgotten and limit is not None:
        lost = f"the set limit of {limit}" if limit else "the pause"
    elif reply.forgotten and reply.ramp is None and now < paused_until:
        lost = "the back-off"
    if lost:
        extra = facts("limit lost", semaphore=state.name)
        logger.warning("%r: %s was lost with Redis's data", state.name, lost, extra=extra)
    ramp = reply.ramp
    lasts = 0.0 if ramp is None or ramp.permits else ramp.lasts_ms / 1000
    state.seen = (reply.set_limit, now + lasts) if lasts or reply.set_limit is not None else None


def apply_common(
    state: SemaphoreState,
    reply: Reply,
    sent_at: float,
    now: float,
    *,
    continues: bool = True,
) -> None:
    """Apply what a reply says of the semaphore.

    With *continues*, a reap follows one that stopped early to let others have the server.
    """
    for number, token in reply.granted:
        state.granted(number, token, None, sent_at, reply.slots.get(number, ()))
    state.reaps |= reply.next_ms == 0 and continues
    if waiting := state.waiting:
        moment = None
        if reply.next_ms is not None:
            behind = reply.waiting - len(waiting) > FIRST_FEW and not state.address.rated
            moment = reply.next_ms / 1000 + (state.identity.stagger(STAGGER) if behind else 0.001)
        state.heartbeats.expect(moment, heartbeat_interval(state.longest_lease), now)


def _report(state: SemaphoreState, sent_at: float, reply: Reply) -> QueueReport:
    """What *reply*, to a command sent at *sent_at*, says about the queue."""
    if reply.hold_ms is not None:
        state.others_hold = reply.hold_ms / 1000
    return QueueReport(sent_at, reply)


def _reject_full(state: SemaphoreState, request: Request, *, for_key: bool) -> None:
    """The server replied "full" to a request that does not wait, or may not."""
    terms = request.terms
    bound = terms.max_waiters_per_key if for_key else terms.max_waiters
    if request.waits and bound is not None:
        facts = (state.name, bound, retry_after_of(state, request), for_key)
        state.turn_down(request, QueueFull(*facts))
    else:
        state.turn_down(request, timed_out(state, request))


def _asked_about(state: SemaphoreState) -> Sequence[Request]:
    """The waiters that the next heartbeat asks about.

    The first in the queue, to see that it is still there. Or those that are in doubt, or whose
    deadline is near. Or all of them, where push messages may have been missed.
    """
    if state.route.link_state.no_push and not state.unsure:
        state.unsure = tuple(state.waiting)
    unsure = [each for each in state.unsure if each.state is _WAITING]
    others = unsure or islice(state.waiting, FIRST_ASKED)
    asked = dict.fromkeys(islice(dict.fromkeys(others), MAX_ASKED))
    state.unsure = tuple(each for each in unsure if each not in asked)
    return list(asked)


def _refreshed_alike(one: Terms, other: Terms) -> bool:
    """Whether one command may refresh permits with these terms."""
    return one is other or (one.lease_ms == other.lease_ms and one.max_hold == other.max_hold)


def fail_releases(
    state: SemaphoreState, releases: Iterable[PendingRelease], error: SemaphoreError
) -> None:
    """End *releases* with *error*, which is logged where no caller gets it."""
    unawaited = 0
    for pending in releases:
        unawaited += pending.future is None
        pending.settle(error)
    if unawaited:
        extra = facts("not released", semaphore=state.name, permits=unawaited)
        text = "%d permit(s) of %r could not be released, and expire with their leases: %s"
        logger.warning(text, unawaited, state.name, error, extra=extra)
