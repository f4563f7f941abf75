"""The fair mode with keys, with an overall limit and one for each key."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from redsem_async._protocol.operations import (
    Acquire,
    Request,
    SetLimit,
    Status,
)
from redsem_async._protocol.replies import (
    QUEUE_FULL_FOR_KEY,
    WAITING,
    WAITING_FOR_KEY,
    Answer,
    KeyEntry,
    KeyQueue,
    Ramp,
    Reply,
)

from .queue import UNSERVED, QueueSpecification
from .records import (
    BackOffRecord,
    CallContext,
    HolderRecord,
    Publish,
    QueuedRequest,
    key_of,
    room_in,
)
from .slots import assign
from .status import Listing

Rank = tuple[float, float, int]  # use for the weight, virtual time, ticket

NO_KEY = ""  # of a request without one, which has no limit but the overall one


class KeyedSpecification(QueueSpecification):
    """A semaphore in fair mode with keys.

    Attributes:
        shares: the next permit goes to the key with the fewest in use for its weight.
        key_limits: limits that were set.
        back_offs: of keys, and when each is to be looked at.
        ready: keys whose first request fits within their limit, with its place and the rank.
        virtual_time: of the key that was served last.
        virtual_times: of keys that hold or wait.
    """

    shares = False

    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self.key_limits: dict[str, int] = {}
        self.back_offs: dict[str, tuple[int, BackOffRecord]] = {}
        self.ready: dict[str, tuple[int, Rank]] = {}
        self.virtual_time = 0.0
        self.virtual_times: dict[str, float] = {}
        self.state.on_removed, self.state.on_purged = self._removed, self._follow_ramps
        self._planned: dict[str, int] = {}
        self._index_lost = False

    def expire(self, now_us: int) -> None:
        limits = {**self.key_limits}  # in a key without an expiry
        super().expire(now_us)
        self.key_limits |= limits

    def _forget(self) -> None:
        super()._forget()
        self.key_limits.clear()
        self.back_offs.clear()
        self.ready.clear()
        self.virtual_times.clear()
        self.virtual_time = 0.0

    def lose_keys(self) -> None:
        """Lose what is stored by key, as by an eviction. The queue is dropped for it."""
        for holder in self.state.holders.values():
            holder.key, holder.known = None, False
        self.virtual_times.clear()
        self.ready.clear()
        self.back_offs.clear()
        self._index_lost = True

    def lose_queue(self) -> None:
        if self.queue:  # else there is nothing that could be lost
            super().lose_queue()
            self.ready.clear()
            self.virtual_times.clear()

    # -- keys

    def _head(self, key: str) -> QueuedRequest | None:
        """The first request of *key* that is not parked."""
        for queued in self.queue:
            if (queued.key or NO_KEY) == key and not queued.parked and not queued.is_planned:
                return queued
        return None

    def _use(self, key: str) -> int:
        if key == NO_KEY:
            return 0
        held = sum(h.permits for h in self.state.holders.values() if h.key == key)
        return held + self._planned.get(key, 0)

    def _limit(self, request: Request) -> float:
        if request.key is None:
            return math.inf
        declared = math.inf if request.key.limit is None else request.key.limit
        return self.key_limits.get(request.key.key, declared)

    def _ramp(self, key: str, now: int) -> Ramp | None:
        return self.back_offs[key][1].ramp(now) if key in self.back_offs else None

    def _room(self, request: Request, now: int) -> float:
        """How many permits of the key of *request* may be in use *now*."""
        key = key_of(request) or NO_KEY
        return room_in(self._limit(request), self._use(key), self._ramp(key, now))

    def _virtual_time(self, key: str) -> float:
        return max(self.virtual_time, self.virtual_times.get(key, 0.0))

    def _advance(self, request: Request) -> None:
        """Advance the virtual times, because *request* got its permits."""
        key, weight = key_of(request) or NO_KEY, request.key.weight if request.key else 1.0
        self.virtual_time = start = round(self._virtual_time(key), 6)
        self.virtual_times[key] = round(start + request.permits / weight, 6)

    def _place(self, head: QueuedRequest) -> int:
        """Its ticket, or if keys share, when its patience ends (a lease, without a key)."""
        if not self.shares:
            return head.ticket
        key = head.request.key
        return head.ticket + 1000 * (key.patience_ms if key else head.request.lease_ms)

    def _look_at(self, context: CallContext, key: str) -> None:
        """Decide anew whether *key* is ready, and in which place."""
        self.ready.pop(key, None)
        while (head := self._head(key)) is not None:
            record, most = self.state.look_up(head.hub), self._room(head.request, context.now)
            if record.alive_until <= context.now:
                self.queue.remove(head)
            elif self._use(key) + head.request.permits > most:
                return
            else:
                weight = head.request.key.weight if head.request.key else 1.0
                use = round(self._use(key) / weight, 6)
                rank = use, self._virtual_time(key), head.ticket
                self.ready[key] = self._place(head), rank
                return
        if self._use(key) == 0:
            self.virtual_times.pop(key, None)

    def _look_at_all(self, context: CallContext, keys: Iterable[str | None]) -> None:
        for key in {key or NO_KEY for key in keys}:
            self._look_at(context, key)

    def _removed(self, context: CallContext, holders: Sequence[HolderRecord]) -> None:
        self._look_at_all(context, [holder.key for holder in holders if holder.key is not None])

    def _follow_ramps(self, context: CallContext) -> None:
        """Look at keys where the ramp of a back-off has changed."""
        if self._index_lost:
            self._index_lost = False
            self.queue.clear()
        for key, (at, back_off) in list(self.back_offs.items()):
            if at <= context.now:
                self._set_back_off(context, key, back_off)
        for at, _ in self.back_offs.values():
            self._may_change(context, at)

    def _use_changed(self, context: CallContext, keys: Iterable[str | None]) -> None:
        self._look_at_all(context, [key for key in keys if key is not None])

    def _line_changed(self, context: CallContext, requests: Sequence[QueuedRequest]) -> None:
        self._look_at_all(context, [queued.key for queued in requests])

    # -- new requests

    def _held_up(self, context: CallContext, request: Request, limit: int) -> Answer | None:
        if request.key is not None:
            key = request.key.key
            for queued in context.queued:
                if queued.key == key and not self._is_passed_over(queued, limit):
                    return queued.answer
            if self._head(key) is not None and key not in self.ready:
                return WAITING_FOR_KEY
            if self._use(key) + request.permits > self._room(request, context.now):
                return WAITING_FOR_KEY
        held_up = super()._held_up(context, request, limit)
        if held_up is None and self.shares and request.key is not None:
            self._advance(request)
        return held_up

    def _is_passed_over(self, queued: QueuedRequest, limit: int) -> bool:
        return queued.answer == WAITING and queued.request.permits > limit

    def _may_overtake(self, queued: QueuedRequest) -> bool:
        by_its_key = self.shares and queued.answer == WAITING
        return by_its_key or super()._may_overtake(queued)

    def _full_queue(self, context: CallContext, call: Acquire, request: Request) -> Answer | None:
        most, key = call.max_waiters_per_key, key_of(request)
        full = super()._full_queue(context, call, request)
        if full is not None or most is None or key is None:
            return full
        found = (*self.queue, *context.queued[context.joined :])
        count = sum(queued.key == key for queued in found if not queued.unreachable)
        return QUEUE_FULL_FOR_KEY if count >= most else None

    def _answer_of(self, request: Request) -> Answer:
        return WAITING if (key_of(request) or NO_KEY) in self.ready else WAITING_FOR_KEY

    def _look_at_heads(self, context: CallContext, requests: Sequence[Request]) -> None:
        for key in {key_of(request) or NO_KEY for request in requests} - self.ready.keys():
            head = self._head(key)
            if head is None or head.hub == context.hub:
                continue
            alive_until = self.state.look_up(head.hub).alive_until
            if alive_until <= context.now:
                self._look_at(context, key)
            else:
                self._may_change(context, alive_until)

    def _may_change(self, context: CallContext, at: int) -> None:
        context.keys_change = min(context.keys_change or at, at)

    def _set_limit_of_key(self, context: CallContext, call: SetLimit) -> None:
        assert call.key is not None
        if call.limit is None:
            self.key_limits.pop(call.key, None)
        elif isinstance(call.limit, int):
            self.key_limits[call.key] = call.limit
        self._look_at(context, call.key)

    def _back_off_of(self, key: str | None) -> BackOffRecord | None:
        if key is None:
            return super()._back_off_of(key)
        _, back_off = self.back_offs.get(key, (0, None))
        return back_off

    def _set_back_off(
        self, context: CallContext, key: str | None, back_off: BackOffRecord | None
    ) -> None:
        """Keep the back-off of a key, unless it is over."""
        if key is None:
            super()._set_back_off(context, key, back_off)
            return
        self.back_offs.pop(key, None)
        ramp = None if back_off is None else back_off.ramp(context.now)
        if back_off is not None and ramp is not None:
            at = context.now + ramp.lasts_ms
            self.back_offs[key] = at, back_off
            self._may_change(context, at)
        self._look_at(context, key)

    def _listing(self, context: CallContext, call: Status) -> Listing:
        held: Counter[str] = Counter()
        for holder in self.state.holders.values():
            if holder.key is not None and holder.expiry_ms > context.now:
                held[holder.key] += holder.permits
        found = self._living(context)
        waiting = Counter(queued.key for queued in found if queued.key is not None)
        ramps = {key: self._ramp(key, context.now) for key in self.back_offs}
        paused = {key for key, ramp in ramps.items() if ramp is not None and not ramp.permits}
        names = {quote(key, safe=""): key for key in {*held, *waiting} | paused}
        after = "" if call.after is None else quote(call.after, safe="")
        keys = [
            KeyEntry(
                *(names[text], held[names[text]], waiting[names[text]], limit),
                self._ramp(names[text], context.now),
            )
            for text in sorted(names)
            if text > after
            for limit in (self.key_limits.get(names[text]),)
        ]
        return (
            super()
            ._listing(context, call)
            ._replace(
                keys=keys[: call.max_entries],
                blocked=bool(self.ready),
                key_limits=len(self.key_limits),
            )
        )

    def _answered(
        self,
        context: CallContext,
        requests: Sequence[Request],
        answers: Sequence[Answer],
    ) -> Reply:
        waiting = Counter(queued.key for queued in self.queue if not queued.parked)
        queues = {
            key: KeyQueue(waiting[key], self.key_limits.get(key), self._ramp(key, context.now))
            for request, answer in zip(requests, answers, strict=True)
            if (key := key_of(request)) is not None and answer in UNSERVED
        }
        return (
            super()
            ._answered(context, requests, answers)
            ._replace(key_queues=queues, competing_keys=len(self.ready) if queues else 0)
        )

    # -- serving

    def _next_key(self, context: CallContext) -> str | None:
        if not self.ready:
            return None
        first = min(self.ready, key=lambda key: (self.ready[key][0], quote(key, safe="")))
        if not self.shares or context.now_us > self.ready[first][0]:
            return first
        return min(self.ready, key=lambda key: (self.ready[key][1], quote(key, safe="")))

    def _plan(
        self, context: CallContext
    ) -> tuple[list[tuple[QueuedRequest, int]], QueuedRequest | None]:
        state = self.state
        plan: list[tuple[QueuedRequest, int]] = []
        used = state.taken(context.now)
        while (key := self._next_key(context)) is not None:
            head = self._head(key)
            assert head is not None
            record, permits = state.look_up(head.hub), head.request.permits
            limit = state.effective_limit(head.request.limit)
            if record.alive_until <= context.now:
                self.queue.remove(head)
            elif permits > limit or record.unreachable:
                self._park(context, head)
            elif used + permits > state.room(head.request.limit, context.now, used):
                return plan, head
            else:
                used += permits
                if head.key is not None:
                    self._planned[head.key] = self._planned.get(head.key, 0) + permits
                if self.shares:
                    self._advance(head.request)
                head.slots = assign(state, permits, (q.slots for q, _ in plan))
                plan.append((head, state.draw(context)))
                head.is_planned = True
            self._look_at(context, key)
        return plan, None

    def _hand_over(
        self, context: CallContext, plan: Sequence[tuple[QueuedRequest, int]]
    ) -> list[QueuedRequest]:
        unreachable = super()._hand_over(context, plan)
        self._planned.clear()
        for queued in unreachable:
            queued.is_planned = False
        return unreachable


class SharedSpecification(KeyedSpecification):
    """The same, with keys that share the overall limit."""

    shares = True
