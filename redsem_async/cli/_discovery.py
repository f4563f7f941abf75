"""Which semaphores there are, and what Redis keeps of each: mode, clock, limits, clients."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.exceptions import ResponseError

from redsem_async import (
    AnySemaphore,
    BackendError,
    Client,
    FairSemaphore,
    Semaphore,
    SemaphoreError,
    SemaphoreStatus,
)
from redsem_async._api.status import client_of
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode

from ._target import as_text

BATCH = 100  # semaphores that are asked about together
_KIND = re.compile(r"(fair|zset) (server|local)\Z")


@dataclass(frozen=True, slots=True)
class SemaphoreInfo:
    """A semaphore that Redis knows of.

    Attributes:
        name: of it.
        mode: None where nothing but a set limit is kept: the next to use it decides.
        clock: likewise.
        set_limit: the limit that was set, if any.
        clients: the processes that use it, or did so a moment ago.
    """

    name: str
    mode: Mode | None = None
    clock: Clock | None = None
    set_limit: int | None = None
    clients: tuple[Client, ...] = ()

    @property
    def declared(self) -> tuple[int, ...]:
        """The limits that its clients declare, each once."""
        limits = {client.limit for client in self.clients if client.limit is not None}
        return tuple(sorted(limits))

    @property
    def limit(self) -> int | None:
        """The limit in force, if it is one for all and known."""
        if self.set_limit is not None:
            return self.set_limit
        return self.declared[0] if len(self.declared) == 1 else None

    def semaphore(self, client: Any, prefix: str) -> AnySemaphore:
        """The semaphore itself, to be asked and told: whatever its mode and clock."""
        kind = Semaphore if self.mode == "zset" else FairSemaphore
        return kind(
            client,
            self.name,
            max(self.declared, default=0),
            clock=self.clock or "server",
            prefix=prefix,
            label="redsem-async",
        )


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A semaphore, and how it stands; or why that is not known."""

    info: SemaphoreInfo
    status: SemaphoreStatus | SemaphoreError


async def find(client: Any, prefix: str, name: str) -> SemaphoreInfo | None:
    """What Redis knows of *name*; None for nothing.

    Raises:
        BackendError: it is nothing that a client of this library wrote.
    """
    try:
        return await _find(client, prefix, name)
    except (ResponseError, ValueError) as error:
        if isinstance(error, ResponseError) and not str(error).startswith("WRONGTYPE"):
            raise
        raise BackendError(name, f"its keys are not a semaphore's: {error}") from error


async def _find(client: Any, prefix: str, name: str) -> SemaphoreInfo | None:
    stem = f"{prefix}:{{{name}}}"
    limit: bytes | str | None = await client.get(f"{stem}:limit")
    hubs: list[bytes | str] = await client.zrange(f"{stem}:hubs", 0, -1)
    facts = [f"{as_text(hub)}:{fact}" for hub in hubs for fact in ("who", "until")]
    meta = await _fields(client, f"{stem}:meta", ["mode", "ahead", *facts])
    kind = _KIND.match(meta.get("mode", ""))
    if kind is None and limit is None:
        return None  # after a clear, the numbers that its hubs have used are kept for a while
    mode, clock = (cast("Mode", kind[1]), cast("Clock", kind[2])) if kind else (None, None)
    now = await _clock_ms(client, clock, meta)
    return SemaphoreInfo(
        name, mode, clock, None if limit is None else int(limit), _clients(meta, now)
    )


async def _fields(client: Any, key: str, fields: Sequence[str]) -> dict[str, str]:
    """What the hash has of *fields*."""
    values: list[bytes | str | None] = await client.hmget(key, fields)
    pairs = zip(fields, values, strict=True)
    return {field: as_text(value) for field, value in pairs if value is not None}


async def _clock_ms(client: Any, clock: Clock | None, meta: Mapping[str, str]) -> float:
    """What time it is for the semaphore: its clock does not go back where the server's does."""
    if clock == "local":
        return time.time() * 1000
    seconds: int
    micros: int
    seconds, micros = await client.time()
    return seconds * 1000 + (micros + float(meta.get("ahead", 0))) / 1000


def _clients(meta: Mapping[str, str], now: float) -> tuple[Client, ...]:
    """Those that count as alive; where there is none, those that were the last."""
    known: list[tuple[bool, Client]] = []
    for field, who in meta.items():
        hub, _, kind = field.partition(":")
        if kind == "who":
            alive = float(meta.get(f"{hub}:until", 0)) > now
            known.append((alive, client_of(hub, who)))
    living = [client for alive, client in known if alive]
    return tuple(living or (client for _, client in known))


async def names(client: Any, prefix: str, pattern: str = "*") -> list[str]:
    """The names under *prefix* that match *pattern*, as Redis matches, in order."""
    literal = re.sub(r"([][*?\\])", r"\\\1", prefix)
    key_of = re.compile(re.escape(prefix) + r":\{([^{}]+)\}:(meta|limit)\Z")
    info: set[str] = set()
    async for key in client.scan_iter(match=f"{literal}:{{{pattern}}}:*", count=1000):
        if matched := key_of.match(as_text(key)):
            info.add(matched[1])
    return sorted(info)


async def list_entries(client: Any, prefix: str, wanted: Sequence[str]) -> list[ListEntry]:
    """How the semaphores of those names stand, one moment for each."""
    rows: list[ListEntry] = []
    for start in range(0, len(wanted), BATCH):
        some = wanted[start : start + BATCH]
        asked = await asyncio.gather(*(_list_entry(client, prefix, name) for name in some))
        rows += [row for row in asked if row is not None]
    return rows


async def _list_entry(client: Any, prefix: str, name: str) -> ListEntry | None:
    info: SemaphoreInfo | None = SemaphoreInfo(name)
    try:
        info = await find(client, prefix, name)
        if info is None:  # meanwhile
            return None
        return ListEntry(info, await info.semaphore(client, prefix).status(max_entries=0))
    except SemaphoreError as error:
        return ListEntry(info or SemaphoreInfo(name), error)
