"""The operation that reads a semaphore, and how its reply becomes what ``status()`` returns."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from redsem_async._core.config import MOST_PERMITS, Slot
from redsem_async._core.keys import Address
from redsem_async._core.lease import retry_after
from redsem_async._core.rates import Rate, rates_told

from .hub_info import facts_of
from .operations import Argument, Operation, encoded
from .replies import Ramp, key_of, limit_and_ramp, lowered, none_below_0, number_of, slots_of
from .views import (
    BackOff,
    Client,
    Holder,
    KeyStatus,
    RateStatus,
    SemaphoreStatus,
    Waiter,
    is_unrefreshed,
)

# When and by whom a limit was set, in what a script stores, or a back-off was begun.
_SET = re.compile(rb"\d+:\d*:(\d{1,16}):(.*)", re.DOTALL)
_BEGUN = re.compile(rb"-?\d+:(\d{1,16}):\d+:\d+:\d+:(.*)", re.DOTALL)


class Viewer(NamedTuple):
    """What the caller of a status declares, and knows of the time that permits are held.

    Attributes:
        limit, slots, lease: as in its `Terms`.
        usual_hold: seconds times permits, as this process measured it. None where it did not.
        key_limit: that it declares for a key.
        rates: that it declares, by their names.
    """

    limit: int = 0
    slots: Sequence[Slot] | None = None
    lease: float = 0.0
    usual_hold: float | None = None
    key_limit: Callable[[str], int | None] | None = None
    rates: Mapping[str, Rate] = {}


class StatusReply(NamedTuple):
    """The reply to a status.

    Attributes:
        blocked: whether a new request without a key waits behind others (fair).
        key_limits: number of keys whose limit is set.
    """

    status: SemaphoreStatus
    blocked: bool
    key_limits: int


@dataclass(slots=True)
class Status(Operation[StatusReply]):
    """Read how things stand, with at most *max_entries* holders, waiters and keys each.

    Attributes:
        after: the key after which to list keys. None for all.
        begin: with what the listed keys begin.
        viewer: as whom to see it.
    """

    script = "status"
    max_entries: int
    after: str | None = None
    viewer: Viewer = field(default=Viewer(), repr=False)
    begin: str = ""

    def arguments(self, address: Address) -> Sequence[Argument]:
        after = "" if self.after is None else encoded(self.after)
        of_keys = (after, encoded(self.begin)) if address.keyed else ()
        return (self.max_entries, *of_keys)

    def reply(self, raw: Sequence[Any], address: Address) -> StatusReply:
        viewer = self.viewer
        _, limited, held, waiting, now_us, hold_ms, holders, entries, hubs, *more = raw
        set_text, back_off_text, *more = more
        held, waiting, now_us = number_of(held), number_of(waiting), number_of(now_us)
        limited, ramp = limit_and_ramp(limited)
        set_limit = none_below_0(limited)
        limit = viewer.limit if set_limit is None else set_limit
        slots, keys, blocked, key_limits = b"", (), address.fair and waiting > 0, 0
        if address.slotted:
            slots, *more = more
        rates_text = b""
        if address.rated:
            rates_text, *more = more
        if address.keyed:
            keys, blocked, key_limits = more
        named: Sequence[Slot] = [unquote(slot) for slot in slots.decode().split(",") if slot]
        if viewer.slots is not None:
            limit = min(limit, viewer.limit)
            named = (*viewer.slots, *named[len(viewer.slots) :])
        clients = {
            hub: client_of(hub, description)
            for hub, description in _in_rows(hubs, _text_of, _readable)
        }

        declared = viewer.rates
        for each in clients.values():
            declared = declared or each.rates

        def client(identity: str) -> Client:
            hub = identity.partition(".")[0]
            return clients.get(hub) or Client(hub)

        def age(drawn: int) -> float:
            return _age(now_us, drawn)

        available = max(0, min(limit, limit if ramp is None else ramp.permits) - held)

        def key_status(
            key: str, held: int, waiting: int, told: Any, set_text: bytes, back_off_text: bytes
        ) -> KeyStatus:
            limited, ramp = limit_and_ramp(told)
            set_limit, declared = none_below_0(limited), viewer.key_limit
            of_key = set_limit
            if set_limit is None and declared is not None:
                of_key = declared(unquote(key))
            back_off = back_off_of(ramp, limit if of_key is None else of_key)
            back_off = _begun(back_off, back_off_text, now_us)
            of_keys = unquote(key), of_key, held, waiting, set_limit, back_off
            return KeyStatus(*of_keys, *_set_since(set_text, now_us))

        set_age, set_by = _set_since(set_text, now_us)
        back_off = _begun(back_off_of(ramp, limit), back_off_text, now_us)
        usual = viewer.usual_hold
        if usual is None and (told := none_below_0(number_of(hold_ms))) is not None:
            usual = told / 1000
        listed = tuple(
            Holder(
                id=identity,
                client=client(identity),
                age=age(number_of(token)),
                expires_in=left_ms / 1000,
                fencing_token=number_of(token),
                permits=number_of(permits),
                key=key_of(key),
                slots=tuple(named[slot] for slot in slots_of(own) if 0 <= slot < len(named)),
            )
            for identity, left_ms, facts in _in_rows(holders, _text_of, number_of, bytes)
            for token, permits, own, key in (facts.split(b":", 3),)
        )
        later = 0.0
        if blocked or not available:
            later = retry_after(waiting, lowered(limit, ramp), usual, None, viewer.lease)
            later += 0.0 if back_off is None else back_off.seconds_left
            later = max(later, _stalled_for(listed, held))
        rates = _rates_of(rates_text, declared, now_us)
        later = max(later, _rated_for(rates, [*map(_times_of, entries[::2])], waiting))
        status = SemaphoreStatus(
            name=address.name,
            limit=limit,
            held=held,
            available=available,
            waiting=waiting,
            holders=listed,
            waiters=tuple(
                Waiter(identity, client(identity), position, age(int(float(ticket))), permits, key)
                for position, (entry, ticket) in enumerate(_in_rows(entries, _text_of, float))
                for identity, permits, key in (_queued(*entry.split(":")),)
            ),
            set_limit=set_limit,
            retry_after=later,
            keys=tuple(
                key_status(*row)
                for row in _in_rows(keys, _text_of, number_of, number_of, _same, bytes, bytes)
            ),
            back_off=back_off,
            set_limit_age=set_age,
            set_limit_by=set_by,
            usual_hold=usual,
            rates=rates,
        )
        return StatusReply(status, bool(blocked), number_of(key_limits))


def _age(now_us: int, drawn: int) -> float:
    """Tokens and tickets are times of the clock, in microseconds."""
    return max(0.0, (now_us - drawn) / 1e6)


def _begun(back_off: BackOff | None, stored: bytes, now_us: int) -> BackOff | None:
    """*back_off* with when and by whom it began, as far as is known."""
    began_us, by = _origin(_BEGUN, stored)
    if back_off is None or began_us is None:
        return back_off
    return back_off._replace(age=_age(now_us, began_us), by=by)


def _set_since(stored: bytes, now_us: int) -> tuple[float | None, str | None]:
    """How long ago a limit was set, and by whom."""
    set_ms, by = _origin(_SET, stored)
    return None if set_ms is None else _age(now_us, 1000 * set_ms), by


def _stalled_for(holders: Sequence[Holder], held: int) -> float:
    """For how many seconds nothing is released, because nobody who holds refreshes."""
    unrefreshed = [holder for holder in holders if is_unrefreshed(holder)]
    if unrefreshed and sum(holder.permits for holder in unrefreshed) >= held:
        return unrefreshed[0].expires_in
    return 0.0


def _rates_of(stored: bytes, rates: Mapping[str, Rate], now_us: int) -> dict[str, RateStatus]:
    """The *rates* that the caller declares, by when the bucket of each is full."""
    full_at = [number_of(pair.partition(b":")[0]) for pair in stored.split(b"+") if pair]
    left = (max(0, at - now_us) / 1e6 for at in full_at or [0] * len(rates))
    found: dict[str, RateStatus] = {}
    for (name, rate), full_in in zip(rates.items(), left, strict=False):
        available = round(rate.most - full_in * rate.amount / rate.per, 6)
        found[name] = RateStatus(rate.amount, rate.per, rate.most, available, full_in)
    return found


def _times_of(entry: bytes) -> list[float]:
    """In how many seconds each rate allows what a request costs, by its text in the queue."""
    return [int(cost) / 1e6 for cost in re.findall(rb"(\d+)/", entry)]


def _rated_for(
    rates: Mapping[str, RateStatus], listed: Sequence[Sequence[float]], waiting: int
) -> float:
    """The seconds until the rates let a new request go.

    It is taken to cost the average of those listed, or nothing if none is.
    """
    waits = [0.0]
    for place, rate in enumerate(rates.values()):
        usual = sum(costs[place] for costs in listed) / max(1, len(listed))
        most = rate.burst * rate.per / rate.amount
        waits.append(rate.full_in + usual * waiting - max(0.0, most - usual))
    return max(waits)


def _origin(pattern: re.Pattern[bytes], stored: bytes) -> tuple[int | None, str | None]:
    """When, by the clock of the pattern, and by whom."""
    found = pattern.fullmatch(stored)
    if found is None:
        return None, None
    return int(found[1]), found[2].decode("utf-8", "replace") or None


def _in_rows(raw: Sequence[Any], *kinds: Callable[[Any], Any]) -> Iterator[Sequence[Any]]:
    """A flat list as rows, with one column of each kind."""
    columns = [map(kind, raw[place :: len(kinds)]) for place, kind in enumerate(kinds)]
    return zip(*columns, strict=True)


def _same(raw: Any) -> Any:
    return raw


def _text_of(raw: bytes) -> str:
    return raw.decode()


def _readable(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _queued(
    identity: str, _lease: str, _limit: str, permits: str, *tail: str
) -> tuple[str, int, str | None]:
    return identity, int(permits), key_of(tail[-1]) if tail and "/" not in tail[-1] else None


def back_off_of(ramp: Ramp | None, limit: int) -> BackOff | None:
    """The public form of a reply's back-off. None once its limit in force is not below *limit*."""
    if ramp is None or ramp.permits >= limit > 0:
        return None
    return BackOff(0.0 if ramp.permits else ramp.lasts_ms / 1000, ramp.permits)


def client_of(hub: str, description: str) -> Client:
    """The process of *hub*, as it described itself. A fact of a wrong type is unknown."""
    facts = facts_of(description)
    return Client(
        id=hub,
        label=_text(facts.get("label")),
        host=_text(facts.get("host")),
        pid=_count(facts.get("pid")),
        limit=_count(facts.get("limit")),
        key_limit=_count(facts.get("key_limit")),
        version=_text(facts.get("version")),
        lease=_seconds(facts.get("lease")),
        refresh_interval=_seconds(facts.get("refresh_interval")),
        rates=rates_told(facts.get("rates")),
    )


def _text(fact: object) -> str | None:
    return fact if isinstance(fact, str) else None


def _seconds(fact: object) -> float | None:
    if isinstance(fact, bool) or not isinstance(fact, int | float):
        return None
    return fact if 0 < fact < math.inf else None


def _count(fact: object) -> int | None:
    if isinstance(fact, bool) or not isinstance(fact, int):
        return None
    return fact if 0 <= fact <= MOST_PERMITS else None
