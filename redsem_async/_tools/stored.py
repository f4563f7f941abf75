"""What Redis stores of a semaphore, read with the user's own client. For tools, not for permits.

Every read is bounded, except that each process of a semaphore, and each set limit, has an entry.
"""

import re
import shlex
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from redis.asyncio import RedisCluster
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from redsem_async._core.config import Clock, slots_of
from redsem_async._core.errors import BackendError
from redsem_async._core.keys import MODES, Mode
from redsem_async._protocol.views import KeyStatus
from redsem_async._redis.scripts import layout

READ_ERRORS = (RedisError, RedisClusterException, OSError)
"""Errors of Redis, and of the connection to it, when the user's own client reads."""

SCANNED = 1000  # keys that one SCAN looks at, about
_SET = re.compile(r"(\d+):\d*:(\d{1,16}):(.*)", re.DOTALL)  # a limit, since when, and by whom
_KIND = re.compile(rf"({'|'.join(map(re.escape, MODES))}) (server|local)(?: ([\w.+-]+))?\Z")


@dataclass(frozen=True, slots=True)
class Stored:
    """What Redis stores of a semaphore, as `SemaphoreInfo` has it."""

    mode: Mode | None
    clock: Clock | None
    set_limit: int | None
    hubs: Mapping[str, str]  # what each live hub reports, or else the last known ones, by id
    slots: tuple[str, ...] = ()
    dead_in: Mapping[str, float] = field(default_factory=dict[str, float])
    rates: tuple[str, ...] = ()


async def stored(client: Any, prefix: str, name: str) -> Stored | None:
    """What Redis stores of *name*. None if there is no such semaphore.

    Raises:
        BackendError: the keys were not written by this library.
    """
    try:
        return await _stored(client, prefix, name)
    except (ResponseError, ValueError) as error:
        if isinstance(error, ResponseError) and not str(error).startswith("WRONGTYPE"):
            raise
        raise foreign(prefix, name) from error


def foreign(prefix: str, name: str) -> BackendError:
    """The error of keys that another program has written, with what removes them."""
    keys = shlex.join(f"{prefix}:{{{name}}}:{kind}" for kind in ("meta", "limit", "hubs"))
    text = f"its keys do not hold a semaphore. To remove them: redis-cli UNLINK {keys}"
    return BackendError(name, text)


async def _stored(client: Any, prefix: str, name: str) -> Stored | None:
    stem = f"{prefix}:{{{name}}}"
    limit: bytes | str | None = await client.get(f"{stem}:limit")
    rows: list[tuple[bytes | str, float]]
    rows = await client.zrange(f"{stem}:hubs", 0, -1, withscores=True)
    hubs = {as_text(hub): until for hub, until in rows}
    fields = ["mode", "layout", "lead", "slots", "back_off", *(f"{hub}:client" for hub in hubs)]
    meta = await _fields(client, f"{stem}:meta", fields)
    if ("mode" in meta or "layout" in meta) and meta.get("layout") != str(layout()):
        return Stored(None, None, None, {})
    kind = _KIND.match(meta.get("mode", ""))
    if kind is None and limit is None:
        # Of a deleted one only the numbers used by its hubs remain. Limits of keys have no expiry.
        known = await client.exists(f"{stem}:key-limits", f"{stem}:ramps")
        return Stored(None, None, None, {}) if known or "back_off" in meta else None
    mode, clock = (cast("Mode", kind[1]), cast("Clock", kind[2])) if kind else (None, None)
    now = await _clock_ms(client, clock, meta)
    slots: tuple[str, ...] = ()
    if mode is not None and mode.endswith("+slots"):
        slots = _slots(meta.get("slots", ""))
    who = {hub: meta[f"{hub}:client"] for hub in hubs if f"{hub}:client" in meta}
    dead_in = {hub: (hubs[hub] - now) / 1000 for hub in who if hubs[hub] > now}
    known = {hub: facts for hub, facts in who.items() if hub in (dead_in or who)}
    # What was set before a pause, when and by whom follows.
    set_limit = None if limit is None else int(as_text(limit).partition(":")[0])
    rates = tuple(kind[3].split("+")) if kind and kind[3] else ()
    return Stored(mode, clock, set_limit, known, slots, dead_in, rates)


async def idle_keys(
    client: Any, prefix: str, name: str, clock: Clock | None
) -> AsyncGenerator[KeyStatus]:
    """The keys of *name* whose limit is set, although no request has them."""
    stem = f"{prefix}:{{{name}}}"
    limits: dict[bytes | str, bytes | str] = await client.hgetall(f"{stem}:key-limits")
    if not limits:
        return
    used: list[float | None] = await client.zmscore(f"{stem}:uses", sorted(limits))
    now = await _clock_ms(client, clock, {})
    for (key, text), permits in zip(sorted(limits.items()), used, strict=True):
        if permits is None and (found := _SET.match(as_text(text))):
            limit, age = int(found[1]), max(0.0, now - int(found[2])) / 1000
            of_key = unquote(as_text(key)), limit, 0, 0, limit, None
            yield KeyStatus(*of_key, set_limit_age=age, set_limit_by=found[3] or None)


def _slots(listed: str) -> tuple[str, ...]:
    """The slots of a list. ValueError where no client can have declared them."""
    slots = tuple(unquote(slot) for slot in listed.split(",") if slot)
    return tuple(map(str, slots_of(slots))) if slots else ()


async def _fields(client: Any, key: str, fields: Sequence[str]) -> dict[str, str]:
    """The *fields* that the hash has."""
    values: list[bytes | str | None] = await client.hmget(key, fields)
    pairs = zip(fields, values, strict=True)
    return {field: as_text(value) for field, value in pairs if value is not None}


async def _clock_ms(client: Any, clock: Clock | None, meta: Mapping[str, str]) -> float:
    """The time by the semaphore's clock, which does not go back when the server's does."""
    if clock == "local":
        return time.time() * 1000
    seconds: int
    micros: int
    seconds, micros = await client.time()
    return seconds * 1000 + (micros + float(meta.get("lead", 0))) / 1000


async def scanned_names(client: Any, prefix: str, pattern: str = "*") -> AsyncGenerator[list[str]]:
    """The names under *prefix* that match *pattern*, a glob as in Redis. A list for each SCAN.

    A name may be in several lists, and a list may be empty.
    """
    literal = re.sub(r"([][*?\\])", r"\\\1", prefix)
    match = f"{literal}:{{{pattern}}}:*"
    key_of = re.compile(re.escape(prefix) + r":\{([^{}]+)\}:(meta|limit|key-limits)\Z")
    nodes: list[Any] = [None]
    if isinstance(client, RedisCluster):
        _ = await client.initialize()
        nodes = [*client.get_primaries()]
    for node in nodes:
        where = {} if node is None else {"target_nodes": node}
        cursor: Any = 0
        while True:
            untyped: Any = client  # it may be one of a cluster
            cursor, keys = await untyped.scan(cursor, match=match, count=SCANNED, **where)
            if isinstance(cursor, dict):  # of a cluster, by the name of the node
                [cursor] = cast("dict[str, int]", cursor).values()
            found = (key_of.match(as_text(key)) for key in keys)
            yield [name[1] for name in found if name]
            if not int(cursor):
                break


def as_text(value: bytes | str) -> str:
    """A reply as a string, whether or not the client decodes replies."""
    return value if isinstance(value, str) else value.decode(errors="replace")
