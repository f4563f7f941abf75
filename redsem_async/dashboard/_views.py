"""What a page is sent. Plain dicts for JSON, made from what the reader has read.

Names, labels, hosts and keys are strings from outside. The page writes them as text only.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from fnmatch import translate
from itertools import islice
from typing import Any

from redsem_async._protocol.views import (
    Client,
    Holder,
    KeyStatus,
    SemaphoreStatus,
    Waiter,
    is_unrefreshed,
)
from redsem_async._tools.changed import origin
from redsem_async._tools.discovery import (
    Process,
    SemaphoreInfo,
    process_of,
    processes_of,
)
from redsem_async._tools.states import (
    ATTENTION,
    allowed_in,
    duration,
    limit_of,
    rank,
    rates_of,
)

from ._history import EVENTS, KEPT, History
from ._reader import ENTRIES, Detail, Reader
from ._reading import Reading

Json = dict[str, Any]

ROWS = 50  # rows of a list, unless the page asks for more
MOST_ROWS = 500
MAX_CLIENTS = 200  # processes that a page lists
LONGEST_FILTER = 512
LONGEST_START = 100


def list_view(reader: Reader, words: str, rows: int) -> tuple[Json, list[str]]:
    """The semaphores whose names match *words*, trouble first, and the names that it shows."""
    matches = matcher(words)
    chosen = [reading for name, reading in reader.readings.items() if matches(name)]
    chosen.sort(key=lambda one: (*rank(one.info, one.status, one.state), one.info.name))
    shown = chosen[:rows]
    statuses = [reading.status for reading in chosen if reading.status is not None]
    attention = Counter(one.state.attention for one in chosen if one.state.attention)
    view: Json = {
        **_common(reader),
        "total": len(reader.readings),
        "matched": len(chosen),
        "held": sum(status.held for status in statuses),
        "waiting": sum(status.waiting for status in statuses),
        "attention": {why: attention[why] for why in ATTENTION if attention[why]},
        "rows": [_numbers(reading) for reading in shown],
    }
    return view, [reading.info.name for reading in shown]


def matcher(words: str) -> Callable[[str], bool]:
    """Whether a name has *words* in it, in any case, or matches it as a glob (``*``, ``?``)."""
    words = words.strip()[:LONGEST_FILTER]
    if not words:
        return lambda _: True
    if "*" in words or "?" in words:
        found = re.compile(translate(words), re.IGNORECASE).match
        return lambda name: found(name) is not None
    folded = words.casefold()
    return lambda name: folded in name.casefold()


def detail_view(reader: Reader, detail: Detail, *, whole_ids: bool) -> Json:
    """One semaphore in full. `found` is False if the name is not in use."""
    name = detail.name
    view = {**_common(reader), "name": name, "history": _history(reader, name)}
    if detail not in reader.details:
        return view | {"found": None}
    reading = reader.details[detail]
    if reading is None:
        history = reader.histories.get(name)
        return view | {"found": False, "lost": history and history.lost}
    view |= {"found": True, **_numbers(reading)}
    info, status = reading.info, reading.status
    stalled = {process_of(one.client) for one in reading.stalled.values()}
    view |= {
        "mode": info.mode,
        "clock": info.clock,
        "keyed": info.keyed,
        "slotted": info.slotted,
        "clients": _clients(reader, info, status, stalled),
        "moreClients": max(0, len(processes_of(info.clients)) - MAX_CLIENTS),
    }
    if status is None:
        return view
    return view | {
        "setOrigin": origin(status.set_limit_age, status.set_limit_by, duration),
        "holders": [_holder(reader, holder, whole=whole_ids) for holder in status.holders],
        "moreHolders": max(0, status.held - sum(h.permits for h in status.holders)),
        "waiters": [_waiter(reader, waiter, stalled) for waiter in status.waiters],
        "moreWaiters": max(0, status.waiting - len(status.waiters)),
        "rates": [{"name": rate, **of._asdict()} for rate, of in rates_of(info, status).items()],
        "keys": [_key(key) for key in status.keys],
        "moreKeys": len(status.keys) >= ENTRIES,
        "keysAfter": bool(detail.keys_after or detail.keys_begin),
    }


def _history(reader: Reader, name: str) -> Json:
    """The last minutes, with what happened to the semaphore and to Redis."""
    history = reader.histories.get(name, History())
    oldest = time.time() - KEPT
    events = [e for e in (*history.events, *reader.outages) if e.at >= oldest]
    events.sort(key=lambda e: e.at)  # those of one moment stay in their order
    return {"points": [*history.points], "events": events[-EVENTS:]}


def _common(reader: Reader) -> Json:
    outage = reader.outage
    return {
        "at": time.time(),
        "complete": reader.complete,
        "round": round(reader.round, 1),
        "outage": None if outage is None else asdict(outage),
        "refusal": reader.refusal,
    }


def _numbers(reading: Reading) -> Json:
    info, status = reading.info, reading.status
    state = reading.state
    row: Json = {
        "name": info.name,
        "class": info.class_name,
        "declared": list(info.declared),
        "setLimit": info.set_limit,
        "state": state.label,
        "attention": state.attention,
        "who": state.who,
        "words": state.text,
    }
    if status is None:
        return row
    return row | {
        "limit": limit_of(info, status),
        "setLimit": status.set_limit,
        "held": status.held,
        "waiting": status.waiting,
        "oldest": status.oldest_wait,
        "retryAfter": status.retry_after,
        "backOff": status.back_off and status.back_off.limit,
    }


def _holder(reader: Reader, holder: Holder, *, whole: bool) -> Json:
    return {
        "id": holder.id if whole else None,
        "short": short(holder.id),
        "client": _client(reader, holder.client),
        "age": holder.age,
        "left": holder.expires_in,
        "stalled": is_unrefreshed(holder),
        # As text, because a token has more digits than a page's numbers hold.
        "token": str(holder.fencing_token),
        "permits": holder.permits,
        "key": holder.key,
        "slots": ", ".join(map(str, holder.slots)),
    }


def _waiter(reader: Reader, waiter: Waiter, stalled: set[Process]) -> Json:
    return {
        "position": waiter.position + 1,
        "short": short(waiter.id),
        "client": _client(reader, waiter.client),
        "age": waiter.age,
        "stalled": process_of(waiter.client) in stalled,
        "permits": waiter.permits,
        "key": waiter.key,
    }


def _key(key: KeyStatus) -> Json:
    back_off = key.back_off
    return {
        "key": key.key,
        "held": key.held,
        "waiting": key.waiting,
        "limit": key.limit,
        "setLimit": key.set_limit,
        "setOrigin": origin(key.set_limit_age, key.set_limit_by, duration),
        "backOff": back_off and allowed_in(back_off, key.limit),
        "backOffOrigin": back_off and origin(back_off.age, back_off.by, duration),
    }


def short(identity: str) -> str:
    """Enough of an id to tell it from others, and too little to use it."""
    hub, dot, number = identity.partition(".")
    return f"{hub[:6]}…{dot}{number}"


def _client(reader: Reader, client: Client) -> Json:
    return {
        "hue": reader.hue_of(client),
        "id": client.id[:8],
        "label": client.label,
        "host": client.host,
        "pid": client.pid,
        "version": client.version,
        "lease": client.lease,
    }


def _clients(
    reader: Reader, info: SemaphoreInfo, status: SemaphoreStatus | None, stalled: set[Process]
) -> list[Json]:
    """The processes, what each declares, and what it holds of the listed permits."""
    held: Counter[Process] = Counter()
    waiting: Counter[Process] = Counter()
    if status is not None:
        for holder in status.holders:
            held[process_of(holder.client)] += holder.permits
        waiting.update(process_of(waiter.client) for waiter in status.waiters)
    return [
        {
            **_client(reader, client),
            "limit": client.limit,
            "held": held[process],
            "waiting": waiting[process],
            "stalled": process in stalled,
        }
        for process, client in islice(processes_of(info.clients).items(), MAX_CLIENTS)
    ]
