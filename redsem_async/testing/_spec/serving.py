"""The requests that wait, and how a freed permit goes to the first."""

from collections.abc import Sequence

from redsem_async._protocol.operations import Request
from redsem_async._protocol.pushes import Granted
from redsem_async._protocol.replies import Holding

from .base import Specification
from .records import CallContext, HolderRecord, Publish, QueuedRequest
from .slots import assign


class Serving(Specification):
    """A queue that is blocked by a request that does not fit (fair).

    Attributes:
        queue: the requests that wait.
        parked_return: requests that were parked are looked at again.
        passes_over: one that does not fit is passed over instead.
    """

    passes_over = False

    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self.queue: list[QueuedRequest] = []
        self.parked_return = False

    def _forget(self) -> None:
        super()._forget()
        self.queue.clear()
        self.parked_return = False

    def lose_queue(self) -> None:
        """Lose every request, as by an eviction of that key alone."""
        self.queue.clear()

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def waiting_hubs(self) -> set[str]:
        return {queued.hub for queued in self.queue}

    def _hubs_in_turn(self) -> Sequence[str]:
        return [queued.hub for queued in self.queue if not queued.parked]

    def _leave_queue(self, context: CallContext, leaving: Sequence[QueuedRequest]) -> None:
        self.queue = [queued for queued in self.queue if queued not in leaving]
        self._line_changed(context, leaving)

    def _line_changed(self, context: CallContext, requests: Sequence[QueuedRequest]) -> None:
        """*requests* have joined the queue, or left it, or were parked, or are back."""

    # -- serving

    def _serve(self, context: CallContext, own: Sequence[Request] = ()) -> None:
        """Serve from the head.

        Grants to other hubs are published before they are made. If no connection receives them,
        the hub is passed over, and its share goes to the next in the queue.
        """
        state = self.state
        self._mark_reachable(state.look_up(context.hub))
        if state.grace.until > context.now or not self.queue:
            return
        self._look_through(context)
        if state.set_limit == 0:
            return
        if self.parked_return:
            self.parked_return = False
            back = [
                queued
                for queued in self.queue
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
        for queued in [queued for queued in self.queue if not queued.parked]:
            record = state.look_up(queued.hub)
            permits = queued.request.permits
            limit = state.effective_limit(queued.request.limit)
            if self.passes_over and used + permits > limit:
                continue
            if record.alive_until <= context.now:
                self.queue.remove(queued)
            elif permits > limit or record.unreachable:
                self._park(context, queued)
            elif used + permits > state.room(queued.request.limit, context.now, used):
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
                holding = Holding(token, queued.request.lease_ms, queued.slots)
                grants.append((queued.request.number, holding))
            push = Granted(context.name, grants)
            silent = is_caller or record.no_push
            if not silent and not record.received(self._publish(hub, push)):
                record.unreachable = True
                state.looked_at = None
                state.save_counter(context, 0)
                unreachable += [queued for queued, _ in part]
                continue
            for (queued, token), (number, holding) in zip(part, grants, strict=True):
                self.queue.remove(queued)
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
        """Drop the requests of dead hubs, and park those of unreachable hubs."""
        state, now = self.state, context.now
        if not state.may_have_died(now):
            return
        state.looked_at = now
        alive_until = {queued.hub: state.look_up(queued.hub).alive_until for queued in self.queue}
        self._leave_queue(context, [q for q in self.queue if alive_until[q.hub] <= now])
        unreached = [
            q for q in self.queue if not q.unreachable and state.is_unreachable(context, q.hub)
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
        before, now, look_up = len(self.queue), context.now, self.state.look_up
        self._leave_queue(context, [q for q in self.queue if look_up(q.hub).alive_until <= now])
        return before - len(self.queue)
