"""The reply to a status. It is the longest of all, so it has a module of its own."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from redsem_async._core.keys import Address
from redsem_async._protocol.replies import (
    HeldEntry,
    KeyEntry,
    QueueEntry,
    Ramp,
    StatusReply,
)

MAX_EXACT = 2**53  # Lua tells every whole number up to this one from the next


def status_reply(raw: Sequence[Any], address: Address) -> StatusReply:
    """Return the reply to a status. *raw* begins with the tag."""
    _, cap, held, waiting, now_us, hold_ms, holders, entries, hubs, _, _, *more = raw
    cap, ramp = limit_and_ramp(cap)
    keys: Sequence[Any] = ()
    blocked, key_limits, slots = address.fair and waiting > 0, 0, b""
    if address.slotted:
        slots, *more = more
    if address.keyed:
        keys, blocked, key_limits = more
    return StatusReply(
        set_limit=None if cap < 0 else cap,
        held=number(held),
        waiting=number(waiting),
        now_us=number(now_us),
        holders=[
            _holder(identity.decode(), left, facts)
            for identity, left, facts in zip(*(holders[i::3] for i in range(3)), strict=True)
        ],
        queue=[
            _waiter(entry.decode(), value)
            for entry, value in zip(entries[::2], entries[1::2], strict=True)
        ],
        hubs={
            hub.decode(): description.decode("utf-8", "replace")
            for hub, description in zip(hubs[::2], hubs[1::2], strict=True)
        },
        keys=[
            KeyEntry(unquote(key.decode()), use, count, None if most < 0 else most, of_key)
            for key, *counts, told in zip(*(keys[i::4] for i in range(4)), strict=True)
            for use, count in (map(number, counts),)
            for most, of_key in (limit_and_ramp(told),)
        ],
        slots=tuple(unquote(slot) for slot in slots.decode().split(",") if slot),
        blocked=bool(blocked),
        key_limits=number(key_limits),
        hold_ms=None if number(hold_ms) < 0 else number(hold_ms),
        ramp=ramp,
    )


def limit_and_ramp(told: Any) -> tuple[int, Ramp | None]:
    """A limit as a script writes it, and the back-off that runs, if any."""
    if isinstance(told, int | bytes):
        return number(told), None
    limit, lasts_ms, permits = map(number, told)
    return limit, Ramp(lasts_ms, permits)


def number(raw: Any) -> int:
    """A whole number as scripts have it. ValueError for anything else."""
    value = int(raw) if isinstance(raw, int | bytes) else None
    if value is None or abs(value) > MAX_EXACT:
        raise ValueError("a script tells no such number")
    return value


def _holder(identity: str, left: Any, facts: bytes) -> HeldEntry:
    token, permits, slots, key = facts.split(b":", 3)
    held = number(left), number(token), number(permits)
    return HeldEntry(identity, *held, key_of(key), slots_of(slots))


def _waiter(entry: str, value: Any) -> QueueEntry:
    identity, _, _, permits, *tail = entry.split(":")
    key = key_of(tail[-1]) if tail else None
    return QueueEntry(identity, int(float(value)), int(permits), key)


def key_of(key: bytes | str | None) -> str | None:
    """A key as it was given. None for none."""
    if not key:
        return None
    return unquote(key if isinstance(key, str) else key.decode())


def slots_of(raw: bytes) -> tuple[int, ...]:
    """The slots of a permit, from 'index+index'. One that is too high is no slot of any list."""
    return tuple(min(int(index), MAX_EXACT) for index in raw.split(b"+")) if raw else ()
