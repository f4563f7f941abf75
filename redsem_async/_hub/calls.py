"""Operations that are not batched: when each is written, and what its reply changes.

A change, that is a set limit, a deletion or a back-off, has rules of its own (see `ChangeCall`).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import trusted_until
from redsem_async._core.log import facts
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import (
    Acquire,
    Adopt,
    Delete,
    Detach,
    KeyTerms,
    Reap,
    SetLimit,
    StartBackOff,
)
from redsem_async._protocol.replies import AdoptReply, Reply
from redsem_async._protocol.status import Status

from .commands import AnyBatch, Batch, apply_common, note_limit
from .model import Call, Lease, LeaseState, Request, RequestState
from .state import SemaphoreState

TELLS_EVERY = 1.0  # seconds between two back-offs of a semaphore that observers are told

logger = logging.getLogger("redsem_async")


class CallBatch(Batch[Any, Any], Call):
    """The command of one call, which is that call.

    Attributes:
        made_void: it must not be carried out once its caller has left.
    """

    items: Sequence[Any] = ()
    state: SemaphoreState
    made_void: ClassVar[bool] = False

    def ask(self, state: SemaphoreState) -> None:
        """Have it written."""
        self.semaphore = self.state = state
        state.calls.append(self)
        state.changed.add(state)

    def take(self) -> AnyBatch:
        """The command, which is written now."""
        self.in_flight = True
        self.written()
        return self

    def written(self) -> None:
        """The command is written now. Those that have a number draw it."""

    def apply(self, reply: Any, now: float) -> None:
        self.settle(reply)
        self.ended()

    def refused(self, error: SemaphoreError, now: float) -> None:
        self.fail(error)
        self.ended()

    def write_again(self, *, arrived: bool) -> None:
        self.was_sent |= arrived
        self.in_flight = False
        if not self.wanted:
            self.withdraw()

    def fail(self, error: SemaphoreError) -> None:
        """No reply will come, or it was refused."""
        self.settle(error)

    def withdraw(self) -> None:
        """It is no longer wanted, and not in flight."""
        state = self.state
        if not (self.was_sent and self.made_void):
            self.ended()
            return
        if self in state.calls:
            state.calls.remove(self)
        state.undo.append(self)  # its bytes may be somewhere still
        state.changed.add(state)

    def given_up(self) -> None:
        """Its caller waits no more. If it is unsent, it never will be sent."""
        if self in self.state.calls and not self.in_flight:
            self.withdraw()

    def ended(self) -> None:
        """It got its reply, was refused or made void, so it is not carried out any more."""
        if self in self.state.calls:
            self.state.calls.remove(self)
            self.state.changed.add(self.state)


@dataclass(eq=False)
class ReapCall(CallBatch, Reap):
    """A reap, which a caller asked for, or which continues one that stopped early."""

    def apply(self, reply: Reply, now: float) -> None:
        on_our_own = self.future is None
        apply_common(self.state, reply, self.sent_at, now, continues=on_our_own)
        super().apply(reply, now)


def _unsent(state: SemaphoreState) -> list[CallBatch]:
    return [call for call in cast("list[CallBatch]", state.calls) if not call.in_flight]


def drop_unwanted(state: SemaphoreState) -> None:
    """Withdraw the calls that are not written any more, such as back-offs that are over."""
    for call in _unsent(state):
        if not call.wanted:
            call.withdraw()


def next_call(state: SemaphoreState) -> CallBatch | None:
    """The next call to write. A change, if one may be written now."""
    others = (call for call in _unsent(state) if not isinstance(call, ChangeCall))
    return next_change(state) or next(others, None)


def next_change(state: SemaphoreState) -> "ChangeCall | None":
    """The first change that is not in flight, if it may be written now."""
    first = True
    for change in [each for each in state.calls if isinstance(each, ChangeCall)]:
        if not change.in_flight:
            return change if first or not change.alone else None
        if change.alone:
            return None
        first = False
    return None


def back_off_is_unsent(state: SemaphoreState) -> bool:
    """Whether a permit's back-off waits to be written, ahead of all that would serve a waiter."""
    changes = (each for each in _unsent(state) if isinstance(each, ChangeCall))
    return any(change.future is None and change.wanted for change in changes)


def back_off_is_in_flight(state: SemaphoreState) -> bool:
    """Whether a back-off has no reply yet."""
    return any(isinstance(call, BackOffCall) and call.in_flight for call in state.calls)


