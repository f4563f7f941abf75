"""Tells observers, and the log where it is at DEBUG, what happens to permits.

Whoever hears of the beginning of something hears of its end, once, and of no end without the
beginning. Whatever an observer raises is logged, and changes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from . import _events as events
from ._claim import Claim, State
from ._clock import now as clock
from ._errors import AcquireTimeout, QueueFull
from ._keys import Address

logger = logging.getLogger("redsem_async")


class Teller:
    """Tells one observer, and remembers what it has told the beginning of."""

    __slots__ = ("_held", "_waiting", "observer", "stopped")

    def __init__(self, observer: events.Observer) -> None:
        self.observer: events.Observer = observer
        self.stopped: bool = False  # it may be stopped in the middle of a round
        self._waiting: WeakSet[Claim] = WeakSet()
        self._held: WeakKeyDictionary[Claim, float] = WeakKeyDictionary()  # since when

    # -- requests

    def queued(self, claims: Iterable[Claim]) -> None:
        """They have to wait; those among them that did so before are not told again."""
        for claim in claims:
            if claim.state is State.WAITING and claim not in self._waiting:
                self._waiting.add(claim)
                self._tell("queued", events.Queued(**_facts(claim)))

    def granted(self, claim: Claim, waited: float) -> None:
        """Its caller has a permit now."""
        self._held[claim] = clock()
        outcome = self._outcome(claim, waited)
        event = events.Granted(fencing_token=claim.token, permit_id=claim.id, **outcome)
        self._tell("granted", event)
        if claim.state is State.LOST:
            self.lost(claim)  # before its caller came to know that it was granted

    def refused(self, claim: Claim, error: Exception) -> None:
        """Its caller gets *error* instead."""
        outcome = self._outcome(claim, clock() - claim.started)
        match error:
            case AcquireTimeout(retry_after=later):
                self._tell("shed", events.Shed(reason="timeout", retry_after=later, **outcome))
            case QueueFull(retry_after=later):
                self._tell("shed", events.Shed(reason="queue full", retry_after=later, **outcome))
            case _:
                self._tell("failed", events.Failed(error=error, **outcome))

    def abandoned(self, claim: Claim) -> None:
        """Its caller was cancelled."""
        self._tell("abandoned", events.Abandoned(**self._outcome(claim, clock() - claim.started)))

    def _outcome(self, claim: Claim, waited: float) -> dict[str, Any]:
        queued = claim in self._waiting
        self._waiting.discard(claim)
        return {"waited": waited, "queued": queued, **_facts(claim)}

    # -- permits

    def refreshed(self, claim: Claim) -> None:
        """Its lease was renewed."""
        since = self._held.get(claim)
        if since is not None:
            left = claim.trusted_until - clock()
            self._tell("refreshed", events.Refreshed(expires_in=left, **_holding(claim, since)))

    def released(self, claim: Claim) -> None:
        """It is given back."""
        since = self._held.pop(claim, None)
        if since is not None:
            self._tell("released", events.Released(**_holding(claim, since)))

    def detached(self, claim: Claim) -> None:
        """It is left to somebody else."""
        since = self._held.pop(claim, None)
        if since is not None:
            self._tell("detached", events.Detached(**_holding(claim, since)))

    def lost(self, claim: Claim) -> None:
        """It is lost."""
        since = self._held.pop(claim, None)
        if since is not None:
            cancels = claim.on_lost is not None
            reason = claim.lost_reason or ""
            event = events.Lost(reason=reason, cancels=cancels, **_holding(claim, since))
            self._tell("lost", event)

    # -- semaphores

    def reclaimed(self, address: Address, count: int) -> None:
        """A reap dropped so many."""
        event = events.Reclaimed(name=address.name, mode=address.mode, count=count)
        self._tell("reclaimed", event)

    def _tell(self, what: str, event: object) -> None:
        if self.stopped:
            return
        try:
            getattr(self.observer, what)(event)
        except (Exception, asyncio.CancelledError):  # whatever it is, no permit is harmed by it
            who = type(self.observer).__qualname__
            logger.exception("an observer failed: %s.%s", who, what)


def _facts(claim: Claim) -> dict[str, Any]:
    address = claim.lane.address
    return {"name": address.name, "mode": address.mode, "permits": claim.permits}


def _holding(claim: Claim, since: float) -> dict[str, Any]:
    held = clock() - since
    return {"held": held, "fencing_token": claim.token, "permit_id": claim.id, **_facts(claim)}


class _Log(events.Observer):
    """Writes records at DEBUG, but of losses (see `_claim`); none has a permit's id."""

    def queued(self, event: events.Queued) -> None:
        _write("queued", event, "has to wait")

    def granted(self, event: events.Granted) -> None:
        _write("granted", event, f"granted after {event.waited:.3f} s")

    def abandoned(self, event: events.Abandoned) -> None:
        _write("abandoned", event, f"cancelled after {event.waited:.3f} s of waiting")

    def shed(self, event: events.Shed) -> None:
        _write("shed", event, f"turned away after {event.waited:.3f} s: {event.reason}")

    def failed(self, event: events.Failed) -> None:
        _write("failed", event, f"failed after {event.waited:.3f} s: {event.error}")

    def refreshed(self, event: events.Refreshed) -> None:
        _write("refreshed", event, f"refreshed after {event.held:.3f} s")

    def released(self, event: events.Released) -> None:
        _write("released", event, f"released after {event.held:.3f} s")

    def detached(self, event: events.Detached) -> None:
        _write("detached", event, f"detached after {event.held:.3f} s")

    def reclaimed(self, event: events.Reclaimed) -> None:
        _write("reclaimed", event, f"dropped {event.count} that had expired")


_TOLD = ("mode", "permits", "waited", "held", "fencing_token", "reason", "count")
"""The facts of events that records have, beside ``event`` and ``semaphore``."""


def _write(what: str, event: events.Event | events.Reclaimed, text: str) -> None:
    facts = {fact: getattr(event, fact) for fact in _TOLD if hasattr(event, fact)}
    extra = {"event": what, "semaphore": event.name, **facts}
    logger.debug("%r: %s", event.name, text, extra=extra)


LOG = _Log()
