"""Notifies an observer of what happens to permits.

An observer that is notified of a start is notified of its end, once, and of no end without
its start. An exception of an observer is logged, and changes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, QueueFull
from redsem_async._core.keys import Address

from . import events

logger = logging.getLogger("redsem_async")


class Keyed(Protocol):
    """What a request declares for its key."""

    @property
    def key(self) -> str: ...


class Subject(Protocol):
    """The facts about a request, or a permit, that events have."""

    address: Address
    permits: int

    @property
    def key(self) -> Keyed | None: ...


class RequestFacts(Subject, Protocol):
    """A request."""

    started: float


class PermitFacts(Subject, Protocol):
    """A permit."""

    token: int

    @property
    def id(self) -> str: ...


class Notifier:
    """Notifies one observer, and remembers the starts that it was notified of."""

    __slots__ = ("_held", "_waiting", "keys", "observer", "stopped")

    def __init__(self, observer: events.Observer, *, keys: bool) -> None:
        self.observer: events.Observer = observer
        self.keys: bool = keys  # whether events carry the key of a request
        self.stopped: bool = False  # perhaps while a loop over the notifiers runs
        self._waiting: WeakSet[RequestFacts] = WeakSet()
        self._held: WeakKeyDictionary[PermitFacts, float] = WeakKeyDictionary()  # since when

    # -- requests

    def queued(self, requests: Iterable[RequestFacts]) -> None:
        """The requests have to wait. Those that waited before are passed over."""
        for request in requests:
            if request not in self._waiting:
                self._waiting.add(request)
                self._notify("queued", events.Queued(**self._facts(request)))

    def granted(self, permit: PermitFacts, request: RequestFacts, waited: float) -> None:
        """The caller has its permit."""
        self._held[permit] = clock()
        outcome = self._outcome(request, waited)
        event = events.Granted(fencing_token=permit.token, permit_id=permit.id, **outcome)
        self._notify("granted", event)

    def refused(self, request: RequestFacts, error: Exception) -> None:
        """The caller gets *error* instead."""
        outcome = self._outcome(request, clock() - request.started)
        match error:
            case AcquireTimeout(retry_after=later):
                self._notify("shed", events.Shed(reason="timeout", retry_after=later, **outcome))
            case QueueFull(retry_after=later):
                event = events.Shed(reason="queue full", retry_after=later, **outcome)
                self._notify("shed", event)
            case _:
                self._notify("failed", events.Failed(error=error, **outcome))

    def abandoned(self, request: RequestFacts) -> None:
        """The caller was cancelled."""
        waited = clock() - request.started
        self._notify("abandoned", events.Abandoned(**self._outcome(request, waited)))

    def _outcome(self, request: RequestFacts, waited: float) -> dict[str, Any]:
        queued = request in self._waiting
        self._waiting.discard(request)
        return {"waited": waited, "queued": queued, **self._facts(request)}

    # -- permits

    def refreshed(self, permit: PermitFacts, expires_in: float) -> None:
        """The lease of the permit was refreshed."""
        since = self._held.get(permit)
        if since is not None:
            event = events.Refreshed(expires_in=expires_in, **self._permit_facts(permit, since))
            self._notify("refreshed", event)

    def released(self, permit: PermitFacts) -> None:
        """The permit is released."""
        since = self._held.pop(permit, None)
        if since is not None:
            self._notify("released", events.Released(**self._permit_facts(permit, since)))

    def detached(self, permit: PermitFacts) -> None:
        """The permit stays held, and is left to whichever client adopts it."""
        since = self._held.pop(permit, None)
        if since is not None:
            self._notify("detached", events.Detached(**self._permit_facts(permit, since)))

    def lost(self, permit: PermitFacts, reason: str, *, cancels: bool) -> None:
        """The permit is lost. *cancels* says whether a block that it guards is cancelled."""
        since = self._held.pop(permit, None)
        if since is not None:
            facts = self._permit_facts(permit, since)
            self._notify("lost", events.Lost(reason=reason, cancels=cancels, **facts))

    # -- semaphores

    def reclaimed(self, address: Address, count: int) -> None:
        """A reap dropped so many holders and waiters."""
        event = events.Reclaimed(name=address.name, mode=address.mode, count=count)
        self._notify("reclaimed", event)

    def backed_off(self, address: Address, seconds: float, key: str | None) -> None:
        """This process began a back-off of so many *seconds*."""
        told = key if self.keys else None
        event = events.BackedOff(name=address.name, mode=address.mode, seconds=seconds, key=told)
        self._notify("backed_off", event)

    def _facts(self, subject: Subject) -> dict[str, Any]:
        address = subject.address
        facts = {"name": address.name, "mode": address.mode, "permits": subject.permits}
        if self.keys and subject.key is not None:
            facts["key"] = subject.key.key
        return facts

    def _permit_facts(self, permit: PermitFacts, since: float) -> dict[str, Any]:
        held = clock() - since
        facts = {"held": held, "fencing_token": permit.token, "permit_id": permit.id}
        return {**facts, **self._facts(permit)}

    def _notify(self, method: str, event: object) -> None:
        if self.stopped:
            return
        try:
            getattr(self.observer, method)(event)
        except (Exception, asyncio.CancelledError):  # no permit may be harmed by it
            name = type(self.observer).__qualname__
            logger.exception("an observer failed: %s.%s", name, method)
