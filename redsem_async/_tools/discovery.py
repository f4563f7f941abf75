"""Finds semaphores in Redis, with the class, the clock, the limits and the clients of each."""

import asyncio
import contextlib
import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from redsem_async._api.classes import FairSemaphore, Semaphore
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.config import MOST_SLOTS, Clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.keys import Mode
from redsem_async._core.rates import Rate
from redsem_async._protocol.status import client_of
from redsem_async._protocol.views import Client, SemaphoreStatus

from .stored import READ_ERRORS, foreign, idle_keys, scanned_names, stored

BATCH = 100  # semaphores queried concurrently
SUGGESTION_TIMEOUT = 1.0  # seconds to search for a similar name
MAX_COMPARED = 10_000  # names compared with a misspelt one
LISTED_KEYS = 5  # for each semaphore in a list of them


@dataclass(frozen=True, slots=True)
class SemaphoreInfo:
    """What Redis stores of a semaphore.

    Attributes:
        name: of the semaphore.
        mode: None if Redis stores only a set limit, because the next client decides the mode. Or
            if the name is in use in another layout, so that any command raises `LayoutMismatch`.
        clock: None in the same cases.
        set_limit: the limit set by an operator, if any.
        clients: the processes that use it. If there is none, those that used it last. A process
            occurs more than once if it was idle, or uses the name by several clients.
        slots: the longest list of slots that a client declares, as strings.
        dead_in: by the id of a process, for how many seconds it counts as alive without another
            sign of life.
        rates: each as the last client declares it, in the order of names. None if no client does,
            because a debt outlives its clients.
    """

    name: str
    mode: Mode | None = None
    clock: Clock | None = None
    set_limit: int | None = None
    clients: tuple[Client, ...] = ()
    slots: tuple[str, ...] = ()
    dead_in: Mapping[str, float] = field(default_factory=dict[str, float])
    rates: Mapping[str, Rate | None] = field(default_factory=dict[str, Rate | None])

    @property
    def fair(self) -> bool:
        """Whether requests stand in a queue."""
        return self.mode is None or self.mode.startswith("fair")

    @property
    def shares(self) -> bool:
        """Whether the overall limit is shared between keys."""
        return self.mode is not None and "+share" in self.mode

    @property
    def keyed(self) -> bool:
        """Whether requests may have a key."""
        return self.shares or (self.mode is not None and "+keys" in self.mode)

    @property
    def slotted(self) -> bool:
        """Whether permits stand for slots."""
        return self.mode is not None and self.mode.endswith("+slots")

    @property
    def key_limit(self) -> int | None:
        """The limit that all clients declare for each key. None if there is no such limit."""
        limits = {client.key_limit for client in self.clients}
        return limits.pop() if len(limits) == 1 else None

    @property
    def declared(self) -> tuple[int, ...]:
        """The distinct limits that the clients declare."""
        limits = {client.limit for client in self.clients if client.limit is not None}
        return tuple(sorted(limits))

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the library, and how many processes have each."""
        return versions_of(self.clients)

    @property
    def class_name(self) -> str | None:
        """The class that uses this mode. None if the mode is unknown."""
        return None if self.mode is None else self._class.__name__

    @property
    def limit(self) -> int | None:
        """The effective limit. None if it is unknown or differs between clients."""
        if self.set_limit is not None:
            return min(self.set_limit, len(self.slots)) if self.slots else self.set_limit
        return self.declared[0] if len(self.declared) == 1 else None

    def semaphore(
        self, client: Any, prefix: str, *, keyed: bool = False, label: str | None = "redsem-async"
    ) -> AnySemaphore:
        """A semaphore object with this name, mode, clock and rates.

        With *keyed*, one with keys where Redis does not know the mode.
        """
        if keyed and self.mode is None:
            return replace(self, mode="fair+keys").semaphore(client, prefix, label=label)
        most = max(self.declared, default=0)
        slots: Sequence[str | int] | None = None
        if self.slotted:  # numbers where Redis has lost the list
            slots = self.slots or range(min(max(most, 1), MOST_SLOTS))
        rates = {rate: own or Rate(1) for rate, own in self.rates.items()}
        rated: dict[str, Any] = {"rate": rates} if rates else {}
        make = self._keyed_class if self.keyed else self._class
        return make(
            client,
            self.name,
            most if slots is None else None,
            slots=slots,
            clock=self.clock or "server",
            prefix=prefix,
            label=label,
            **rated,
        )

    @property
    def _class(self) -> type[Semaphore | FairSemaphore]:
        return FairSemaphore if self.fair else Semaphore

    @property
    def _keyed_class(self) -> Callable[..., FairSemaphore]:
        key_limit = self.key_limit
        if key_limit is None and not self.shares:
            return partial(FairSemaphore, key_limit=cast("Callable[[str], int]", _unknown))
        return partial(FairSemaphore, key_limit=key_limit, share=self.shares)


def versions_of(clients: Iterable[Client]) -> dict[str, int]:
    """The versions of the library that *clients* say they have, and how many processes each."""
    known = processes_of(client for client in clients if client.version)
    return dict(sorted(Counter(client.version or "" for client in known.values()).items()))


Process = tuple[str, int] | str


def process_of(client: Client) -> Process:
    """Host and pid of *client*, because its id changes while it is idle. The id without them."""
    if client.host is None or client.pid is None:
        return client.id
    return client.host, client.pid


def processes_of(clients: Iterable[Client]) -> dict[Process, Client]:
    """The last one of *clients* for each process."""
    return {process_of(client): client for client in clients}


def _unknown(_: str) -> None:
    """The clients' own limit of a key. No request that needs it is made here."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A semaphore and its status, or the error of asking for it."""

    info: SemaphoreInfo
    status: SemaphoreStatus | SemaphoreError


