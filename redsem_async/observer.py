"""What happens to permits, told to whoever wants to know: for metrics, traces and audits.

.. code-block:: python

    class Slow(Observer):
        def granted(self, event: Granted) -> None:
            if event.waited > 1:
                print(f"{event.name} was waited for for {event.waited:.1f} s")


    observe(Slow())
"""

from types import TracebackType
from typing import Self, final

from ._observers.events import (
    Abandoned,
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
    """That an observer is told. Ended with :meth:`stop`, or by leaving a ``with`` block."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def stop(self) -> None:
        """Tell the observer nothing more, ends of what it knows of neither."""
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


def observe(observer: Observer) -> Observation:
    """Tell *observer* what happens to the permits of this process, whichever semaphore's.

    Its methods are called synchronously, in the event loop that the permit belongs to: that waits
    for them, so they should be quick. In a process with several loops they are called in as many
    threads. What they raise is logged, and changes nothing.

    An observer hears of permits that are granted from now on, and of requests that have to wait
    from now on. Of each beginning that it hears of it hears the end, once, unless the process or
    the event loop ends before. A forked child's observers know nothing of its parent's permits.

    Args:
        observer: told until it is stopped, or the process ends.

    Raises:
        ValueError: it is told already.
    """
    if not observers.add(observer):
        raise ValueError("this observer is told already")
    return Observation(observer)
