"""Output as tables for people and dicts for JSON."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.align import AlignMethod
from rich.console import Console, Group, RenderableType
from rich.text import Text

from redsem_async import Client, KeyStatus, RateStatus, SemaphoreStatus
from redsem_async._tools.changed import origin
from redsem_async._tools.discovery import LISTED_KEYS, ListEntry, SemaphoreInfo
from redsem_async._tools.states import (
    State,
    allowed_in,
    amount,
    duration,
    rank,
    rates_of,
    state_of,
)

from ._target import printable

BAR = 10  # characters
# Columns of a list that does not fit, in the order in which they go. The first go below their row.
SPARE = (("keys", "rates"), ("in use",), ("oldest wait",))
WIDE = 1000  # columns. The terminal wraps lines, so that ids can be copied

NUMBERS = ("limit", "held", "waiting", "permits", "token", "available", "burst")  # columns
DURATIONS = ("oldest wait", "held for", "expires in", "waits for", "full in")

Row = Mapping[str, str | Text]


def console(*, fitting: bool = False) -> Console:
    """A console of unlimited width, or *fitting* the terminal if there is one."""
    width = None if fitting and sys.stdout.isatty() else WIDE
    return Console(highlight=False, markup=False, width=width)


# -- for people


def list_table(rows: Sequence[ListEntry], width: int) -> RenderableType:
    """One row per semaphore, within *width*. Those that need attention come first."""
    keyed, rated = (any(getattr(row.info, what) for row in rows) for what in ("keyed", "rates"))
    found: list[tuple[tuple[int, ...], str, dict[str, str | Text]]] = []
    for info, status in ((row.info, row.status) for row in rows):
        known = status if isinstance(status, SemaphoreStatus) else None
        state, name = state_of(info, known), printable(info.name)
        oldest = None if known is None else known.oldest_wait
        row: dict[str, str | Text] = {
            "name": name,
            "state": _label(state),
            "in use": _bar(known, state) if known else "",
            "limit": limit_text(info),
            "held": f"{known.held:,}" if known else "?",
            "waiting": f"{known.waiting:,}" if known else "?",
            "oldest wait": "" if oldest is None else duration(oldest),
        }
        if keyed:
            row["keys"] = keys_text(known) if known else ""
        if rated:
            row["rates"] = rates_text(rates_of(info, known)) if known else ""
        found.append((rank(info, known, state), name, row))
    whole = [row for *_, row in sorted(found, key=lambda one: one[:2])]
    shown = whole
    for gone in SPARE:
        if max(line.cell_len for line in _table(shown)) > width:
            shown = [{name: row[name] for name in row if name not in gone} for row in shown]
    heading, *lines = _table(shown)
    parts = [heading]
    for line, row in zip(lines, whole, strict=True):
        below = [what for what in SPARE[0] if what not in shown[0] and row.get(what)]
        parts += [line, *(Text(f"   {what}: {row[what]}") for what in below)]
    return Group(*parts)


def _colour(state: State) -> str:
    """The dashboard's."""
    if state.attention is not None:
        return "red"
    return {"free": "green", "full": "blue"}.get(state.label, "yellow")


def _label(state: State) -> Text:
    who = f": {printable(state.who)}" if state.who else ""
    return Text(state.label + who, _colour(state))


def _bar(status: SemaphoreStatus, state: State) -> Text:
    """The share of the permits that is in use, in the colour of *state*."""
    if not status.limit:
        return Text()
    full = min(BAR, math.ceil(BAR * status.held / status.limit))
    return Text("█" * full, _colour(state)).append("░" * (BAR - full), "dim")


def keys_text(status: SemaphoreStatus) -> str:
    """The first keys, for one line."""
    shown = [
        f"{printable(key.key)} {key.held:,}/{'-' if key.limit is None else f'{key.limit:,}'}"
        + (f" +{key.waiting:,}" if key.waiting else "")
        for key in status.keys[:LISTED_KEYS]
    ]
    return ", ".join(shown) + (", ..." if len(status.keys) >= LISTED_KEYS else "")


