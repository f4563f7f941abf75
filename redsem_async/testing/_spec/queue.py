"""The queue has requests in the order of their tickets. A freed permit goes to the first."""

from collections.abc import Sequence

from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Heartbeat,
    Request,
    Status,
)
from redsem_async._protocol.replies import (
    FULL,
    FULL_FOR_KEY,
    GAVE_BACK,
    GONE,
    LEFT_QUEUE,
    NOTHING,
    QUEUE_FULL,
    QUEUE_FULL_FOR_KEY,
    WAITING,
    WAITING_FOR_KEY,
    Answer,
    QueueEntry,
    Reply,
)

from .base import notify_head
from .records import (
    CallContext,
    HolderRecord,
    QueuedRequest,
    Reordered,
    key_of,
    liveness_timeout_ms,
    requests_of,
)
from .serving import Serving
from .slots import assign, compare
from .status import Listing

UNSERVED = (WAITING, WAITING_FOR_KEY, FULL, FULL_FOR_KEY, QUEUE_FULL, QUEUE_FULL_FOR_KEY)


class QueueSpecification(Serving):
    """A semaphore whose queue is blocked by a request that does not fit (fair)."""

    def _is_queued(self, hub: str, request: Request) -> bool:
        return any(queued.hub == hub and queued.is_for(request) for queued in self.queue)

    # -- operations

    def _acquire(self, context: CallContext, call: Acquire) -> Reply:
        self._require_known(context, call.hub_info)
        state = self.state
        known = state.look_up(context.hub).description
        mark = state.look_up(context.hub).mark
        if mark < call.after:
            raise Reordered
        compare(state, context, self.waiting, call.slots)
        state.hub_record(context.hub).mark = max(mark, *call.numbers)
        self._introduce(context, call.lease_ms, call.hub_info)
        state.slots = context.slot_list
        state.remove_expired(context)
        if not known:
            # They joined the queue before their hub was forgotten, and ask again.
            older = [queued for queued in self.queue if queued.hub == context.hub]
            self._leave_queue(context, [q for q in older if any(map(q.is_for, requests_of(call)))])
        self._look_at_heads(context, requests_of(call))
        self._serve(context)
        first = state.next_expiry(context)
        answers = [self._answer(context, call, request, mark) for request in requests_of(call)]
        if any(isinstance(answer, int) and answer > 0 for answer in answers):
            state.save_counter(context, call.lease_ms)
            if self.passes_over and (first is None or call.lease_ms < first):
                notify_head(context, self._publish, self._hubs_in_turn())
        if context.queued:
            self._join(context)
            state.save_counter(context, liveness_timeout_ms(call.lease_ms))
            if context.overtakes:
                self._serve(context)
        return self._answered(context, requests_of(call), answers)

    def _answered(
        self,
        context: CallContext,
        requests: Sequence[Request],
        answers: Sequence[Answer],
    ) -> Reply:
        """The reply to *requests*, of an acquire or a heartbeat."""
        waits = any(answer in UNSERVED for answer in answers)
        return self._reply(context, answers)._replace(
            set_limit=self.state.set_limit,
            ramp=self.state.ramp(context.now),
            hold_ms=self.state.hold_ms if waits else None,
            forgotten=context.was_unknown and self.state.set_limit is None,
        )

    def _answer(self, context: CallContext, call: Acquire, request: Request, mark: int) -> Answer:
        """Grant, queue or refuse one request. One whose number is not above *mark* ran before."""
        state, now = self.state, context.now
        identity = permit_id(context.hub, request.number)
        ran = request.number <= mark
        if (ran or context.was_unknown) and (grant := state.current_grant(identity, now)):
            return grant
        if ran:
            in_line = self._is_queued(context.hub, request)
            return self._answer_of(request) if in_line else GONE
        limit = state.effective_limit(call.limit)
        held_up = self._held_up(context, request, limit)
        if held_up is None:
            token, expiry = state.draw(context), now + request.lease_ms
            slots = assign(state, request.permits)
            holder = HolderRecord(expiry, token, request.permits, key_of(request), slots)
            state.holders[identity] = holder
            context.slots[request.number] = slots
            return token
        full = self._full_queue(context, call, request)
        if not request.waits:
            full = FULL if held_up == WAITING else FULL_FOR_KEY
        queued = QueuedRequest(context.hub, request, 0, answer=held_up)
        has_room = state.taken(now) + request.permits <= limit
        overtakes = has_room and self._may_overtake(queued)
        if full is not None:
            return (self._grant_in_turn(context, queued) if overtakes else None) or full
        queued.ticket = max(1, state.draw(context) - 1000 * request.ahead_ms)
        context.queued.append(queued)
        context.overtakes |= overtakes or request.ahead_ms > 0
        if held_up == WAITING and request.permits <= limit and not self.passes_over:
            context.line_is_blocked = True
        return held_up

    def _grant_in_turn(self, context: CallContext, queued: QueuedRequest) -> Answer | None:
        """The token of a request that may not wait, if it is granted at once in its place."""
        counter, number = self.state.counter, queued.request.number
        next_token = max(counter.last + 1, context.now_us)
        queued.ticket = max(1, next_token - 1000 * queued.request.ahead_ms)
        self._join(context, queued)
        self._serve(context)
        self._leave_queue(context, [each for each in self.queue if each is queued])
        token = dict(context.granted).get(number)
        context.granted = [grant for grant in context.granted if grant[0] != number]
        return token

    def _join(self, context: CallContext, *others: QueuedRequest) -> None:
        joining = [*context.queued[context.joined :], *others]
        context.joined = len(context.queued)
        self.queue = sorted(self.queue + joining, key=lambda queued: queued.place)
        self._line_changed(context, joining)

    def _may_overtake(self, queued: QueuedRequest) -> bool:
        """Whether a new request for which there is room may be the first in the queue."""
        return queued.request.ahead_ms > 0

    def _held_up(self, context: CallContext, request: Request, limit: int) -> Answer | None:
        """Whether a new request has to wait, and for what. None where it is granted at once."""
        state, now = self.state, context.now
        admits = not context.line_is_blocked
        used = state.taken(now)
        room = min(limit, state.room(request.limit, now, used))
        return None if admits and used + request.permits <= room else WAITING

    def _full_queue(self, context: CallContext, call: Acquire, request: Request) -> Answer | None:
        most, length = (
            call.max_waiters,
            _count_living(self.queue) + len(context.queued) - context.joined,
        )
        return QUEUE_FULL if most is not None and length >= most else None

    def _answer_of(self, request: Request) -> Answer:
        """The answer for a request that is in the queue."""
        return WAITING

    def _abandon(self, context: CallContext, call: Abandon) -> Reply:
        answers: list[Answer] = []
        for request in call.requests:
            identity = permit_id(context.hub, request.number)
            held = self.state.current_grant(identity, context.now)
            in_line = self._is_queued(context.hub, request)
            answers.append(GAVE_BACK if held else LEFT_QUEUE if in_line else NOTHING)
        ids = {permit_id(context.hub, request.number) for request in call.requests}
        self.state.remove(context, ids)
        self._leave_queue(context, [queued for queued in self.queue if queued.id in ids])
        self._finish_abandon(context, call)
        return self._reply(context, answers)

    def _heartbeat(self, context: CallContext, call: Heartbeat) -> Reply:
        self._introduce(context, call.lease_ms, call.hub_info)
        self.state.remove_expired(context)
        self._look_at_heads(context, call.requests)
        self._serve(context)
        answers: list[Answer] = []
        for request in call.requests:
            identity = permit_id(context.hub, request.number)
            grant = self.state.current_grant(identity, context.now)
            in_line = self._is_queued(context.hub, request)
            answers.append(self._answer_of(request) if in_line else grant or GONE)
        return self._answered(context, call.requests, answers)

    def _look_at_heads(self, context: CallContext, requests: Sequence[Request]) -> None:
        """Look whether requests of dead hubs stand before *requests*, where `_serve` does not."""

    # -- replies

    def _reply(self, context: CallContext, answers: Sequence[Answer] = ()) -> Reply:
        moments: list[int] = []
        if self.queue:
            expiry = self.state.next_expiry(context)
            if expiry is not None:
                moments.append(expiry)
            changes = (context.head_until, context.keys_change)
            moments += [max(0, change - context.now) for change in changes if change is not None]
            if (ramp := self.state.ramp(context.now)) is not None:
                moments.append(ramp.lasts_ms)
        return Reply(
            answers=answers,
            next_ms=min(moments, default=None),
            waiting=_count_living(self.queue),
            granted=context.granted,
            slots=context.slots if self.state.slotted else {},
        )

    def _listing(self, context: CallContext, call: Status) -> Listing:
        found = self._living(context)
        entries = [
            QueueEntry(queued.id, queued.ticket, queued.request.permits, queued.key)
            for queued in found[: call.max_entries]
        ]
        return Listing(len(found), entries, blocked=bool(found) and not self.passes_over)

    def _living(self, context: CallContext) -> list[QueuedRequest]:
        now, look_up = context.now, self.state.look_up
        return [q for q in self.queue if not q.unreachable and look_up(q.hub).alive_until > now]


def _count_living(queue: Sequence[QueuedRequest]) -> int:
    """The number of waiters, without those whose hubs are unreachable."""
    return sum(not queued.unreachable for queued in queue)
