"""Semaphore's rule (zset), by which a request that does not fit is passed over."""

from collections.abc import Sequence

from redsem_async._protocol.operations import Request

from .queue import QueueSpecification
from .records import YOUNG_US, CallContext, QueuedRequest
from .slots import assign


class PassingSpecification(QueueSpecification):
    """A semaphore whose queue is passed through for the oldest request that fits."""

    passes_over = True

    def _serve(self, context: CallContext, own: Sequence[Request] = ()) -> None:
        self._serve_own(context, own)
        super()._serve(context)

    def _serve_own(self, context: CallContext, own: Sequence[Request]) -> None:
        state = self.state
        head = next((queued for queued in self.queue if not queued.parked), None)
        if head is None or not context.kind.endswith("server"):
            return
        if not 0 <= context.now_us - head.ticket <= YOUNG_US:
            return
        plan: list[tuple[QueuedRequest, int]] = []
        used = state.taken(context.now)
        for queued in self.queue:
            permits = queued.request.permits
            room = state.room(queued.request.limit, context.now, used)
            named = queued.hub == context.hub and any(map(queued.is_for, own))
            if named and not queued.parked and used + permits <= room:
                used += permits
                queued.slots = assign(state, permits, (earlier.slots for earlier, _ in plan))
                plan.append((queued, state.draw(context)))
        self._hand_over(context, plan)