def rates_text(rates: Mapping[str, RateStatus]) -> str:
    """What each rate has left of its burst, for one line."""
    left = {name: (amount(each.available), amount(each.burst)) for name, each in rates.items()}
    return ", ".join(f"{name} {'/'.join(each)}" for name, each in left.items())


def limit_text(info: SemaphoreInfo, origin: str = "", *more: str) -> str:
    """The effective limit. In brackets follow the *origin* of a set limit, and *more*."""
    if info.set_limit is None:
        return " or ".join(f"{limit:,}" for limit in info.declared) or "?"
    limit, what = info.set_limit, "set" if info.set_limit else "paused"
    if info.slots and len(info.slots) < limit:
        limit, what = len(info.slots), f"{limit:,} set"
    return f"{limit:,} ({'; '.join([what + origin, *more])})"


def headline(info: SemaphoreInfo, status: SemaphoreStatus) -> str:
    """The numbers of a semaphore, on one line."""
    by = origin(status.set_limit_age, status.set_limit_by, duration)
    declared = " or ".join(f"{limit:,}" for limit in info.declared)
    parts = [
        info.class_name or "not in use",
        *(["clock='local'"] if info.clock == "local" else []),
        f"limit {limit_text(info, by, *([f'clients declare {declared}'] if declared else []))}",
        *([f"key_limit={info.key_limit}"] if info.key_limit is not None else []),
        *(["share=True"] if info.shares else []),
        *([f"{len(info.slots):,} slots"] if info.slots else []),
        f"{status.held:,} held",
        f"{status.waiting:,} waiting",
    ]
    return printable(f"{info.name}: {', '.join(parts)}")


def line(info: SemaphoreInfo, status: SemaphoreStatus) -> str:
    """The status of a semaphore on one line."""
    state = state_of(info, status)
    return printable(f"{headline(info, status)}; {state.label}: {state.text}")


def details(info: SemaphoreInfo, status: SemaphoreStatus, *, ids: bool) -> RenderableType:
    """The status of a semaphore with its holders and waiters, and permit ids with *ids*."""
    state = state_of(info, status)
    first = _bar(status, state).append(" " * bool(status.limit))
    first.append(state.label, _colour(state)).append(f": {printable(state.text)}")
    parts: list[RenderableType] = [Text(headline(info, status)), first]
    if info.versions:
        seen = "" if info.dead_in else ", seen lately"
        parts.append(Text(f"versions{seen}: {versions_text(info.versions)}"))
    if rates := rates_of(info, status):
        parts += [Text(), *_rates(rates)]
    if status.keys:
        parts += [Text(), *_keys(status)]
    if status.holders:
        parts += [Text(), *_holders(info, status, ids=ids)]
        parts += _omitted(status.held - sum(h.permits for h in status.holders), "permits held")
    if status.waiters:
        parts += [Text(), *_waiters(info, status)]
        parts += _omitted(status.waiting - len(status.waiters), "requests waiting")
    return Group(*parts)


def versions_text(versions: Mapping[str, int]) -> str:
    """Versions of the library, and how many processes have each."""
    each = (f"{v} ({n:,} process{'' if n == 1 else 'es'})" for v, n in versions.items())
    return printable(", ".join(each))


def _rates(rates: Mapping[str, RateStatus]) -> list[Text]:
    return _table(
        {
            "rate": name,
            "allows": f"{amount(rate.amount)} per {rate.per:,g} s",
            "burst": amount(rate.burst),
            "available": amount(rate.available),
            "full in": duration(rate.full_in),
        }
        for name, rate in rates.items()
    )


