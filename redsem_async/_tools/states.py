"""The state of a semaphore, in one vocabulary for the command and the dashboard."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Literal, NamedTuple

from redsem_async._core.lease import heartbeat_is_overdue
from redsem_async._protocol.views import (
    BackOff,
    Client,
    RateStatus,
    SemaphoreStatus,
    Waiter,
    in_force,
    is_unrefreshed,
)

from .changed import origin
from .discovery import SemaphoreInfo

# fmt: off
Label = Literal[
    "unreadable", "state lost", "stalled", "paused", "backing off", "blocked", "rate used up",
    "queuing", "keys full", "full", "free",
]
# fmt: on

ATTENTION = ("unreadable", "state lost", "stalled", "long wait")  # the worst first
# Of states that do not.
_ORDER = ("paused", "backing off", "blocked", "rate used up", "queuing", "keys full")
USUAL_HOLDS = 10  # a wait is long if it exceeds so many usual holds, and a lease
LEASE = 10.0  # seconds, of a process that does not say its own
LEAST = 0.1  # seconds that are told apart
NAMED = 3  # full keys in a sentence


@dataclass(frozen=True, slots=True)
class State:
    """The state of a semaphore.

    Attributes:
        label: the state in a word or two.
        text: one sentence or two.
        who: the keys that are full, or the process that blocks the queue or has stalled, or what
            a back-off allows, or the rate that is used up.
        attention: why an operator should look at it, one of `ATTENTION`. None if nothing is wrong.
    """

    label: Label
    text: str
    who: str = ""
    attention: str | None = None


class Stalled(NamedTuple):
    """A process that was killed, stopped or cut off, but still holds or waits.

    Attributes:
        client: the process.
        left: seconds until it loses the first permit, or else its places in the queue.
        holds: whether it holds permits.
    """

    client: Client
    left: float
    holds: bool

    @property
    def what(self) -> str:
        """What has stalled."""
        signs = "refreshing" if self.holds else "sending heartbeats"
        return f"{name_of(self.client)} has stopped {signs}."

    @property
    def text(self) -> str:
        """What has stalled, and what becomes free when."""
        then = "The first of its permits expires" if self.holds else "Its requests leave the queue"
        return f"{self.what} {then} in {duration(self.left)}."


def state_of(
    info: SemaphoreInfo, status: SemaphoreStatus | None, error: str = "", lost: str | None = None
) -> State:
    """The state of a semaphore, and why its requests wait.

    Without a *status* it could not be read, because of *error*. *lost* is a sentence about what
    Redis has forgotten.
    """
    if status is None:
        return State("unreadable", f"It cannot be read: {error}.", attention="unreadable")
    state = _state(info, status)
    if _waits_long(status):
        state = replace(state, attention="long wait")
    if gone := [*stalled(info, status).values()]:
        who = name_of(gone[0].client)
        state = State("stalled", f"{gone[0].text} {state.text}", who, attention="stalled")
    if lost is not None:
        state = State("state lost", f"{lost} {state.text}", attention="state lost")
    return state


def rank(info: SemaphoreInfo, status: SemaphoreStatus | None, state: State) -> tuple[int, ...]:
    """The sort key of a list. What needs attention comes first, then the fullest.

    Ages and numbers count in steps, so that rows do not change places all the time.
    """
    trouble = ATTENTION.index(state.attention) if state.attention else len(ATTENTION)
    order = _ORDER.index(state.label) if state.label in _ORDER else len(_ORDER)
    if status is None:
        return trouble, order
    limit = limit_of(info, status)
    share = status.held / limit if limit else float(status.held + status.waiting > 0)
    age = round(log(max(1.0, status.oldest_wait or 0.0), 4))
    return trouble, -age, order, -round(min(share, 1.0) * 5), -status.waiting.bit_length()


def is_silent(waiter: Waiter, info: SemaphoreInfo) -> bool:
    """Whether the request leaves the queue soon, because its process sends no heartbeats."""
    lease, dead_in = waiter.client.lease, info.dead_in.get(waiter.client.id)
    return lease is not None and dead_in is not None and heartbeat_is_overdue(dead_in, lease)


def stalled(info: SemaphoreInfo, status: SemaphoreStatus) -> Mapping[str, Stalled]:
    """The stalled processes, by their ids."""
    found: dict[str, Stalled] = {}
    for holder in status.holders:
        if (client := holder.client).id not in found and is_unrefreshed(holder):
            found[client.id] = Stalled(client, holder.expires_in, holds=True)
    for waiter in status.waiters:
        if (client := waiter.client).id not in found and is_silent(waiter, info):
            found[client.id] = Stalled(client, info.dead_in[client.id], holds=False)
    return found


def _waits_long(status: SemaphoreStatus) -> bool:
    oldest = max(status.waiters, key=lambda waiter: waiter.age, default=None)
    if oldest is None:
        return False
    return oldest.age > max(oldest.client.lease or LEASE, USUAL_HOLDS * (status.usual_hold or 0.0))


def _state(info: SemaphoreInfo, status: SemaphoreStatus) -> State:
    limit = limit_of(info, status)
    if status.set_limit == 0:
        return State("paused", _paused(status))
    if status.back_off is not None:
        allowed = allowed_in(status.back_off, limit)
        return State("backing off", _backing_off(status, status.back_off, limit), allowed)
    if status.waiting:
        return _waiting(info, status, limit)
    if limit is None:
        return State("free", "No limit is known.")
    if status.held < limit:
        if (debt := _in_debt(rates_of(info, status))) is not None:
            return debt
        return State("free", f"{count(limit - status.held, 'permit is', 'permits are')} free.")
    return State("full", f"{_in_use(status, limit)}, and no request waits.")


def allowed_in(back_off: BackOff, limit: int | None) -> str:
    """What *back_off* leaves of *limit*, in a few words."""
    if not back_off.limit:
        return f"no permit for {duration(max(LEAST, back_off.seconds_left))}"
    return f"{back_off.limit:,}" + ("" if limit is None else f" of {limit:,}")


def _backing_off(status: SemaphoreStatus, back_off: BackOff, limit: int | None) -> str:
    text = allowed_in(back_off, limit)
    if back_off.limit:
        text = f"At most {text} permits may be in use, until the limit in force rises"
    text = f"{text[0].upper()}{text[1:]}."
    if begun := origin(back_off.age, back_off.by, duration):
        text += f" The back-off was started{begun}."
    return text + _waits(status)


def _paused(status: SemaphoreStatus) -> str:
    by = origin(status.set_limit_age, status.set_limit_by, duration)
    text = f"It was paused{by}. " if by else ""
    text += f"No permit is granted until it is resumed.{_waits(status)}"
    if status.held:
        text += f" {count(status.held, 'permit is', 'permits are')} still held."
    return text


def _waits(status: SemaphoreStatus) -> str:
    waits = count(status.waiting, "request waits", "requests wait")
    return f" {waits}." if status.waiting else ""


def _waiting(info: SemaphoreInfo, status: SemaphoreStatus, limit: int | None) -> State:
    free = 0 if limit is None else limit - status.held
    if free <= 0:
        after = ""
        measured = status.usual_hold is not None and not any(map(is_unrefreshed, status.holders))
        if status.retry_after and limit and measured:
            after = f" A new request would wait {_about(status.retry_after)}."
        return State("queuing", f"{_in_use(status, limit or 0)}.{after}")
    rates = rates_of(info, status)
    debt = _in_debt(rates)
    waits_of_keys = {waiter.key: None for waiter in status.waiters if waiter.key is not None}
    waits_of_keys |= {key.key: None for key in status.keys if key.waiting}
    # With a free permit, a new request only waits behind one that its key does not delay.
    if info.keyed and not status.retry_after and debt is None:
        full = [_full_key(status, key) for key in waits_of_keys]
        who = ", ".join(full[:NAMED]) + (", …" if len(full) > NAMED else "")
        text = "Permits are free, but the keys of the waiting requests are full"
        return State("keys full", f"{text}: {who}." if who else f"{text}.", who)
    for head in status.waiters:
        why = _blocked(info, status, head, free)
        if why is not None and _fits_its_key(status, head):
            behind = " The requests behind it wait too." if status.waiting > 1 else ""
            if not info.fair:
                behind = " Smaller requests pass it."
            who = name_of(head.client)
            return State("blocked", f"The first request, of {who}, {why}{behind}", who)
        if not info.keyed:
            break
    return debt or _used_up(rates) or State("queuing", "Permits are free for the next requests.")


def _in_debt(rates: Mapping[str, RateStatus]) -> State | None:
    """The state while a rate is in debt, in which no request can begin. None without a debt."""
    seconds = {name: -rate.available * rate.per / rate.amount for name, rate in rates.items()}
    who = max(seconds, key=seconds.__getitem__, default="")
    if seconds.get(who, 0.0) < LEAST:
        return None
    debt, wait = amount(-rates[who].available), duration(seconds[who])
    text = f"Permits are free, but {who} is {debt} in debt, so no request can begin for {wait}."
    return State("rate used up", text, who)


def _used_up(rates: Mapping[str, RateStatus]) -> State | None:
    """The state while a rate alone can hold the queue up. None if each is full."""
    spent = [name for name, rate in rates.items() if rate.full_in]
    if not spent:
        return None
    who = min(spent, key=lambda name: rates[name].available / rates[name].burst)
    rate = rates[who]
    left = f"{amount(max(0.0, rate.available))} of {amount(rate.burst)}"
    text = "Permits are free, but a rate does not cover the cost of the first request"
    full = f"{who} has {left} left, and is full in {duration(rate.full_in)}"
    return State("rate used up", f"{text}: {full}.", who)


def _blocked(info: SemaphoreInfo, status: SemaphoreStatus, head: Waiter, free: int) -> str | None:
    """Why *head* does not fit although permits are free. None if the limit is not the reason."""
    own = head.client.limit
    lower = own is not None and status.set_limit is None and own < max(info.declared, default=0)
    if lower and own is not None and status.held + head.permits > own:
        held = count(status.held, "permit is", "permits are")
        return f"declares a limit of {own:,}, and {held} in use."
    if head.permits > free:
        return f"needs {head.permits:,} permits, and {count(free, 'is', 'are')} free."
    return None


def _fits_its_key(status: SemaphoreStatus, waiter: Waiter) -> bool:
    own = [key for key in status.keys if key.key == waiter.key]
    return all(
        key.limit is None or key.held + waiter.permits <= in_force(key.limit, key.back_off)
        for key in own
    )


def _full_key(status: SemaphoreStatus, name: str) -> str:
    for key in status.keys:
        if key.key == name and key.set_limit == 0:
            return f"{name} (paused)"
        if key.key == name and key.back_off is not None:
            return f"{name} (backing off)"
    return name


def _about(seconds: float) -> str:
    return f"about {duration(seconds)}" if seconds >= LEAST else f"less than {LEAST} s"


def _in_use(status: SemaphoreStatus, limit: int) -> str:
    if status.held > limit:
        are = count(status.held, "permit is", "permits are")
        return f"{are} in use, {status.held - limit:,} above the limit of {limit:,}"
    if not limit:
        return "The clients declare a limit of 0"
    return "The only permit is in use" if limit == 1 else f"All {limit:,} permits are in use"


def limit_of(info: SemaphoreInfo, status: SemaphoreStatus) -> int | None:
    """The set limit, or else the highest that a client declares. None if unknown."""
    if status.set_limit is not None:
        return min(status.set_limit, len(info.slots)) if info.slots else status.set_limit
    return max(info.declared, default=None)


def rates_of(info: SemaphoreInfo, status: SemaphoreStatus) -> Mapping[str, RateStatus]:
    """The rates of which a client says how much they are."""
    return {name: rate for name, rate in status.rates.items() if info.rates.get(name)}


def name_of(client: Client) -> str:
    """A process as an operator knows it."""
    return client.label or f"{client.host or 'a process'}, pid {client.pid or '?'}"


def count(number: int, one: str, many: str) -> str:
    """*number* with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def amount(number: float) -> str:
    """*number* of what a rate counts, with three digits or more."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def duration(seconds: float) -> str:
    """*seconds* in a suitable unit."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= LEAST / 2 else "0 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"