async def find(client: Any, prefix: str, name: str) -> SemaphoreInfo | None:
    """What Redis stores of *name*. None if there is no such semaphore.

    Raises:
        BackendError: the keys were not written by this library.
    """
    found = await stored(client, prefix, name)
    if found is None:
        return None
    clients = tuple(client_of(hub, who) for hub, who in found.hubs.items())
    return SemaphoreInfo(
        *(name, found.mode, found.clock, found.set_limit, clients, found.slots),
        dead_in=found.dead_in,
        rates={rate: next(declared(clients, rate), None) for rate in found.rates},
    )


async def status_of(
    client: Any, prefix: str, info: SemaphoreInfo, most: int, after: str | None = None
) -> SemaphoreStatus:
    """The status of a semaphore, and after the keys in use those that only have a set limit."""
    status = await info.semaphore(client, prefix).status(max_entries=most, keys_after=after)
    if len(status.keys) < most:
        idle = [key async for key in idle_keys(client, prefix, info.name, info.clock)]
        status = replace(status, keys=(*status.keys, *idle))
    return status


def declared(clients: Sequence[Client], rate: str) -> Iterator[Rate]:
    """The *rate* as each of *clients* declares it, the last one's first."""
    return (client.rates[rate] for client in reversed(clients) if rate in client.rates)


async def names(client: Any, prefix: str, pattern: str = "*") -> list[str]:
    """The sorted names under *prefix* that match *pattern*, a glob as in Redis."""
    found: set[str] = set()
    async for some in scanned_names(client, prefix, pattern):
        found.update(some)
    return sorted(found)


async def similar_name(client: Any, prefix: str, name: str) -> str | None:
    """The name in use that is most similar to *name*, if there is one and SCAN is allowed."""
    with contextlib.suppress(SemaphoreError, *READ_ERRORS):
        async with asyncio.timeout(SUGGESTION_TIMEOUT):
            known = await names(client, prefix)
            others = [other for other in known[:MAX_COMPARED] if other != name]
            close = difflib.get_close_matches(name, others)
            used = await names_in_use(client, prefix, close)
        return used[0] if used else None
    return None


async def names_in_use(client: Any, prefix: str, known: Sequence[str]) -> list[str]:
    """Those of *known* with a semaphore. Some keys outlive a deletion, or use, for a while."""
    found = await asyncio.gather(*(find(client, prefix, name) for name in known))
    return [name for name, info in zip(known, found, strict=True) if info is not None]


async def list_entries(client: Any, prefix: str, wanted: Sequence[str]) -> list[ListEntry]:
    """The status of each semaphore in *wanted*. The statuses are not one snapshot."""
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
        if info is None:  # deleted since the SCAN
            return None
        semaphore, most = info.semaphore(client, prefix), LISTED_KEYS if info.keyed else 1
        return ListEntry(info, await semaphore.status(max_entries=most))
    except SemaphoreError as error:
        return ListEntry(info or SemaphoreInfo(name), error)
    except ValueError:  # no semaphore can have this name
        return ListEntry(info or SemaphoreInfo(name), foreign(prefix, name))
