"""The calls status, set_limit, back_off, reap, delete, detach and adopt."""

import logging
from collections.abc import Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import trusted_until
from redsem_async._hub import calls, handout, trust
from redsem_async._hub.pending import AdoptCall, BackOffCall, Call, Change, DetachCall
from redsem_async._hub.request import RequestState
from redsem_async._hub.state import SemaphoreState
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import (
    Adopt,
    BackOff,
    Delete,
    Detach,
    KeyTerms,
    Reap,
    SetLimit,
)
from redsem_async._protocol.replies import AdoptReply, AnyReply, Reply

from . import effects
from .base import AnyBatch, Batch

logger = logging.getLogger("redsem_async")


def take_call(state: SemaphoreState) -> AnyBatch:
    """The batch of the next call. There is one."""
    call = calls.take(state)
    operation = call.operation
    if isinstance(call, AdoptCall):
        return AdoptBatch.of(state, call)
    if isinstance(call, DetachCall):
        _shorten(call)
        assert isinstance(operation, Detach)
        operation = operation._replace(call=call.number)
    return CallBatch(state, operation, [call])


def take_change(state: SemaphoreState, change: Change) -> AnyBatch:
    """The batch of *change*, which may be written."""
    calls.take_change(state, change)
    if isinstance(change, BackOffCall):
        return BackOffBatch(state, change.due(), [change])
    operation = change.operation
    assert isinstance(operation, SetLimit | Delete)
    return ChangeBatch(state, operation._replace(call=change.number), [change])


def _shorten(call: DetachCall) -> None:
    lease = call.lease
    if not call.unsettled:
        call.unsettled = True
        lease.unsettled += 1
    lease.shorten(trusted_until(call.expires, sent_at=clock(), left=call.expires))


class CallBatch(Batch[Call]):
    """A call that is no change."""

    __slots__ = ()

    def apply(self, reply: AnyReply, now: float) -> None:
        state, call, operation = self.state, self.items[0], self.operation
        if isinstance(operation, Reap):
            assert isinstance(reply, Reply)
            effects.apply(state, reply, self.sent_at, now, continues=call.future is None)
        call.settle(reply)
        calls.ended(state, call)

    def refused(self, error: SemaphoreError, now: float) -> None:
        self.items[0].settle(error)
        calls.ended(self.state, self.items[0])

    def write_again(self, *, arrived: bool) -> None:
        self.items[0].was_sent |= arrived
        calls.write_again(self.state, self.items[0])


class ChangeBatch(Batch[Change]):
    """A set limit, a deletion or a back-off."""

    __slots__ = ()

    def apply(self, reply: AnyReply, now: float) -> None:
        state, change = self.state, self.items[0]
        calls.landed(state, change)
        assert isinstance(reply, Reply)
        effects.apply(state, reply, self.sent_at, now)
        change.settle(reply)
        if isinstance(self.operation, Delete):
            trust.deleted(state)

    def refused(self, error: SemaphoreError, now: float) -> None:
        calls.landed(self.state, self.items[0])
        self.items[0].settle(error)

    def write_again(self, *, arrived: bool) -> None:
        calls.change_again(self.state, self.items[0], arrived=arrived)


class BackOffBatch(ChangeBatch):
    """A back-off. It is not written again once it is over."""

    __slots__ = ()

    def apply(self, reply: AnyReply, now: float) -> None:
        super().apply(reply, now)
        operation = self.operation
        assert isinstance(reply, Reply)
        assert isinstance(operation, BackOff)
        if reply.answers[0]:
            facts = {"seconds": operation.pause_ms / 1000, "key": operation.key}
            for notifier in observers.notifiers:
                notifier.semaphore("backed_off", self.state.address, **facts)

    def refused(self, error: SemaphoreError, now: float) -> None:
        super().refused(error, now)
        if self.items[0].future is None:
            facts = {"event": "not backed off", "semaphore": self.state.name}
            logger.warning("no back-off of %r: %s", self.state.name, error, extra=facts)


class AdoptBatch(Batch[AdoptCall]):
    """An adoption. It takes over another process's permit, under a number of this one's."""

    __slots__ = ()

    @classmethod
    def of(cls, state: SemaphoreState, call: AdoptCall) -> "AdoptBatch":
        """The command that is written now."""
        request = call.request
        assert isinstance(call.operation, Adopt)
        state.give_number(request)
        request.written()
        request.call = call.number
        operation = call.operation._replace(
            new=request.number, call=call.number, hub_info=state.introduction.take()
        )
        return cls(state, operation, [call])

    @property
    def slots(self) -> Sequence[Slot] | None:
        return self.items[0].request.terms.slots

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, AdoptReply)
        assert isinstance(self.operation, Adopt)
        state, request, sent_at = self.state, self.items[0].request, self.sent_at
        owner, old = self.operation.owner, self.operation.old
        if request.state is not RequestState.SENT:
            return  # its caller left, and an abandon is on its way
        if reply.holding is None:
            reason = "the id no longer holds a permit"
            state.turn_down(request, PermitLost(state.name, permit_id(owner, old), reason))
            return
        if owner == state.identity.id:
            trust.revoked(state, [old])  # no push message says so
        token, left_ms, slots = reply.holding
        duration = request.terms.lease
        left = min(duration, left_ms / 1000)
        request.permits = reply.permits
        request.key = None if reply.key is None else KeyTerms(reply.key)
        trusted = trusted_until(duration, sent_at=sent_at, left=left)
        since = sent_at - reply.held_ms / 1000
        lease = handout.accept(state, request, token, slots, trusted, since)
        lease.adopted = True
        if left < duration:
            _ = state.refresh(lease)  # carried out before, and the reply was lost
        handout.hand_out(state, request, lease)

    def refused(self, error: SemaphoreError, now: float) -> None:
        calls.fail(self.state, self.items[0], error)

    def write_again(self, *, arrived: bool) -> None:
        call = self.items[0]
        if call.request.state is RequestState.SENT:
            call.request.ask_again()
        calls.write_again(self.state, call)
