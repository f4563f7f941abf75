"""Output as tables for people and dicts for JSON."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from redsem_async import BackOff, Client, SemaphoreStatus
from redsem_async._integrations import changed
from redsem_async._integrations.discovery import LISTED_KEYS, ListEntry, SemaphoreInfo

from ._target import printable

BAR = 10  # characters
WIDE = 1000  # columns. The terminal wraps lines, so that ids can be copied


def console(*, fitting: bool = False) -> Console:
    """A console of unlimited width, or *fitting* the terminal if there is one."""
    width = None if fitting and sys.stdout.isatty() else WIDE
    return Console(highlight=False, markup=False, width=width)


# -- for people


def list_table(rows: Sequence[ListEntry]) -> RenderableType:
    """One row per semaphore."""
    keyed = any(row.info.keyed for row in rows)
    more = {"keys": "left"} if keyed else {}
    table = _table("name", "state", "in use", limit="right", held="right", waiting="right", **more)
    for row in rows:
        status = row.status
        held = waiting = "?"
        state, bar = Text("?"), Text()
        keys: list[str] = []
        if isinstance(status, SemaphoreStatus):
            held, waiting = f"{status.held:,}", f"{status.waiting:,}"
            state = _state(status)
            bar = _bar(status, state)
            keys = [keys_text(status)] if keyed else []
        name = printable(row.info.name)
        table.add_row(name, state, bar, limit_text(row.info), held, waiting, *keys)
    return table


def _state(status: SemaphoreStatus) -> Text:
    """The state in a word or two, with the dashboard's colours."""
    if status.limit == 0:
        return Text("paused", "yellow")
    if status.back_off is not None:
        return Text("backing off", "yellow")
    if status.held >= status.limit:
        return Text("full", "red" if status.waiting else "yellow")
    if status.waiting:
        return Text("queuing", "yellow")
    return Text("free", "green") if status.held else Text("idle", "dim")


def _bar(status: SemaphoreStatus, state: Text) -> Text:
    """The share of the permits that is in use, in the colour of *state*."""
    if not status.limit:
        return Text()
    full = min(BAR, math.ceil(BAR * status.held / status.limit))
    return Text("█" * full, state.style).append("░" * (BAR - full), "dim")


def keys_text(status: SemaphoreStatus) -> str:
    """The first keys, for one line."""
    shown = [
        f"{printable(key.key)} {key.held:,}/{'-' if key.limit is None else f'{key.limit:,}'}"
        + (f" +{key.waiting:,}" if key.waiting else "")
        for key in status.keys[:LISTED_KEYS]
    ]
    return ", ".join(shown) + (", ..." if len(status.keys) >= LISTED_KEYS else "")


def limit_text(info: SemaphoreInfo) -> str:
    """The effective limit, for a table."""
    if info.set_limit is not None:
        return _set_limit_text(info, info.set_limit)
    if not info.declared:
        return "?"
    return " or ".join(f"{limit:,}" for limit in info.declared)


def _set_limit_text(info: SemaphoreInfo, limit: int, origin: str = "") -> str:
    """A set limit, after the one in force, because there may be fewer slots."""
    if limit == 0:
        return f"0 (paused{origin})"
    if info.slots and len(info.slots) < limit:
        return f"{len(info.slots):,} ({limit:,} set{origin})"
    return f"{limit:,} (set{origin})"


def _origin(age: float | None, by: str | None) -> str:
    return printable(changed.origin(age, by, _about))


def headline(info: SemaphoreInfo, status: SemaphoreStatus) -> str:
    """The status of a semaphore on one line."""
    parts = [
        info.class_name or "not in use",
        *(["clock='local'"] if info.clock == "local" else []),
        f"limit {_limit_in_full(info, status)}",
        *([f"key_limit={info.key_limit}"] if info.key_limit is not None else []),
        *(["share=True"] if info.shares else []),
        *([f"{len(info.slots):,} slots"] if info.slots else []),
        f"{status.held:,} held",
        f"{status.waiting:,} waiting",
    ]
    line = f"{printable(info.name)}: {', '.join(parts)}"
    if status.back_off is not None:
        line += f"; {back_off_text(status.back_off)}"
    if status.waiting and status.retry_after and status.limit:
        line += f"; a new request would wait about {_about(status.retry_after)}"
    return line


def back_off_text(back_off: BackOff) -> str:
    """A countdown, and then the ramp."""
    origin = _origin(back_off.age, back_off.by)
    why = f"(back-off{origin and f' started{origin}'})"
    if back_off.seconds_left:
        return f"no permit for {_about(back_off.seconds_left)} more {why}"
    return f"{back_off.ramp:,} may be in use for now {why}"


def _limit_in_full(info: SemaphoreInfo, status: SemaphoreStatus) -> str:
    declared = " or ".join(f"{limit:,}" for limit in info.declared)
    if info.set_limit is None:
        return declared or "unknown"
    beside = f"; clients declare {declared}" if declared else ""
    origin = _origin(status.set_limit_age, status.set_limit_by)
    return f"{_set_limit_text(info, info.set_limit, origin)}{beside}"


