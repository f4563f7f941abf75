"""The zset mode: the line holds hubs with waiters, and a release sends hints to them in turn."""

from collections.abc import Sequence

from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import Abandon, Acquire, Heartbeat, Status
from redsem_async._protocol.pushes import Hint
from redsem_async._protocol.replies import (
    FULL,
    GAVE_BACK,
    GONE,
    NOTHING,
    Answer,
    LineEntry,
    Reply,
)

from .base import Specification, answered
from .records import CallContext, HolderRecord, Publish, requests_of
from .rights import answer_right, recall_rights
from .slots import assign, compare
from .status import Listing


class ZsetSpecification(Specification):
    """A semaphore in zset mode.

    Attributes:
        line: the turn of each hub with waiters: the lowest gets the next hint.
    """

    def __init__(self, publish: Publish) -> None:
        super().__init__(publish)
        self.line: dict[str, int] = {}

    def _forget(self) -> None:
        super()._forget()
        self.line.clear()

    @property
    def waiting(self) -> int:
        return len(self.line)

    def waiting_hubs(self) -> set[str]:
        return set(self.line)

    def _hubs_in_turn(self) -> list[str]:
        return sorted(self.line, key=lambda hub: (self.line[hub], hub))

    def _room(self, context: CallContext, declared: int) -> int:
        """Permits left under the limit; none in a grace period."""
        if self.state.grace.until > context.now:
            return 0
        return self.state.effective_limit(declared) - self.state.taken(context.now)

    # -- operations

    def _acquire(self, context: CallContext, call: Acquire) -> Reply:
        self._require_known(context, call.hub_info)
        state, now = self.state, context.now
        compare(state, context, self.waiting, call.slots)
        mark = state.hub_record(context.hub).mark
        state.hub_record(context.hub).mark = max(mark, *call.numbers)
        self._introduce(context, call.lease_ms, call.hub_info)
        state.slots = context.slot_list
        state.remove_expired(context)
        limit = state.effective_limit(call.limit)
        answers: list[Answer] = []
        waits, taken = call.waits, 0
        for request in requests_of(call):
            identity = permit_id(context.hub, request.number)
            if request.number <= mark:
                answers.append(state.current_grant(identity, now) or GONE)
            elif state.grace.until <= now and state.taken(now) + request.permits <= limit:
                taken += request.permits
                token = state.draw(context)
                expiry = now + request.lease_ms
                slots = assign(state, request.permits)
                holder = HolderRecord(expiry, token, request.permits, slots=slots)
                state.holders[identity] = holder
                context.slots[request.number] = slots
                answers.append(token)
            else:
                answers.append(FULL)
                waits += request.waits
        if taken:
            state.save_counter(context, call.lease_ms)
        room = self._room(context, call.limit)
        context.reply_has_room, context.passes_on = True, context.freed == 0
        context.freed = max(0, context.freed + call.hinted - taken)
        if max(call.numbers) > mark:
            highest = call.highest if call.waits else 0
            self._announce(context, waits, max(highest, call.limit))
        self._serve(context)
        if unserved := bool(call.waits or FULL in answers):
            recall_rights(self.state, context, self._publish)
        right = answer_right(self.state, context, call.right, self.waiting, self.waiting_hubs())
        reply = self._reply(context, answers, room)
        return answered(reply, state, right=right, waits=unserved)

    def _announce(self, context: CallContext, waits: int, highest_limit: int) -> None:
        """Note how many of the caller's requests wait: with one or more it is in the line."""
        if waits == 0 and not self.line:
            return
        record = self.state.hub_record(context.hub)
        record.waits, record.highest_limit = waits, highest_limit
        if waits == 0:
            self.line.pop(context.hub, None)
        elif context.hub not in self.line:
            self.line[context.hub] = self.state.draw(context)
            self.state.save_counter(context, 0)

    def _abandon(self, context: CallContext, call: Abandon) -> Reply:
        state = self.state
        ids = [permit_id(context.hub, request.number) for request in call.requests]
        answers: list[Answer] = [
            GAVE_BACK if state.current_grant(identity, context.now) else NOTHING
            for identity in ids
        ]
        state.remove(context, ids)
        self._finish_abandon(context, call)
        return self._reply(context, answers)

    def _heartbeat(self, context: CallContext, call: Heartbeat) -> Reply:
        state = self.state
        self._introduce(context, call.lease_ms, call.hub_info)
        state.remove_expired(context)
        context.reply_has_room, context.passes_on = True, context.freed == 0
        if call.number > state.hub_record(context.hub).mark:
            state.raise_mark(context, call.number)
            context.freed += call.hinted
            self._announce(context, call.waits, call.limit)
        self._serve(context)
        if call.waits:
            recall_rights(self.state, context, self._publish)
        right = answer_right(self.state, context, call.right, self.waiting, self.waiting_hubs())
        reply = self._reply(context, room=self._room(context, call.limit))
        return answered(reply, state, right=right, waits=bool(call.waits))

    # -- serving

    def _serve(self, context: CallContext) -> None:
        """Send hints about freed permits, in turn, as far as each hub's limit has room for them.

        A hub that only passes a hint on gives it to the hubs whose turn is before its own. They
        get its turn, so that a hint too small for any of them goes round once.
        """
        state = self.state
        if context.keep and context.hub in self.line:
            self.line[context.hub] = state.draw(context)  # that was its turn
            state.save_counter(context, 0)
        used = state.taken(context.now) + context.keep
        if state.set_limit is not None and state.set_limit <= used:
            return
        if state.grace.until > context.now:
            return
        own_turn = self.line.get(context.hub) if context.passes_on else None
        for hub in self._hubs_in_turn():
            if context.freed <= 0 or (own_turn is not None and self.line[hub] >= own_turn):
                return
            record = state.look_up(hub)
            room = state.effective_limit(record.highest_limit) - used
            share = int(min(context.freed, record.waits, room))
            if record.alive_until <= context.now or record.waits <= 0:
                del self.line[hub]
            elif share <= 0:
                continue
            elif hub == context.hub:
                if not context.reply_has_room:
                    context.hinted = share
                    self._take_turn(context, hub, share)
            elif record.no_push:
                continue  # its next heartbeat finds the room
            elif record.received(self._publish(hub, Hint(context.name, share))):
                self._take_turn(context, hub, share, own_turn)
            else:
                del self.line[hub]

    def _take_turn(
        self, context: CallContext, hub: str, share: int, turn: int | None = None
    ) -> None:
        """Move the hub that got a hint to the end of the line, or to *turn*."""
        self.line[hub] = self.state.draw(context) if turn is None else turn
        self.state.save_counter(context, 0)
        context.freed -= share

    def _remove_dead_waiters(self, context: CallContext) -> int:
        for hub in self._hubs_in_turn():
            if self.state.look_up(hub).alive_until <= context.now:
                del self.line[hub]
        return 0

    # -- replies

    def _reply(self, context: CallContext, answers: Sequence[Answer] = (), room: int = 0) -> Reply:
        return Reply(
            answers=answers,
            next_ms=self.state.next_expiry(context) if self.line else None,
            waiting=len(self.line),
            hinted=context.hinted,
            room=room,
            slots=context.slots if self.state.slotted else {},
        )

    def _listing(self, context: CallContext, call: Status) -> Listing:
        state = self.state
        live = [
            hub for hub in self._hubs_in_turn() if state.look_up(hub).alive_until > context.now
        ]
        entries = [LineEntry(hub, 0, state.look_up(hub).waits) for hub in live]
        return Listing(sum(entry.permits for entry in entries), entries[: call.max_entries])
