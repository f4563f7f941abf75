"""Events, and the notifiers that turn facts about requests and permits into them.

An observer that is notified of a start is notified of its end, once, and of no end without it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary, WeakSet

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, QueueFull
from redsem_async._core.keys import Address, Mode
from redsem_async._core.log import facts

logger = logging.getLogger("redsem_async")

RequestKind = Literal["queued", "granted", "abandoned", "shed", "failed"]
PermitKind = Literal["refreshed", "released", "lost", "detached"]
SemaphoreKind = Literal["reclaimed", "backed_off"]


@dataclass(slots=True, kw_only=True)  # frozen would cost 5 µs, and every observer has its own
class Event:
    """What happened to a request or a permit. A fact that its kind does not have is None.

    Attributes:
        kind: what happened.
        name: of the semaphore.
        mode: ``"fair"`` or ``"zset"``, then ``"+keys"`` or ``"+share"`` if requests have keys,
            ``"+rate"`` if there are rates, and ``"+slots"`` if permits have slots.
        permits: number of permits of the request or the permit.
        key: of the request or the back-off, for observers added with ``keys=True``.
        waited: seconds from the request to its end.
        queued: whether the observer was notified before that the request has to wait.
        held: seconds since the permit was granted.
        fencing_token: of the permit.
        permit_id: of the permit. A secret, and the same in all of its events.
        expires_in: seconds for which a refreshed permit may be trusted.
        reason: why a permit is lost, or a request shed (``"timeout"`` or ``"queue full"``).
        cancels: whether the loss cancels a block.
        retry_after: an estimate of the seconds until another request may succeed.
        error: that the caller of a failed request gets.
        count: number of removed entries.
        seconds: length of a back-off's pause. 0 without one.
        limit: from which the limit in force of a back-off rises. A process tells of one
            back-off of a semaphore a second at most.
    """

    kind: RequestKind | PermitKind | SemaphoreKind
    name: str
    mode: Mode
    permits: int | None = None
    key: str | None = None
    waited: float | None = None
    queued: bool | None = None
    held: float | None = None
    fencing_token: int | None = None
    permit_id: str | None = field(default=None, repr=False)
    expires_in: float | None = None
    reason: str | None = None
    cancels: bool | None = None
    retry_after: float | None = None
    error: Exception | None = None
    count: int | None = None
    seconds: float | None = None
    limit: int | None = None


class Subject(Protocol):
    """The facts about a request or a permit that its events have."""

    address: Address
    permits: int
    key: Any  # None, or what a request declares for its key


class Notifier:
    """Notifies one observer, and remembers the starts that it was notified of."""

    def __init__(self, observer: Callable[[Event], object], *, keys: bool) -> None:
        self.observer: Callable[[Event], object] = observer
        self.keys: bool = keys  # whether events carry keys
        self.stopped: bool = False
        self._waiting: WeakSet[Subject] = WeakSet()
        self._held: WeakKeyDictionary[Subject, tuple[float, dict[str, Any]]] = WeakKeyDictionary()

    def queued(self, requests: Iterable[Subject]) -> None:
        """The requests have to wait. Those that waited before are passed over."""
        for request in requests:
            if request not in self._waiting:
                self._waiting.add(request)
                self._about("queued", request, {})

    def granted(self, permit: Subject, request: Subject, waited: float, **facts: Any) -> None:
        """The caller has its permit. All of its events have the *facts*."""
        self._held[permit] = clock(), facts
        self.ended("granted", request, waited, **facts)

    def refused(self, request: Subject, waited: float, error: Exception) -> None:
        """The caller gets *error* instead."""
        if isinstance(error, AcquireTimeout | QueueFull):
            reason = "timeout" if isinstance(error, AcquireTimeout) else "queue full"
            self.ended("shed", request, waited, reason=reason, retry_after=error.retry_after)
        else:
            self.ended("failed", request, waited, error=error)

    def ended(self, kind: RequestKind, request: Subject, waited: float, **facts: Any) -> None:
        """The request ended after *waited* seconds."""
        facts["waited"], facts["queued"] = waited, request in self._waiting
        self._waiting.discard(request)
        self._about(kind, request, facts)

    def permit(self, kind: PermitKind, permit: Subject, **facts: Any) -> None:
        """The permit was refreshed, or it ends."""
        known = self._held
        held = known.get(permit) if kind == "refreshed" else known.pop(permit, None)
        if held is not None:
            self._about(kind, permit, {"held": clock() - held[0], **held[1], **facts})

    def semaphore(self, kind: SemaphoreKind, address: Address, **facts: Any) -> None:
        """A reap removed entries, or a back-off began."""
        if not self.keys:
            facts.pop("key", None)
        self._call(Event(kind=kind, name=address.name, mode=address.mode, **facts))

    def _about(self, kind: RequestKind | PermitKind, of: Subject, facts: dict[str, Any]) -> None:
        if self.keys and of.key is not None:
            facts["key"] = of.key.key
        name, mode = of.address.name, of.address.mode
        self._call(Event(kind=kind, name=name, mode=mode, permits=of.permits, **facts))

    def _call(self, event: Event) -> None:
        try:
            if not self.stopped:
                self.observer(event)
        except (Exception, asyncio.CancelledError):  # no permit may be harmed by it
            logger.exception("an observer failed: %r, at %s", self.observer, event.kind)


_LOGGED = (
    "mode",
    "permits",
    "waited",
    "held",
    "fencing_token",
    "reason",
    "count",
    "seconds",
    "limit",
)


def log(event: Event) -> None:
    """Write a DEBUG record, without a permit's id. Losses are logged elsewhere, at any level."""
    if event.kind == "lost":
        return
    told = {fact: getattr(event, fact) for fact in _LOGGED if getattr(event, fact) is not None}
    after = told.get("waited", told.get("held"))
    text = event.kind if after is None else f"{event.kind} after {after:.3f} s"
    if why := event.reason or event.error or event.count:
        text += f": {why}"
    if event.kind == "backed_off":
        pause = f"no permit for {event.seconds:g} s, then " if event.seconds else ""
        text += f": {pause}at most {event.limit} in use"
    extra = facts(event.kind, semaphore=event.name, **told)
    logger.debug("%r: %s", event.name, text, extra=extra)
