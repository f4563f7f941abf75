"""Acquire asks for permits."""

from collections.abc import Sequence

from redsem_async._core.config import Slot, Terms
from redsem_async._core.errors import QueueFull, SemaphoreError
from redsem_async._core.lease import trusted_until
from redsem_async._hub import deadlines, handout
from redsem_async._hub.estimates import queue_report_of, retry_after_of, timed_out
from redsem_async._hub.request import QueueReport, Request, RequestState
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Acquire, RequestOptions
from redsem_async._protocol.replies import (
    FULL,
    FULL_FOR_KEY,
    GONE,
    QUEUE_FULL,
    QUEUE_FULL_FOR_KEY,
    WAITING_FOR_KEY,
    AnyReply,
    Holding,
    Reply,
)

from . import effects
from .base import Batch, error_for

_ANY_FULL = frozenset({FULL, FULL_FOR_KEY, QUEUE_FULL, QUEUE_FULL_FOR_KEY})
_NO_EFFECT = frozenset(
    {
        ErrorKind.MODE_MISMATCH,
        ErrorKind.LAYOUT_MISMATCH,
        ErrorKind.SLOTS_MISMATCH,
        ErrorKind.NO_MEMORY,
    }
)


class AcquireBatch(Batch[Request]):
    """Requests that ask for permits, all with the same terms."""

    __slots__ = ()

    @classmethod
    def take(cls, state: SemaphoreState) -> "AcquireBatch | None":
        """The next batch. None if there is no request to write, or none may be written yet."""
        in_flight = state.acquires_in_flight
        if (state.drains and in_flight) or (first := state.first_new()) is None:
            return None
        state.drains = sent_before = first.was_sent
        new, most = state.new, state.max_batch
        requests: list[Request] = []
        numbers: list[int] = []
        options: dict[int, RequestOptions] = {}
        terms: Terms | None = None
        while new and len(requests) < most:
            request = new[0]
            if request.state is RequestState.NEW:
                if terms is not request.terms:
                    if terms is not None and terms != request.terms:
                        break
                    terms = request.terms
                if request.was_sent is not sent_before:
                    break
                state.give_number(request)
                request.written()
                requests.append(request)
                numbers.append(request.number)
                if not request.plain:
                    options[request.number] = request.options
            new.popleft()
        assert terms is not None
        after = in_flight[-1] if in_flight else 0
        in_flight.append(numbers[-1])
        operation = Acquire(
            *(numbers, terms.lease_ms, terms.limit, options),
            *(terms.max_waiters, terms.max_waiters_per_key, after),
            None if state.introduction.sent else state.introduction.take(),
            terms.slots,
        )
        return cls(state, operation, requests)

    @property
    def slots(self) -> Sequence[Slot] | None:
        return self.items[0].terms.slots

    def settle_error(self, error: CommandError, now: float) -> None:
        state = self.state
        state.acquire_ended()
        if error.kind not in _NO_EFFECT:
            super().settle_error(error, now)
            return
        for request in self.items:
            if request.state is RequestState.SENT:
                # One that was sent before may be known to the server from then.
                end = state.refuse if request.was_sent else state.turn_down
                end(request, error_for(state, error, self.slots))

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        assert isinstance(self.operation, Acquire)
        state, sent_at, slots = self.state, self.sent_at, reply.slots
        state.acquire_ended()
        terms = self.items[0].terms
        trusted = trusted_until(terms.lease, sent_at=sent_at, left=terms.lease)
        at_once = trusted - now > terms.lease - terms.refresh_interval
        report: QueueReport | None = None
        again: list[Request] = []
        wait: list[Request] = []
        numbers = self.operation.numbers  # a request that asked anew has another by now
        for request, number, answer in zip(self.items, numbers, reply.answers, strict=True):
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                handout.granted(state, number, answer.token, left, sent_at, answer.slots)
            elif request.state is not RequestState.SENT or request.number != number:
                continue  # its caller left and an abandon is on its way, or it asked anew
            elif answer > 0:
                had = slots.get(number, ()) if slots else ()
                if at_once:
                    handout.serve_at_once(state, request, answer, had, trusted, sent_at)
                else:
                    lease = handout.accept(state, request, answer, had, trusted, sent_at)
                    handout.hand_out(state, request, lease)
            elif answer == GONE or (reply.next_ms == 0 and answer in _ANY_FULL):
                # It was ended, or a reap continues and there may be room afterwards.
                state.forget_number(request)
                request.again = answer == GONE and request.waits
                again.append(request)
            else:
                report = report or queue_report_of(state, sent_at, reply)
                request.report = report
                request.waits_for_key = answer in (WAITING_FOR_KEY, FULL_FOR_KEY)
                if not request.waits or answer in (QUEUE_FULL, QUEUE_FULL_FOR_KEY):
                    _reject_full(state, request, for_key=answer == QUEUE_FULL_FOR_KEY)
                else:
                    wait.append(request)
        if again:
            state.ask_again(again)
        if wait:
            state.wait(wait)
            deadlines.ask_early(state, wait, now)
        if state.seen is not None or reply.set_limit is not None or reply.ramp is not None:
            effects.note_limit(state, reply, now)
        effects.apply(state, reply, sent_at, now)
        if state.overdue:
            deadlines.settle(state, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for request in self.items:
            if request.state is RequestState.SENT:
                self.state.refuse(request, error)

    def write_again(self, *, arrived: bool) -> None:
        state = self.state
        # For those whose callers left, an abandon is on its way.
        asking = [each for each in self.items if each.state is RequestState.SENT]
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


def _reject_full(state: SemaphoreState, request: Request, *, for_key: bool) -> None:
    """The server replied "full" to a request that does not wait, or may not."""
    terms = request.terms
    bound = terms.max_waiters_per_key if for_key else terms.max_waiters
    if request.waits and bound is not None:
        facts = (state.name, bound, retry_after_of(state, request), for_key)
        state.turn_down(request, QueueFull(*facts))
    else:
        state.turn_down(request, timed_out(state, request))
