"""The calls status, set_limit, back_off, reap, clear, detach and adopt."""

import logging
from collections.abc import Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import trusted_until
from redsem_async._hub import calls, handout, trust
from redsem_async._hub.pending import AdoptCall, BackOffCall, Call, DetachCall
from redsem_async._hub.request import RequestState
from redsem_async._hub.state import SemaphoreState
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import (
    Adopt,
    BackOff,
    Clear,
    Detach,
    KeyTerms,
    Reap,
    SetLimit,
)
from redsem_async._protocol.replies import AdoptReply, AnyReply, Reply

from . import effects
from .base import AnyBatch, Batch

logger = logging.getLogger("redsem_async")

_SERVING = Reap | SetLimit | BackOff | Clear


def take_call(state: SemaphoreState) -> AnyBatch:
    """The batch of the next call. There is one, and it may be written."""
    call = calls.take(state)
    operation = call.operation
    if isinstance(call, AdoptCall):
        return AdoptBatch.of(state, call)
    if isinstance(call, BackOffCall):
        return BackOffBatch(state, call.due(), [call])
    if isinstance(call, DetachCall):
        _shorten(call)
    if isinstance(operation, SetLimit | Clear | Detach):
        operation = operation._replace(call=call.number)
    return CallBatch(state, operation, [call])


def _shorten(call: DetachCall) -> None:
    lease = call.lease
    if not call.unsettled:
        call.unsettled = True
        lease.unsettled += 1
    lease.shorten(trusted_until(call.expires, sent_at=clock(), left=call.expires))


class CallBatch(Batch[Call]):
    """A call."""

    __slots__ = ()

    def apply(self, reply: AnyReply, now: float) -> None:
        state, call, operation = self.state, self.items[0], self.operation
        calls.landed(state, call)
        if isinstance(reply, Reply) and isinstance(operation, _SERVING):
            continues = not (isinstance(operation, Reap) and call.future is not None)
            effects.apply(state, reply, self.sent_at, now, continues=continues)
        if isinstance(operation, SetLimit | BackOff | Clear):
            state.end_right()
        call.settle(reply)
        calls.ended(state, call)
        if isinstance(operation, Clear):
            trust.cleared(state)

    def refused(self, error: SemaphoreError, now: float) -> None:
        calls.landed(self.state, self.items[0])
        self.items[0].settle(error)
        calls.ended(self.state, self.items[0])

    def write_again(self, *, arrived: bool) -> None:
        call = self.items[0]
        calls.landed(self.state, call)
        if arrived:
            call.was_sent = True
        elif not call.alone:
            call.renumber = True
        calls.write_again(self.state, call)


class BackOffBatch(CallBatch):
    """A back-off. It is not written again once it is over."""

    __slots__ = ()

    def write_again(self, *, arrived: bool) -> None:
        # A holder's has another number then, because one above this one may have run. Both may
        # run, but the pause ends at the same time. The older does nothing where it comes later.
        self.items[0].renumber = not self.items[0].alone
        super().write_again(arrived=arrived)

    def apply(self, reply: AnyReply, now: float) -> None:
        super().apply(reply, now)
        operation = self.operation
        assert isinstance(reply, Reply)
        assert isinstance(operation, BackOff)
        if reply.answers[0]:
            facts = self.state.address, operation.pause_ms / 1000, operation.key
            for notifier in observers.notifiers:
                notifier.backed_off(*facts)

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
        calls.landed(state, self.items[0])
        if request.state is not RequestState.SENT:
            return  # its caller left, and an abandon is on its way
        if reply.holding is None:
            reason = "that id holds nothing any more"
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
        calls.landed(self.state, self.items[0])
        calls.fail(self.state, self.items[0], error)

    def write_again(self, *, arrived: bool) -> None:
        call = self.items[0]
        calls.landed(self.state, call)
        call.renumber |= not arrived
        if call.request.state is RequestState.SENT:
            call.request.ask_again()
        calls.write_again(self.state, call)
