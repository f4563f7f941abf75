"""What the store keeps of one semaphore, and the rules for it that both modes share.

`State` stands for the keys in Redis, and its methods for the functions of the Lua prelude.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redsem_async._core.keys import Address
from redsem_async._protocol.hub_info import facts_of
from redsem_async._protocol.replies import Holding, Ramp
from redsem_async._redis.scripts import layout

from .records import (
    SLACK_MS,
    STEP_US,
    BackOffRecord,
    CallContext,
    HolderRecord,
    HubRecord,
    liveness_timeout_ms,
    room_in,
)

ALL_TAKEN = 2**53  # permits
LOOK_AGAIN_MS = 1000  # before that the queue is not looked through again


@dataclass(slots=True)
class Counter:
    """Draws fencing tokens and tickets, and notes the time, because both follow the clock.

    Attributes:
        last: the last number drawn, or the time last noted, in microseconds.
        ahead_us: by how much the server's clock was set back.
    """

    last: int = 0
    ahead_us: int = 0

    def now_us(self, address: Address, wall_us: int) -> int:
        """The clock *wall_us* without its steps backwards. Only the server's has any."""
        if address.clock == "server" and wall_us + self.ahead_us < self.last - STEP_US:
            self.ahead_us = self.last - wall_us
        return wall_us + self.ahead_us

    def draw(self, now_us: int) -> int:
        """Draw the next token."""
        self.last = max(self.last + 1, now_us)
        return self.last

    def note_time(self, now_us: int) -> None:
        """Let the counter follow the clock, because a step backwards shows only in it."""
        self.last = max(self.last, now_us - 1)

    def lead_ms(self, wall_us: int) -> float:
        """By how much the counter leads the clock. It must not be forgotten before."""
        return max(0.0, (self.last - wall_us) / 1000)


