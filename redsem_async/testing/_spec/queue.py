"""The queue: requests in the order of their tickets, and a freed permit goes to the first."""

import math
from collections.abc import Sequence

from redsem_async._core.keys import permit_id
from redsem_async._core.lease import handoff_lease
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Heartbeat,
    Request,
    RightRequest,
    Status,
)
from redsem_async._protocol.pushes import Granted
from redsem_async._protocol.replies import (
    FULL,
    FULL_FOR_KEY,
    GAVE_BACK,
    GONE,
    LEFT_LINE,
    NOTHING,
    QUEUE_FULL,
    QUEUE_FULL_FOR_KEY,
    WAITING,
    WAITING_FOR_KEY,
    Answer,
    Holding,
    LineEntry,
    Reply,
)

from .base import Specification, notify_head
from .records import (
    CallContext,
    HolderRecord,
    Publish,
    QueuedRequest,
    Reordered,
    key_of,
    liveness_timeout_ms,
    requests_of,
)
from .rights import answer_right, recall_rights
from .slots import assign, compare
from .status import Listing

UNSERVED = (WAITING, WAITING_FOR_KEY, FULL, FULL_FOR_KEY, QUEUE_FULL, QUEUE_FULL_FOR_KEY)


class QueueSpecification(Specification):
    """A semaphore whose queue is blocked by a request that does not fit (fair).

    Attributes:
        line: the requests that wait.
        parked_return: requests that were parked are looked at again.
        passes_over: one that does not fit is passed over instead.
    """

    passes_over = False

    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self.line: list[QueuedRequest] = []
        self.parked_return = False

    def _forget(self) -> None:
        super()._forget()
        self.line.clear()
        self.parked_return = False

    def lose_line(self) -> None:
        """Lose every request, as by an eviction of that key alone."""
        self.line.clear()

    @property
    def waiting(self) -> int:
        return len(self.line)

    def waiting_hubs(self) -> set[str]:
        return {queued.hub for queued in self.line}

    def _hubs_in_turn(self) -> Sequence[str]:
        return [queued.hub for queued in self.line if not queued.parked]

    def _is_in_line(self, hub: str, request: Request) -> bool:
        return any(queued.hub == hub and queued.is_for(request) for queued in self.line)

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
            # They joined the line before their hub was forgotten, and ask again.
            older = [queued for queued in self.line if queued.hub == context.hub]
            self._leave_line(context, [q for q in older if any(map(q.is_for, requests_of(call)))])
        self._look_at_heads(context, requests_of(call))
        self._serve(context)
        first = state.next_expiry(context)
        answers = [self._answer(context, call, request, mark) for request in requests_of(call)]
        if any(isinstance(answer, int) and answer > 0 for answer in answers):
            state.save_counter(context, call.lease_ms)
            if self.passes_over and (first is None or call.lease_ms < first):
                notify_head(context, self._publish, self._hubs_in_turn())
        if context.queued:
            self.line = sorted(self.line + context.queued, key=lambda queued: queued.place)
            state.save_counter(context, liveness_timeout_ms(call.lease_ms))
            self._line_changed(context, context.queued)
            if context.overtakes:
                self._serve(context)
        return self._answered(context, requests_of(call), answers, call.right)

    def _answered(
        self,
        context: CallContext,
        requests: Sequence[Request],
        answers: Sequence[Answer],
        right: RightRequest | None,
    ) -> Reply:
        """The reply to *requests*, of an acquire or a heartbeat."""
        if waits := any(answer in UNSERVED for answer in answers):
            recall_rights(self.state, context, self._publish)
        return self._reply(context, answers)._replace(
            right=self._answer_right(context, right),
            set_limit=self.state.set_limit,
            hold_ms=self.state.hold_ms if waits else None,
        )

    def _answer(self, context: CallContext, call: Acquire, request: Request, mark: int) -> Answer:
        """Grant, queue or refuse one request. One that is not above *mark* ran before."""
        state, now = self.state, context.now
        identity = permit_id(context.hub, request.number)
        if request.number <= mark:
            grant = state.current_grant(identity, now)
            if grant is None and self._is_in_line(context.hub, request):
                return self._in_line(request)
            return grant or GONE
        limit = state.effective_limit(call.limit)
        held_up = self._held_up(context, request, limit)
        if held_up is None:
            token, expiry = state.draw(context), now + request.lease_ms
            slots = assign(state, request.permits)
            holder = HolderRecord(expiry, token, request.permits, key_of(request), slots)
            state.holders[identity] = holder
            context.slots[request.number] = slots
            return token
        if not request.waits:
            return FULL if held_up == WAITING else FULL_FOR_KEY
        if (full := self._full_line(context, call, request)) is not None:
            return full
        ticket = max(1, state.draw(context) - 1000 * request.ahead_ms)
        queued = QueuedRequest(context.hub, request, ticket, answer=held_up)
        context.queued.append(queued)
        context.overtakes |= self._may_overtake(context, queued, limit)
        if held_up == WAITING and request.permits <= limit and not self.passes_over:
            context.line_is_blocked = True
        return held_up

    def _may_overtake(self, context: CallContext, queued: QueuedRequest, limit: int) -> bool:
        """Whether a new request may be the first in line."""
        return queued.request.ahead_ms > 0

    def _held_up(self, context: CallContext, request: Request, limit: int) -> Answer | None:
        """Whether a new request has to wait, and for what; None where it is granted at once."""
        state, now = self.state, context.now
        admits = not context.line_is_blocked and state.grace.until <= now
        return None if admits and state.taken(now) + request.permits <= limit else WAITING

    def _full_line(self, context: CallContext, call: Acquire, request: Request) -> Answer | None:
        most, length = call.max_waiters, _count_living(self.line) + len(context.queued)
        return QUEUE_FULL if most is not None and length >= most else None

    def _in_line(self, request: Request) -> Answer:
        """The answer for a request that is in line."""
        return WAITING

    def _leave_line(self, context: CallContext, leaving: Sequence[QueuedRequest]) -> None:
        self.line = [queued for queued in self.line if queued not in leaving]
        self._line_changed(context, leaving)

    def _line_changed(self, context: CallContext, requests: Sequence[QueuedRequest]) -> None:
        """*requests* have joined the line, or left it, or were parked, or are back."""

    def _abandon(self, context: CallContext, call: Abandon) -> Reply:
        answers: list[Answer] = []
        for request in call.requests:
            identity = permit_id(context.hub, request.number)
            held = self.state.current_grant(identity, context.now)
            in_line = self._is_in_line(context.hub, request)
            answers.append(GAVE_BACK if held else LEFT_LINE if in_line else NOTHING)
        ids = {permit_id(context.hub, request.number) for request in call.requests}
        self.state.remove(context, ids)
        self._leave_line(context, [queued for queued in self.line if queued.id in ids])
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
            in_line = self._is_in_line(context.hub, request)
            answers.append(self._in_line(request) if in_line else grant or GONE)
        return self._answered(context, call.requests, answers, call.right)

    def _look_at_heads(self, context: CallContext, requests: Sequence[Request]) -> None:
        """Look whether requests of dead hubs stand before *requests*, where `_serve` does not."""

    def _answer_right(
        self, context: CallContext, asked: RightRequest | None, *, allowed: bool = True
    ) -> bool:
        common = self.waiting, self.waiting_hubs()
        return answer_right(self.state, context, asked, *common, allowed=allowed)

    # -- serving

    def _serve(self, context: CallContext, own: Sequence[Request] = ()) -> None:
        """Serve from the head.

        Grants to other hubs are published before they are made. A hub that no connection
        receives them for is passed over, and its share goes to the next in line.
        """
        state = self.state
        self._mark_reachable(state.look_up(context.hub))
        if state.grace.until > context.now or not self.line:
            return
        self._look_through(context)
        if state.set_limit == 0:
            return
        if self.parked_return:
            self.parked_return = False
            back = [
                queued
                for queued in self.line
                if queued.parked
                and not (queued.unreachable and state.is_unreachable(context, queued.hub))
            ]
            for queued in back:
                queued.parked = queued.unreachable = False
            self._line_changed(context, back)
        while True:
            plan, blocked = self._plan(context)
            unreachable = self._hand_over(context, plan)
            for queued in unreachable:
                self._park(context, queued)
            self._line_changed(context, unreachable)
            if not unreachable:
                if blocked is not None:
                    context.line_is_blocked = True
                    context.head_until = state.hub_record(blocked.hub).alive_until
                return
            self._look_through(context)  # there may be more requests of these hubs

    def _plan(
        self, context: CallContext
    ) -> tuple[list[tuple[QueuedRequest, int]], QueuedRequest | None]:
        """Requests to grant, with their tokens, and the one without room that blocks the rest."""
        state = self.state
        plan: list[tuple[QueuedRequest, int]] = []
        used = state.taken(context.now)
        for queued in [queued for queued in self.line if not queued.parked]:
            record = state.look_up(queued.hub)
            permits = queued.request.permits
            limit = state.effective_limit(queued.request.limit)
            if self.passes_over and used + permits > limit:
                continue
            if record.alive_until <= context.now:
                self.line.remove(queued)
            elif permits > limit or record.unreachable:
                self._park(context, queued)
            elif used + permits > limit:
                return plan, queued
            else:
                used += permits
                planned = (earlier.slots for earlier, _ in plan)
                queued.slots = assign(state, permits, planned)
                plan.append((queued, state.draw(context)))
        return plan, None

    def _hand_over(
        self, context: CallContext, plan: Sequence[tuple[QueuedRequest, int]]
    ) -> list[QueuedRequest]:
        """Grant as planned, one push message per hub. Returns requests of unreachable hubs."""
        state = self.state
        unreachable: list[QueuedRequest] = []
        longest = 0
        for hub in dict.fromkeys(queued.hub for queued, _ in plan):
            is_caller = hub == context.hub
            record = state.hub_record(hub)
            part = [(queued, token) for queued, token in plan if queued.hub == hub]
            grants: list[tuple[int, Holding]] = []
            for queued, token in part:
                lease = queued.request.lease_ms
                if not is_caller:
                    lease = math.floor(handoff_lease(lease / 1000) * 1000 + 1e-6)
                grants.append((queued.request.number, Holding(token, lease, queued.slots)))
            push = Granted(context.name, grants)
            silent = is_caller or record.no_push
            if not silent and not record.received(self._publish(hub, push)):
                record.unreachable = True
                state.looked_at = None
                state.save_counter(context, 0)
                unreachable += [queued for queued, _ in part]
                continue
            for (queued, token), (number, holding) in zip(part, grants, strict=True):
                self.line.remove(queued)
                expiry = context.now + holding.left_ms
                state.holders[queued.id] = HolderRecord(
                    expiry, token, queued.request.permits, queued.key, queued.slots
                )
                longest = max(longest, holding.left_ms)
                if is_caller:
                    context.granted.append((number, token))
                    context.slots[number] = queued.slots
        if longest:
            state.save_counter(context, longest)
        return unreachable

    # -- requests that are parked

    def _look_through(self, context: CallContext) -> None:
        """Drop what is of dead hubs, and park what is of hubs that are unreachable."""
        state, now = self.state, context.now
        if not state.may_have_died(now):
            return
        state.looked_at = now
        alive_until = {queued.hub: state.look_up(queued.hub).alive_until for queued in self.line}
        self._leave_line(context, [q for q in self.line if alive_until[q.hub] <= now])
        unreached = [
            q for q in self.line if not q.unreachable and state.is_unreachable(context, q.hub)
        ]
        for queued in unreached:
            self._park(context, queued)
        self._line_changed(context, unreached)

    def _park(self, context: CallContext, queued: QueuedRequest) -> None:
        """Do not serve the request until the limit changes, or until its hub is reachable."""
        queued.parked = True
        queued.unreachable = self.state.is_unreachable(context, queued.hub)

    def _return_parked(self) -> None:
        self.parked_return = True

    def _remove_dead_waiters(self, context: CallContext) -> int:
        before, now, look_up = len(self.line), context.now, self.state.look_up
        self._leave_line(context, [q for q in self.line if look_up(q.hub).alive_until <= now])
        return before - len(self.line)

    # -- replies

    def _reply(self, context: CallContext, answers: Sequence[Answer] = ()) -> Reply:
        moments: list[int] = []
        if self.line:
            expiry = self.state.next_expiry(context)
            if expiry is not None:
                moments.append(expiry)
            deaths = (context.head_until, context.heads_until)
            moments += [max(0, death - context.now) for death in deaths if death is not None]
        return Reply(
            answers=answers,
            next_ms=min(moments, default=None),
            waiting=_count_living(self.line),
            granted=context.granted,
            slots=context.slots if self.state.slotted else {},
        )

    def _listing(self, context: CallContext, call: Status) -> Listing:
        line = self._living_line(context)
        entries = [
            LineEntry(queued.id, queued.ticket, queued.request.permits, queued.key)
            for queued in line[: call.max_entries]
        ]
        return Listing(len(line), entries, blocked=bool(line) and not self.passes_over)

    def _living_line(self, context: CallContext) -> list[QueuedRequest]:
        now, look_up = context.now, self.state.look_up
        return [q for q in self.line if not q.unreachable and look_up(q.hub).alive_until > now]


def _count_living(line: Sequence[QueuedRequest]) -> int:
    """How many wait, without those whose hubs are unreachable."""
    return sum(not queued.unreachable for queued in line)