def _keys(status: SemaphoreStatus) -> list[Text]:
    changes = [_changes(key) for key in status.keys]
    return _table(
        {
            "key": printable(key.key),
            "limit": "-" if key.limit is None else f"{key.limit:,}",
            "held": f"{key.held:,}",
            "waiting": f"{key.waiting:,}",
            **({"changed": changed} if any(changes) else {}),
        }
        for key, changed in zip(status.keys, changes, strict=True)
    )


def _changes(key: KeyStatus) -> str:
    """The set limit and the back-off of a key, with when and by whom."""
    found: list[str] = []
    if key.set_limit is not None:
        by = origin(key.set_limit_age, key.set_limit_by, duration)
        found.append(f"{'set' if key.set_limit else 'paused'}{by}")
    if key.back_off is not None:
        by = origin(key.back_off.age, key.back_off.by, duration)
        allowed = allowed_in(key.back_off, key.limit)
        found.append(f"backing off: {allowed}{by and f' (started{by})'}")
    return printable("; ".join(found))


def _holders(info: SemaphoreInfo, status: SemaphoreStatus, *, ids: bool) -> list[Text]:
    return _table(
        {
            "holder": client_text(holder.client),
            "held for": duration(holder.age),
            "expires in": duration(holder.expires_in),
            "permits": f"{holder.permits:,}",
            **({"key": printable(holder.key or "")} if info.keyed else {}),
            **({"slots": printable(", ".join(map(str, holder.slots)))} if info.slotted else {}),
            **({"token": str(holder.fencing_token), "id": holder.id} if ids else {}),
        }
        for holder in status.holders
    )


def _waiters(info: SemaphoreInfo, status: SemaphoreStatus) -> list[Text]:
    return _table(
        {
            "position": str(waiter.position + 1),
            "waiter": client_text(waiter.client),
            "waits for": duration(waiter.age),
            "permits": f"{waiter.permits:,}",
            **({"key": printable(waiter.key or "")} if info.keyed else {}),
        }
        for waiter in status.waiters
    )


def client_text(client: Client) -> str:
    """The label, host and process id of a client."""
    if client.host is None and client.label is None:
        return f"unknown client {client.id[:8]}..."
    target = f"{client.host or '?'}, pid {client.pid or '?'}"
    return printable(f"{client.label} ({target})" if client.label else target)


def _omitted(count: int, what: str) -> list[Text]:
    return [Text(f"... and {count:,} more {what} (--most lists them)")] if count > 0 else []


def _table(given: Iterable[Row]) -> list[Text]:
    """The heading and the lines of rows, which have the columns of the first."""
    rows = [*given]
    heading = {name: Text(name.upper(), "bold") for name in rows[0]}
    cells = [[Text().append(cell) for cell in row.values()] for row in (heading, *rows)]
    for name, column in zip(heading, zip(*cells, strict=True), strict=True):
        for cell in column:
            side: AlignMethod = "right" if name in (*NUMBERS, *DURATIONS) else "left"
            cell.align(side, max(other.cell_len for other in column))
    lines = [Text("   ").join(row) for row in cells]
    for line in lines:
        line.rstrip()
    return lines


# -- for programs


def as_dict(info: SemaphoreInfo, status: SemaphoreStatus, *, whole: bool) -> dict[str, Any]:
    """The status for ``--json``. With *whole*, holders, waiters and all listed keys."""
    keys, state = status.keys if whole else status.keys[:LISTED_KEYS], state_of(info, status)
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
        "oldest_wait": status.oldest_wait,
        "state": state.label,
        "attention": state.attention,
        "back_off": status.back_off and status.back_off._asdict(),
        "rates": {name: each._asdict() for name, each in rates_of(info, status).items()},
        "keys": [
            asdict(key) | {"back_off": key.back_off and key.back_off._asdict()} for key in keys
        ],
    }
    if whole:
        data |= {
            "holders": [asdict(holder) for holder in status.holders],
            "waiters": [
                asdict(waiter) | {"position": waiter.position + 1} for waiter in status.waiters
            ],
        }
    return data