def details(info: SemaphoreInfo, status: SemaphoreStatus, *, ids: bool) -> RenderableType:
    """The status of a semaphore with its holders and waiters, and permit ids with *ids*."""
    parts: list[RenderableType] = [Text(headline(info, status))]
    state = _state(status)
    parts.append(Text.assemble(_bar(status, state), " " if status.limit else "", state))
    if info.versions:
        parts.append(Text(f"versions: {versions_text(info.versions)}"))
    if status.keys:
        parts += [Text(), _keys(status)]
    if status.holders:
        parts += [Text(), _holders(info, status, ids=ids)]
        parts += _omitted(status.held - sum(h.permits for h in status.holders), "permits held")
    if status.waiters:
        parts += [Text(), _waiters(info, status)]
        parts += _omitted(status.waiting - len(status.waiters), "requests waiting")
    return Group(*parts)


def versions_text(versions: Mapping[str, int]) -> str:
    """Versions of the library, and how many processes have each."""
    each = (f"{v} ({n:,} process{'' if n == 1 else 'es'})" for v, n in versions.items())
    return printable(", ".join(each))


def _keys(status: SemaphoreStatus) -> Table:
    table = _table("key", limit="right", held="right", waiting="right")
    for key in status.keys:
        limit = "-" if key.limit is None else f"{key.limit:,}"
        if key.set_limit is not None:
            limit += " (set)" if key.set_limit else " (paused)"
        if key.back_off is not None:
            limit += " (backing off)"
        table.add_row(printable(key.key), limit, f"{key.held:,}", f"{key.waiting:,}")
    return table


def _holders(info: SemaphoreInfo, status: SemaphoreStatus, *, ids: bool) -> Table:
    facts = {"held_for": "right", "expires_in": "right", "permits": "right"}
    of_key = {"key": "left"} if info.keyed else {}
    of_slots = {"slots": "left"} if info.slotted else {}
    of_ids = {"token": "right", "id": "left"} if ids else {}
    table = _table("holder", **facts, **of_key, **of_slots, **of_ids)
    for holder in status.holders:
        more = [printable(holder.key or "")] if info.keyed else []
        if info.slotted:
            more.append(printable(", ".join(map(str, holder.slots))))
        if ids:
            more += [str(holder.fencing_token), holder.id]
        table.add_row(
            client_text(holder.client),
            duration(holder.age),
            duration(holder.expires_in),
            f"{holder.permits:,}",
            *more,
        )
    return table


def _waiters(info: SemaphoreInfo, status: SemaphoreStatus) -> Table:
    of_key = {"key": "left"} if info.keyed else {}
    table = _table("position", "waiter", waits_for="right", permits="right", **of_key)
    for waiter in status.waiters:
        table.add_row(
            str(waiter.position + 1),
            client_text(waiter.client),
            duration(waiter.age),
            f"{waiter.permits:,}",
            *([printable(waiter.key or "")] if info.keyed else []),
        )
    return table


def client_text(client: Client) -> str:
    """The label, host and process id of a client."""
    if client.host is None and client.label is None:
        return f"unknown client {client.id[:8]}..."
    target = f"{client.host or '?'}, pid {client.pid or '?'}"
    return printable(f"{client.label} ({target})" if client.label else target)


def _omitted(count: int, what: str) -> list[Text]:
    return [Text(f"... and {count:,} more {what} (--most lists them)")] if count > 0 else []


def _table(*names: str, **columns: Any) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in names:
        table.add_column(name.upper(), overflow="fold")
    for name, justify in columns.items():
        table.add_column(name.replace("_", " ").upper(), justify=justify, overflow="fold")
    return table


def _about(seconds: float) -> str:
    """*seconds*, rounded, because they are an estimate."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{round(seconds / 60)} min" if seconds < 3600 else duration(seconds)


def duration(seconds: float) -> str:
    """*seconds* in suitable units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


# -- for programs


def _back_off_dict(back_off: BackOff | None) -> dict[str, Any] | None:
    return None if back_off is None else back_off._asdict()


def as_dict(info: SemaphoreInfo, status: SemaphoreStatus, *, whole: bool) -> dict[str, Any]:
    """The status for ``--json``. With *whole*, holders, waiters and all listed keys."""
    keys = status.keys if whole else status.keys[:LISTED_KEYS]
    data: dict[str, Any] = {
        "name": info.name,
        "mode": info.mode,
        "class": info.class_name,
        "clock": info.clock,
        "limit": info.limit,
        "set_limit": info.set_limit,
        "set_limit_age": status.set_limit_age,
        "set_limit_by": status.set_limit_by,
        "declared": list(info.declared),
        "key_limit": info.key_limit,
        "slots": list(info.slots),
        "versions": list(info.versions),
        "held": status.held,
        "waiting": status.waiting,
        "retry_after": status.retry_after,
        "back_off": _back_off_dict(status.back_off),
        "keys": [asdict(key) | {"back_off": _back_off_dict(key.back_off)} for key in keys],
    }
    if whole:
        data |= {
            "holders": [asdict(holder) for holder in status.holders],
            "waiters": [
                asdict(waiter) | {"position": waiter.position + 1} for waiter in status.waiters
            ],
        }
    return data