@dataclass(slots=True)
class State:
    """One semaphore, as the store keeps it.

    Attributes:
        kind: mode and clock in use. None for a name that is not in use.
        layout: the number of the layout in use. 0 for one without a number.
        kept_until: when the key `meta` expires in Redis, in milliseconds of the callers' clock.
        counter: of tokens and tickets.
        set_limit: the limit that overrides every client's own.
        paused_limit: the set limit from before a pause.
        holders: permits in use, by id.
        hubs: by hub id.
        slotted: permits stand for slots.
        slots: the longest list of slots that a client declares.
        back_off: of all requests, which may be over.
        hold_ms: for how long requests recently held their permits, times permits, if it was told.
        looked_at: when the queue was looked through for requests of dead hubs, in milliseconds.
            None where that is to be done again.
        on_removed: called with holders that were removed.
        on_purged: called when expired holders were looked for.
    """

    kind: str | None = None
    layout: int = 0
    kept_until: float = 0.0
    counter: Counter = field(default_factory=Counter)
    set_limit: int | None = None
    paused_limit: int | None = None
    holders: dict[str, HolderRecord] = field(default_factory=dict[str, HolderRecord])
    hubs: dict[str, HubRecord] = field(default_factory=dict[str, HubRecord])
    slotted: bool = False
    slots: Sequence[str] = ()
    back_off: BackOffRecord | None = None
    hold_ms: int | None = None
    looked_at: int | None = None
    on_removed: Callable[[CallContext, Sequence[HolderRecord]], None] | None = field(
        default=None, repr=False
    )
    on_purged: Callable[[CallContext], None] | None = field(default=None, repr=False)

    def effective_limit(self, declared: int) -> int:
        if self.set_limit is None:
            return declared
        return min(self.set_limit, declared) if self.slotted else self.set_limit

    def room(self, declared: int, now: int, used: int) -> float:
        """How many permits may be in use *now*, where *used* are."""
        return room_in(self.effective_limit(declared), used, self.ramp(now))

    def ramp(self, now: int) -> Ramp | None:
        """The ramp of the back-off that runs, if one does."""
        return None if self.back_off is None else self.back_off.ramp(now)

    def usage(self, now_us: int) -> str:
        """How the name is used, as the error MODE says it."""
        now = (now_us + self.counter.ahead_us) // 1000
        held = sum(holder.expiry_ms > now for holder in self.holders.values())
        alive = sum(record.alive_until > now for record in self.hubs.values())
        return f"{self.kind} {held} {alive} {self._left_ms(now_us)}"

    def versions(self, now_us: int) -> str:
        """Versions of live hubs, and how long the name is kept, as the error LAYOUT says it."""
        now = (now_us + self.counter.ahead_us) // 1000
        alive = (hub for hub in self.hubs.values() if hub.alive_until > now)
        found = {str(facts_of(hub.description).get("version", "")) for hub in alive} - {""}
        return f"{','.join(found) or '-'} {self._left_ms(now_us)}"

    def _left_ms(self, now_us: int) -> int:
        return max(0, round(self.kept_until - now_us // 1000))

    def forget(self) -> None:
        """Forget everything but the last token and the hubs."""
        self.kind = self.set_limit = self.paused_limit = self.hold_ms = self.back_off = None
        self.layout = 0
        self.counter.ahead_us = 0
        self.slots = ()
        self.looked_at = None
        self.holders.clear()

    def take_name(self, context: CallContext) -> None:
        """Note mode, clock and layout."""
        self.kind, self.layout = context.kind, layout()

    # -- how long it is kept

    def keep(self, context: CallContext, need_ms: float) -> None:
        """Keep the mode for *need_ms* at least. That time is seldom extended, never shortened."""
        wall = context.wall_us // 1000
        if self.kept_until - wall < 2 * need_ms:
            self.kept_until = wall + math.ceil(3 * need_ms)

    def draw(self, context: CallContext) -> int:
        """Draw the next token or ticket."""
        return self.counter.draw(context.now_us)

    def save_counter(self, context: CallContext, need_ms: float) -> None:
        """Note mode and time, and keep them for *need_ms* at least."""
        self.take_name(context)
        self.counter.note_time(context.now_us)
        self.keep(context, need_ms + self.counter.lead_ms(context.wall_us) + SLACK_MS)

    # -- holders

    def used(self, now: int) -> int:
        """Permits in use."""
        return sum(h.permits for h in self.holders.values() if h.expiry_ms > now)

    def taken(self, now: int) -> int:
        """Permits that are not free. All, where the key or the slots of a holder were lost."""
        live = (h for h in self.holders.values() if h.expiry_ms > now)
        return self.used(now) if all(holder.known for holder in live) else ALL_TAKEN

    def lose_slots(self) -> None:
        """Lose the slots of all holders, as by an eviction of that key alone."""
        self.slots = ()
        for holder in self.holders.values():
            holder.slots, holder.known = (), False

    def current_grant(self, identity: str, now: int) -> Holding | None:
        """What *identity* holds now."""
        holder = self.holders.get(identity)
        if holder is None or holder.expiry_ms <= now:
            return None
        return Holding(holder.token, holder.expiry_ms - now, holder.slots)

    def remove(self, context: CallContext, ids: Iterable[str]) -> None:
        """Remove holders."""
        removed = [self.holders.pop(identity) for identity in ids if identity in self.holders]
        if self.on_removed is not None:
            self.on_removed(context, removed)

    def remove_expired(self, context: CallContext) -> None:
        now = context.now
        self.remove(context, [i for i, h in self.holders.items() if h.expiry_ms <= now])
        if self.on_purged is not None:
            self.on_purged(context)

    def next_expiry(self, context: CallContext) -> int | None:
        """In how many ms the first holder expires, or a pause ends."""
        ramp = self.ramp(context.now)
        if ramp is not None and not ramp.permits:
            return ramp.lasts_ms
        first = min((holder.expiry_ms for holder in self.holders.values()), default=None)
        return None if first is None else max(0, first - context.now)

    def note_hold(self, hold_ms: int) -> None:
        """Average a process's usual hold with what was told before."""
        before = hold_ms if self.hold_ms is None else self.hold_ms
        self.hold_ms = (before + hold_ms + 1) // 2

    # -- hubs

    def hub_record(self, hub: str) -> HubRecord:
        """The record of *hub*, made where there is none."""
        return self.hubs.setdefault(hub, HubRecord())

    def look_up(self, hub: str) -> HubRecord:
        """The record of *hub*. An empty one where the hub was forgotten."""
        return self.hubs.get(hub, HubRecord())

    def alive_until(self, hub: str) -> tuple[int, str]:
        """The order in which hubs die."""
        return self.look_up(hub).alive_until, hub

    def keep_hub_alive(self, context: CallContext, lease_ms: int) -> None:
        """Extend the caller's liveness seldom, and then for longer than necessary."""
        if self.counter.last < context.now_us - STEP_US:
            self.counter.note_time(context.now_us)
        need = liveness_timeout_ms(lease_ms)
        record = self.hub_record(context.hub)
        if record.alive_until < context.now + need:
            record.alive_until = context.now + math.floor(1.25 * need)
            self.keep(context, need + SLACK_MS)
            self.forget_dead_hubs(context)

    def forget_dead_hubs(self, context: CallContext) -> None:
        """Forget hubs that have been silent for long. Only a few, those that died first."""
        until = context.now - SLACK_MS
        dead = [hub for hub, record in self.hubs.items() if 0 < record.alive_until <= until]
        for hub in sorted(dead, key=self.alive_until)[:10]:
            del self.hubs[hub]
            self.looked_at = None

    def is_unreachable(self, context: CallContext, hub: str) -> bool:
        """Whether *hub* received no push message, and is not the caller."""
        return hub != context.hub and self.look_up(hub).unreachable

    def may_have_died(self, now: int) -> bool:
        """Whether hubs have died since the queue was looked through, which is done seldom."""
        since = self.looked_at
        if since is None:
            return True
        died = any(since < record.alive_until <= now for record in self.hubs.values())
        return died and now - since >= LOOK_AGAIN_MS

    def raise_mark(self, context: CallContext, number: int) -> None:
        """Note that the caller has used *number*. No request up to it is granted any more."""
        if number > self.hub_record(context.hub).mark:
            self.hub_record(context.hub).mark = number
            self.keep_hub_alive(context, 0)

    def is_spent(self, context: CallContext, number: int) -> bool:
        """Whether the caller's call of that number was carried out, or may not act any more."""
        return number <= self.look_up(context.hub).last_call

    def note_call(self, context: CallContext, number: int) -> None:
        """Spend the number of an adoption or a detach."""
        self.hub_record(context.hub).last_call = number
        self.keep_hub_alive(context, 0)

    def is_changed(self, context: CallContext, number: int) -> bool:
        """Whether the caller's change of that number was carried out, or may not act any more."""
        return number <= self.look_up(context.hub).last_change

    def note_change(self, context: CallContext, number: int) -> None:
        """Spend the number of a change."""
        self.hub_record(context.hub).last_change = number
        self.keep_hub_alive(context, 0)
