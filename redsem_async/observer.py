"""Observers of permits, for metrics, traces and audits.

```python
class Slow(Observer):
    def granted(self, event: Granted) -> None:
        if event.waited > 1:
            print(f"a request waited {event.waited:.1f} s for {event.name}")


observe(Slow())
```
"""

from types import TracebackType
from typing import Self, final

from ._observers.events import (
    Abandoned,
    BackedOff,
    Detached,
    Event,
    Failed,
    Granted,
    Lost,
    Observer,
    Outcome,
    PermitEvent,
    Queued,
    Reclaimed,
    Refreshed,
    Released,
    Shed,
)
from ._observers.registry import observers

__all__ = [
    "Abandoned",
    "BackedOff",
    "Detached",
    "Event",
    "Failed",
    "Granted",
    "Lost",
    "Observation",
    "Observer",
    "Outcome",
    "PermitEvent",
    "Queued",
    "Reclaimed",
    "Refreshed",
    "Released",
    "Shed",
    "observe",
]


@final
class Observation:
    """A registered observer. ``stop``, or leaving a ``with`` block, removes it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def stop(self) -> None:
        """Remove the observer. It gets no further event, not even the end of what it saw begin."""
        observers.remove(self._observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def observe(observer: Observer, *, keys: bool = False) -> Observation:
    """Notify *observer* of events of all permits of this process, of any semaphore.

    Its methods are called synchronously, in the event loop that the permit belongs to. The event
    loop waits for them, so they should be quick. In a process with several event loops they are
    called in several threads. An exception in a method is logged and has no other effect.

    An observer gets events of permits that are granted, and of requests that begin to wait, from
    now on. For each of these it gets the end exactly once, unless the process or the event loop
    ends first. The observers of a forked child get no events of its parent's permits.

    Args:
        observer: notified until it is stopped, or the process ends.
        keys: whether events carry the ``key`` that a request was made with. There may be as many
            as there are tenants, and they may be personal data, so keep them out of metrics.

    Raises:
        TypeError: *observer* is not an `Observer`.
        ValueError: the observer is already registered.
    """
    if not isinstance(observer, Observer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected an Observer, got {observer!r}")
    if not observers.add(observer, keys=keys):
        raise ValueError("this observer is already registered")
    return Observation(observer)