def fail_calls(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End every call, because no reply will come."""
    for call in cast("list[CallBatch]", state.calls[:]):
        call.fail(error())
        call.withdraw()


@dataclass(eq=False)
class StatusCall(CallBatch, Status):
    """A status."""


@dataclass(eq=False)
class ReadyCall(CallBatch, Acquire):
    """An acquire without requests, which is refused if any other would be."""

    def written(self) -> None:
        self.hub_info = self.state.introduction.take(self.state.used_up)

    def apply(self, reply: Reply, now: float) -> None:
        note_limit(self.state, reply, now)
        apply_common(self.state, reply, self.sent_at, now)
        super().apply(reply, now)


@dataclass(eq=False, kw_only=True)
class DetachCall(CallBatch, Detach):
    """A detach. From when it is written *lease* is trusted for *expires* seconds at most.

    Like an adoption, it draws a number each time it is written. It may be carried out twice while
    its caller waits, and not after the server knows a higher number.
    """

    made_void = True
    lease: Lease = field(repr=False)
    expires: float
    unsettled: bool = False

    def written(self) -> None:
        self.call = self.state.identity.new_number()
        if not self.unsettled:
            self.unsettled = True
            self.lease.unsettled += 1
        self.lease.shorten(trusted_until(self.expires, sent_at=clock(), left=self.expires))

    def ended(self) -> None:
        super().ended()
        if self.unsettled:
            self.unsettled, lease = False, self.lease
            lease.detach_settled(clock())
            held = lease.state is LeaseState.HELD and not lease.unsettled
            if not self.wanted and held:  # and was not detached once more meanwhile
                _ = self.state.refresh(lease)


@dataclass(eq=False, kw_only=True)
class AdoptCall(CallBatch, Adopt):
    """An adoption. *request* takes over another process's permit, under a number of this one's."""

    request: Request = field(repr=False)

    @property
    def wanted(self) -> bool:
        return self.request.state <= RequestState.SENT

    def fail(self, error: SemaphoreError) -> None:
        if self.wanted:
            self.state.refuse(self.request, error)

    def written(self) -> None:
        state, request = self.state, self.request
        self.call = request.call = state.identity.new_number()
        if not request.number:
            request.number, request.hub_id = state.identity.new_number(), state.identity.id
        state.requests[request.number] = request
        request.written()
        self.new, self.hub_info = request.number, state.introduction.take(state.used_up)

    def apply(self, reply: AdoptReply, now: float) -> None:
        self.ended()
        state, request, sent_at = self.state, self.request, self.sent_at
        if request.state is not RequestState.SENT:
            return  # its caller left, and an abandon is on its way
        if reply.holding is None:
            reason, old_id = "the id no longer holds a permit", permit_id(self.owner, self.old)
            state.turn_down(request, PermitLost(state.name, old_id, reason))
            return
        if self.owner == state.identity.id:
            state.revoked([self.old])  # no push message says so
        token, left_ms, slots = reply.holding
        duration = request.terms.lease
        left = min(duration, left_ms / 1000)
        request.permits = reply.permits
        request.key = None if reply.key is None else KeyTerms(reply.key)
        trusted = trusted_until(duration, sent_at=sent_at, left=left)
        lease = state.accept(request, token, slots, trusted, sent_at - reply.held_ms / 1000)
        lease.adopted = True
        if left < duration:
            _ = state.refresh(lease)  # carried out before, and the reply was lost
        state.hand_out(request, lease)

    def write_again(self, *, arrived: bool) -> None:
        if self.request.state is RequestState.SENT:
            self.request.ask_again()
        super().write_again(arrived=arrived)


class ChangeCall(CallBatch):
    """A set limit, a deletion or a back-off, which is carried out once at most.

    The server carries out no number that is not above the last one. So a change keeps its number
    for as long as it may have been carried out, and no other is written meanwhile.
    """

    made_void = True
    is_change = True
    call: int

    @property
    def alone(self) -> bool:
        """Whether no other change is in flight with it. A permit's back-offs may be, at first."""
        return self.was_sent or self.future is not None

    @property
    def keeps_connection(self) -> bool:
        return self.wanted or self.was_sent

    def written(self) -> None:
        self.call = self.call or self.state.identity.new_number()

    def apply(self, reply: Reply, now: float) -> None:
        apply_common(self.state, reply, self.sent_at, now)
        super().apply(reply, now)

    def write_again(self, *, arrived: bool) -> None:
        calls = self.state.calls
        self.in_flight = False
        self.was_sent |= arrived
        if not self.was_sent:
            self.call = 0
            if self.future is None and self in calls:  # others may be in flight
                calls.remove(self)
                calls.append(self)


@dataclass(eq=False)
class SetLimitCall(ChangeCall, SetLimit):
    """A set limit."""


@dataclass(eq=False)
class DeleteCall(ChangeCall, Delete):
    """A deletion."""

    def apply(self, reply: Reply, now: float) -> None:
        super().apply(reply, now)
        self.state.deleted()


@dataclass(eq=False, kw_only=True)
class BackOffCall(ChangeCall, StartBackOff):
    """A back-off until *ends*, by the clock of this process.

    One that is written later is shorter. One that is over is not written any more, unless its
    caller waits for the reply. One without a pause only cuts, if it is written until then.
    """

    ends: float

    @property
    def wanted(self) -> bool:
        return super().wanted and (self.future is not None or clock() < self.ends)

    def ask(self, state: SemaphoreState) -> None:
        known = (each for each in state.calls if isinstance(each, BackOffCall))
        if not any(each.join(self) for each in known):
            super().ask(state)

    def join(self, other: "BackOffCall") -> bool:
        """Back off for *other*, too. False if that is of another key, or an operator's."""
        if self.alone or other.alone or self.in_flight or self.key != other.key:
            return False
        assert self.token is not None
        assert other.token is not None
        self.token = max(self.token, other.token)
        if other.pause_ms or not self.pause_ms:
            self.ends = max(self.ends if self.pause_ms else 0.0, other.ends)
            self.pause_ms = other.pause_ms
        return True

    def written(self) -> None:
        super().written()
        left = math.ceil(1000 * (self.ends - clock()))
        self.pause_ms = max(1, left) if self.pause_ms else 0

    def apply(self, reply: Reply, now: float) -> None:
        super().apply(reply, now)
        state, limit = self.state, reply.answers[0]
        if not limit or now - state.told_back_off_at < TELLS_EVERY:
            return
        state.told_back_off_at = now
        for notifier in observers.notifiers:
            facts = {"seconds": self.pause_ms / 1000, "limit": limit, "key": self.key}
            notifier.semaphore("backed_off", state.address, **facts)

    def refused(self, error: SemaphoreError, now: float) -> None:
        super().refused(error, now)
        if self.future is None:
            extra = facts("not backed off", semaphore=self.state.name)
            logger.warning("no back-off of %r: %s", self.state.name, error, extra=extra)
