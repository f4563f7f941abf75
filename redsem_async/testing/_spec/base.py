"""One semaphore, which carries out operations. What the two modes choose is abstract here."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from redsem_async._core.keys import Address, permit_id
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    BackOff,
    Delete,
    Detach,
    Heartbeat,
    Operation,
    Reap,
    Refresh,
    Release,
    Request,
    SetLimit,
    Status,
)
from redsem_async._protocol.pushes import Deleted, Recheck, Revoked
from redsem_async._protocol.replies import AdoptReply, Answer, AnyReply, Reply
from redsem_async._redis.scripts import layout

from .back_off import begun_or_longer
from .leases import adopt, detach, refresh, refuse_spent
from .records import (
    SLACK_MS,
    BackOffRecord,
    CallContext,
    HubRecord,
    LayoutInUse,
    ModeInUse,
    Publish,
    UnknownHub,
)
from .slots import compare
from .state import State
from .status import Listing, status

MAX_NOTIFIED = 10  # hubs at the head of the queue that a change of an expiry is published to


class Specification(ABC):
    """Base of the two modes.

    Attributes:
        state: what the store keeps.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self.state = State()

    def run(self, address: Address, call: Operation, hub: str, now_us: int) -> AnyReply:
        """Carry *call* out at once.

        Raises:
            LayoutInUse, ModeInUse, UnknownHub, Reordered, Void: nothing has changed.
        """
        state = self.state
        if (state.kind is not None or state.layout) and state.layout != layout():
            raise LayoutInUse(f"{state.layout} {layout()} {state.versions(now_us)}")
        if state.kind is not None and state.kind != address.kind:
            raise ModeInUse(state.usage(now_us))
        state.slotted = address.slotted
        own_us = state.counter.now_us(address, now_us)
        return self._carry_out(CallContext(hub, address.name, address.kind, now_us, own_us), call)

    def _carry_out(self, context: CallContext, call: Operation) -> AnyReply:
        match call:
            case Acquire():
                reply = self._acquire(context, call)
                self.state.take_name(context)
                return reply
            case Release():
                return self._release(context, call)
            case Refresh():
                return refresh(self.state, context, call)
            case Abandon():
                return self._abandon(context, call)
            case Heartbeat():
                return self._heartbeat(context, call)
            case Adopt():
                return self._adopt(context, call)
            case Detach():
                return self._detach(context, call)
            case Status():
                return status(self.state, context, call, self._listing(context, call))
            case SetLimit():
                return self._set_limit(context, call)
            case BackOff():
                return self._back_off(context, call)
            case Reap():
                return self._reap(context)
            case Delete():
                return self._delete(context, call)

    # -- what happens to the store as a whole

    def lose_everything(self) -> None:
        """Lose all state, as by FLUSHALL."""
        self._forget()
        self.state.hubs.clear()
        self.state.counter.last = 0
        self.state.kept_until = 0

    def expire(self, now_us: int) -> None:
        """Forget what Redis has let expire by now.

        `run` leaves that to its caller, because Redis counts expiries by a clock of its own.
        """
        if self.state.kept_until <= now_us // 1000:
            limit = self.state.set_limit, self.state.paused_limit  # in a key without an expiry
            self._forget()
            self.state.hubs.clear()
            self.state.set_limit, self.state.paused_limit = limit

    def give_to(self, other: "Specification") -> None:
        """Hand over what Redis keeps of a name that is not in use. *other* has another mode."""
        other.state.counter.last = self.state.counter.last
        other.state.set_limit = self.state.set_limit
        other.state.paused_limit = self.state.paused_limit
        other.state.kept_until = self.state.kept_until
        other.state.back_off = self.state.back_off
        other.state.hubs = self.state.hubs

    def _forget(self) -> None:
        self.state.forget()

    # -- operations that are the same in both modes

    def _release(self, context: CallContext, call: Release) -> Reply:
        state = self.state
        ids = [permit_id(call.owner, number) for number in call.numbers]
        held: list[bool] = []
        for identity in ids:  # twice in one call, the second finds nothing
            held.append(state.current_grant(identity, context.now) is not None)
            state.remove(context, [identity])
        if call.owner == context.hub:
            state.raise_mark(context, max(call.numbers))
        elif any(held):
            revoked = [n for n, was_held in zip(call.numbers, held, strict=True) if was_held]
            self._publish(call.owner, Revoked(context.name, revoked))
        if call.hold_ms is not None and state.kind is not None:
            state.note_hold(call.hold_ms)
        if self.waiting:
            state.remove_expired(context)
            self._serve(context, call.own)
        answers = [int(was_held) for was_held in held]
        return self._reply(context, answers) if call.waits or context.granted else Reply(answers)

    def _adopt(self, context: CallContext, call: Adopt) -> AdoptReply:
        self._require_known(context, call.hub_info)
        old = permit_id(call.owner, call.old)
        compare(self.state, context, self.waiting, call.slots, old)
        refuse_spent(self.state, context, call)
        self._introduce(context, call.lease_ms, call.hub_info)
        reply, has_moved = adopt(self.state, context, call)
        if has_moved:
            self._use_changed(context, [reply.key])
            if call.owner != context.hub:
                self._publish(call.owner, Revoked(context.name, [call.old]))
        return reply

    def _detach(self, context: CallContext, call: Detach) -> Reply:
        reply, expires_earlier = detach(self.state, context, call)
        if expires_earlier:
            notify_head(context, self._publish, self._hubs_in_turn())
        return reply

    def _set_limit(self, context: CallContext, call: SetLimit) -> Reply:
        state = self.state
        if not state.is_changed(context, call.call):
            match call.limit:
                case _ if call.key is not None:
                    self._set_limit_of_key(context, call)
                case "pause":
                    if state.set_limit != 0:
                        state.set_limit, state.paused_limit = 0, state.set_limit
                case "resume":
                    if state.set_limit == 0:
                        state.set_limit, state.paused_limit = state.paused_limit, None
                case limit:
                    state.set_limit, state.paused_limit = limit, None
            state.note_change(context, call.call)
            if self.waiting:
                self._return_parked()
        state.remove_expired(context)
        self._serve(context)
        return self._reply(context)

    def _back_off(self, context: CallContext, call: BackOff) -> Reply:
        state, begins = self.state, False
        if not state.is_changed(context, call.call):
            state.note_change(context, call.call)
            after: BackOffRecord | None = None
            if call.pause_ms:
                before = self._back_off_of(call.key)
                after, begins = begun_or_longer(before, state, context, call)
            self._set_back_off(context, call.key, after)
            over = context.now if after is None else after.over
            state.keep(context, over - context.now + SLACK_MS)
            if begins or not call.pause_ms:
                for hub in sorted(state.hubs, key=state.alive_until) if self.waiting else ():
                    if hub != context.hub and state.hubs[hub].alive_until:
                        self._publish(hub, Recheck(context.name))
        state.remove_expired(context)
        self._serve(context)
        return self._reply(context, [int(begins)])

    def _back_off_of(self, key: str | None) -> BackOffRecord | None:
        """The back-off of *key*, or of all requests, which may be over."""
        return self.state.back_off

    def _set_back_off(
        self, context: CallContext, key: str | None, back_off: BackOffRecord | None
    ) -> None:
        self.state.back_off = back_off

    def _reap(self, context: CallContext) -> Reply:
        before = len(self.state.holders)
        self.state.remove_expired(context)
        reaped = before - len(self.state.holders) + self._remove_dead_waiters(context)
        self.state.forget_dead_hubs(context)
        self._serve(context)
        return self._reply(context, [reaped])

    def _delete(self, context: CallContext, call: Delete) -> Reply:
        """Forget everything but the numbers that hubs have used."""
        state = self.state
        if state.is_changed(context, call.call):
            return Reply()
        for hub in sorted(state.hubs, key=state.alive_until):
            record = state.hubs[hub]
            if hub != context.hub and record.alive_until:
                self._publish(hub, Deleted(context.name))
            state.hubs[hub] = HubRecord(
                alive_until=record.alive_until,
                mark=record.mark,
                last_call=record.last_call,
                last_change=record.last_change,
            )
        self._forget()
        if state.counter.last < context.wall_us:
            state.counter.last = 0  # the clock is higher, so no token is drawn twice
        if not state.hubs and not state.counter.last:
            state.kept_until = 0  # nothing is left of `meta`, so its expiry is gone too
        state.note_change(context, call.call)
        state.keep(context, state.counter.lead_ms(context.wall_us) + SLACK_MS)
        return Reply()

    # -- steps of several operations

    def _require_known(self, context: CallContext, hub_info: HubInfo | None) -> None:
        context.was_unknown |= not self.state.look_up(context.hub).description
        if hub_info is None and context.was_unknown:
            raise UnknownHub

    def _introduce(self, context: CallContext, lease_ms: int, hub_info: HubInfo | None) -> None:
        """Note that the caller is alive, and its `HubInfo` where the call has one."""
        self._require_known(context, hub_info)
        record = self.state.hub_record(context.hub)
        self._mark_reachable(record)
        if hub_info is not None and not record.description and self.waiting:
            self._return_parked()
        if hub_info is not None:
            record.description, record.no_push = hub_info.description, hub_info.no_push
            record.uncounted = hub_info.uncounted
        self.state.keep_hub_alive(context, lease_ms)

    def _mark_reachable(self, record: HubRecord) -> None:
        """The hub's call shows that it is there, although it received no push message before."""
        if record.unreachable:
            record.unreachable = False
            self._return_parked()

    def _finish_abandon(self, context: CallContext, call: Abandon) -> None:
        state = self.state
        if call.requests:
            state.raise_mark(context, max(request.number for request in call.requests))
        if call.void and not state.is_spent(context, call.void):
            state.note_call(context, call.void)
        if call.void_change and not state.is_changed(context, call.void_change):
            state.note_change(context, call.void_change)
        if self.waiting:
            state.remove_expired(context)
            self._serve(context)

    # -- what differs

    @property
    @abstractmethod
    def waiting(self) -> int:
        """The length of the queue."""

    @abstractmethod
    def waiting_hubs(self) -> set[str]:
        """The hubs that have requests in the queue."""

    @abstractmethod
    def _hubs_in_turn(self) -> Sequence[str]:
        """The hubs whose requests may be served when there is room, in the queue's order."""

    @abstractmethod
    def _acquire(self, context: CallContext, call: Acquire) -> Reply: ...

    @abstractmethod
    def _abandon(self, context: CallContext, call: Abandon) -> Reply: ...

    @abstractmethod
    def _heartbeat(self, context: CallContext, call: Heartbeat) -> Reply: ...

    @abstractmethod
    def _serve(self, context: CallContext, own: Sequence[Request] = ()) -> None:
        """Grant free permits to waiters. Those of the releasing hub, *own*, may pass others."""

    def _use_changed(self, context: CallContext, keys: Iterable[str | None]) -> None:
        """Holders with *keys* came back, or have other ids."""

    def _set_limit_of_key(self, context: CallContext, call: SetLimit) -> None:
        raise AssertionError("only requests in a queue have keys")

    def _return_parked(self) -> None:
        """Have the next call look at requests that were parked, as they may be servable now."""

    @abstractmethod
    def _remove_dead_waiters(self, context: CallContext) -> int:
        """Remove waiters of dead hubs. Returns how many requests those were."""

    @abstractmethod
    def _reply(self, context: CallContext, answers: Sequence[Answer] = ()) -> Reply: ...

    @abstractmethod
    def _listing(self, context: CallContext, call: Status) -> Listing:
        """How many requests wait, and the first ones, and keys, that *call* asks for."""


def notify_head(context: CallContext, publish: Publish, hubs: Sequence[str]) -> None:
    """Have the first of *hubs* look again, as the queue may continue earlier than reported."""
    for hub in dict.fromkeys(hubs[:MAX_NOTIFIED]):
        publish(hub, Recheck(context.name))
