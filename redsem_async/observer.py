"""Observers of permits, for metrics, traces and audits."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import final

from ._core.config import check_function
from ._observers.notifier import Event
from ._observers.registry import observers

__all__ = ["Event", "Observation", "observe"]


@final
class Observation(AbstractContextManager["Observation", None]):
    """An observer that was added. ``stop``, or leaving a ``with`` block, removes it."""

    def __init__(self, observer: Callable[[Event], object]) -> None:
        self._observer = observer

    def stop(self) -> None:
        """Remove the observer. It gets no further event, not even the end of what it saw begin."""
        observers.remove(self._observer)

    def __exit__(self, *_: object) -> None:
        self.stop()


def observe(observer: Callable[[Event], object], *, keys: bool = False) -> Observation:
    """Call *observer* with the events of this process, as in ``observe(print)``.

    It is called synchronously, in the event loop that the permit belongs to, so it should be
    quick. With several event loops it is called in several threads. What it raises is logged and
    has no other effect. The event that ends a request comes in the context of the task that made
    it, and what the library finds out by itself in an empty context.

    It gets the events of permits that are granted, and of requests that begin to wait, from now
    on, and the end of each exactly once, unless the event loop ends first. A forked child's
    observers get no events of its parent's permits.

    Args:
        observer: a function of the event.
        keys: whether events carry the ``key`` of a request. There may be as many as there are
            tenants, and they may be personal data, so keep them out of metrics.

    Raises:
        TypeError: *observer* is not a function, or is a coroutine function.
        ValueError: the observer was added before.
    """
    check_function(observer, "observer")
    if not observers.add(observer, keys=keys):
        raise ValueError("this observer was already added")
    return Observation(observer)
