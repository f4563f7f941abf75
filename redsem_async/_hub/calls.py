"""Operations that are not batched: when each is written, and what its reply changes.

A change, that is a set limit, a deletion or a back-off, has rules of its own (see `ChangeCall`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import trusted_until
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import (
    Adopt,
    AnyOperation,
    Delete,
    Detach,
    KeyTerms,
    Reap,
    SetLimit,
    StartBackOff,
)
from redsem_async._protocol.replies import AdoptReply, Reply
from redsem_async._protocol.status import Status

from .commands import AnyBatch, Batch, apply_common
from .model import RequestState
from .pending import AdoptCall, BackOffCall, Call, ChangeCall, DetachCall
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")


def back_off(state: SemaphoreState, call: BackOffCall) -> None:
    """Write *call*, or join it to one that waits to be written, before what serves a waiter."""
    known = (each for each in state.calls if isinstance(each, BackOffCall))
    if not any(each.join(call) for each in known):
        state.calls.append(call)


def given_up(state: SemaphoreState, call: Call) -> None:
    """The caller waits no more. An unsent call never will be sent, and does not keep the hub."""
    if call in state.calls and not call.in_flight:
        withdraw(state, call)


def withdraw(state: SemaphoreState, call: Call) -> None:
    """*call* is no longer wanted, and not in flight."""
    if call in state.calls:
        state.calls.remove(call)
    if call.was_sent and isinstance(call, ChangeCall | DetachCall):
        state.undo.append(call)  # its bytes may be somewhere still
    else:
        state.call_ended(call)


def drop_unwanted(state: SemaphoreState) -> None:
    """Withdraw the calls that are not written any more, such as back-offs that are over."""
    for call in list(state.calls):
        if not (call.in_flight or call.wanted):
            withdraw(state, call)


def next_call(state: SemaphoreState) -> Call | None:
    """The next call to write. A change, if one may be written now."""
    unsent = [call for call in state.calls if not call.in_flight]
    others = (call for call in unsent if not isinstance(call, ChangeCall))
    return next_change(state) or next(others, None)


def next_change(state: SemaphoreState) -> ChangeCall | None:
    """The first change that is not in flight, if it may be written now."""
    first = True
    for change in [each for each in state.calls if isinstance(each, ChangeCall)]:
        if not change.in_flight:
            return change if first or not change.alone else None
        if change.alone:
            return None
        first = False
    return None


def backs_off(state: SemaphoreState) -> bool:
    """Whether a permit's back-off waits to be written, ahead of all that would serve a waiter."""
    changes = (each for each in state.calls if isinstance(each, ChangeCall) and not each.in_flight)
    return any(change.future is None and change.wanted for change in changes)


def fail(state: SemaphoreState, call: Call, error: SemaphoreError) -> None:
    """No reply will come, or it was refused."""
    if not isinstance(call, AdoptCall):
        call.settle(error)
    elif call.wanted:
        state.refuse(call.request, error)


