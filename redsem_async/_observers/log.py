"""The observer that writes a DEBUG record for each event. No record has a permit's id.

Losses are logged elsewhere, at INFO or WARNING, whatever the level.
"""

import logging

from . import events

logger = logging.getLogger("redsem_async")

_FACTS = ("mode", "permits", "waited", "held", "fencing_token", "reason", "count", "seconds")
"""The facts of events that records have, besides ``event`` and ``semaphore``."""


class _Log(events.Observer):
    def queued(self, event: events.Queued) -> None:
        _write("queued", event, "has to wait")

    def granted(self, event: events.Granted) -> None:
        _write("granted", event, f"granted after {event.waited:.3f} s")

    def abandoned(self, event: events.Abandoned) -> None:
        _write("abandoned", event, f"cancelled after {event.waited:.3f} s of waiting")

    def shed(self, event: events.Shed) -> None:
        _write("shed", event, f"rejected after {event.waited:.3f} s: {event.reason}")

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

    def backed_off(self, event: events.BackedOff) -> None:
        _write("backed off", event, f"no permit for {event.seconds:.3f} s")


def _write(
    name: str, event: events.Event | events.Reclaimed | events.BackedOff, text: str
) -> None:
    facts = {fact: getattr(event, fact) for fact in _FACTS if hasattr(event, fact)}
    extra = {"event": name, "semaphore": event.name, **facts}
    logger.debug("%r: %s", event.name, text, extra=extra)


LOG = _Log()