def fail_all(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End every call, because no reply will come."""
    for call in list(state.calls):
        fail(state, call, error())
        withdraw(state, call)


class CallBatch(Batch[Any, Call]):
    """The command of one call."""

    @staticmethod
    def take(state: SemaphoreState, call: Call) -> AnyBatch:
        """The command of *call*, which is written now."""
        call.in_flight = True
        if call.numbered or (isinstance(call, ChangeCall) and not call.number):
            call.number = state.identity.new_number()
        asked = call.due() if isinstance(call, BackOffCall) else call.operation
        kind = _BATCHES[type(asked)]
        facts = {name: getattr(asked, name) for name in asked.__match_args__}
        if call.number:
            facts["call"] = call.number
        batch = kind(**facts)
        batch.items, batch.semaphore = [call], state
        batch.state = state
        batch.written()
        return batch

    def written(self) -> None:
        """The command is written now, with its number."""

    def apply(self, reply: Any, now: float) -> None:
        call = self.items[0]
        call.settle(reply)
        self.state.call_ended(call)

    def refused(self, error: SemaphoreError, now: float) -> None:
        call = self.items[0]
        fail(self.state, call, error)
        self.state.call_ended(call)

    def write_again(self, *, arrived: bool) -> None:
        call = self.items[0]
        call.was_sent |= arrived
        call.in_flight = False
        if not call.wanted:
            withdraw(self.state, call)


class StatusBatch(CallBatch, Status):
    """A status."""


class ReapBatch(CallBatch, Reap):
    """A reap, which a caller asked for, or which continues one that stopped early."""

    def apply(self, reply: Reply, now: float) -> None:
        on_our_own = self.items[0].future is None
        apply_common(self.state, reply, self.sent_at, now, continues=on_our_own, decides=False)
        super().apply(reply, now)


class DetachBatch(CallBatch, Detach):
    """A detach."""

    def written(self) -> None:
        call = self.items[0]
        assert isinstance(call, DetachCall)
        if not call.unsettled:
            call.unsettled = True
            call.lease.unsettled += 1
        call.lease.shorten(trusted_until(call.expires, sent_at=clock(), left=call.expires))


class ChangeBatch(CallBatch):
    """A set limit, a deletion or a back-off."""

    def apply(self, reply: Reply, now: float) -> None:
        apply_common(self.state, reply, self.sent_at, now, decides=False)
        super().apply(reply, now)

    def write_again(self, *, arrived: bool) -> None:
        calls, change = self.state.calls, self.items[0]
        change.in_flight = False
        change.was_sent |= arrived
        if not change.was_sent:
            change.number = 0
            if change.future is None and change in calls:  # others may be in flight
                calls.remove(change)
                calls.append(change)


class SetLimitBatch(ChangeBatch, SetLimit):
    """A set limit."""


class DeleteBatch(ChangeBatch, Delete):
    """A deletion."""

    def apply(self, reply: Reply, now: float) -> None:
        super().apply(reply, now)
        self.state.deleted()


class BackOffBatch(ChangeBatch, StartBackOff):
    """A back-off. It is not written again once it is over."""

    def apply(self, reply: Reply, now: float) -> None:
        super().apply(reply, now)
        if reply.answers[0]:
            for notifier in observers.notifiers:
                facts = {"seconds": self.pause_ms / 1000, "key": self.key}
                notifier.semaphore("backed_off", self.state.address, **facts)

    def refused(self, error: SemaphoreError, now: float) -> None:
        super().refused(error, now)
        if self.items[0].future is None:
            facts = {"event": "not backed off", "semaphore": self.state.name}
            logger.warning("no back-off of %r: %s", self.state.name, error, extra=facts)


class AdoptBatch(CallBatch, Adopt):
    """An adoption. It takes over another process's permit, under a number of this one's."""

    def written(self) -> None:
        state, call = self.state, self.items[0]
        assert isinstance(call, AdoptCall)
        request = call.request
        if not request.number:
            request.number, request.hub_id = state.identity.new_number(), state.identity.id
        state.requests[request.number] = request
        request.written()
        request.call = call.number
        self.new, self.hub_info = request.number, state.introduction.take()

    @property
    def declared_slots(self) -> Sequence[Slot] | None:
        return self.slots

    def apply(self, reply: AdoptReply, now: float) -> None:
        state, call = self.state, self.items[0]
        assert isinstance(call, AdoptCall)
        state.call_ended(call)
        request, sent_at = call.request, self.sent_at
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
        call = self.items[0]
        assert isinstance(call, AdoptCall)
        if call.request.state is RequestState.SENT:
            call.request.ask_again()
        super().write_again(arrived=arrived)


_BATCHES: dict[type[AnyOperation], type[CallBatch]] = {
    Adopt: AdoptBatch,
    Delete: DeleteBatch,
    Detach: DetachBatch,
    Reap: ReapBatch,
    SetLimit: SetLimitBatch,
    StartBackOff: BackOffBatch,
    Status: StatusBatch,
}
