"""An event loop that runs one turn at a time, at somebody else's call, and never sleeps."""

import asyncio
import heapq
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

RESOLUTION = 1e-9  # seconds


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Let asyncio take *loop* for the one that runs."""
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


class NoSockets:
    """Stands in for a selector: nothing comes from outside."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one simulated process.

    Everything but the time and who calls `turn` is asyncio's own: what is ready, and in which
    order it runs after a stall, is as in a real process.
    """

    if TYPE_CHECKING:
        _ready: Any
        _scheduled: Any
        _timer_cancelled_count: int
        _run_once: Callable[[], None]

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._selector = NoSockets()
        self._clock_resolution = RESOLUTION
        self.turns = 0
        self.gone = False  # its process was killed
        self._own: WeakSet[asyncio.Task[Any]] = WeakSet()

    def time(self) -> float:
        return self._clock()

    def create_task(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        # `asyncio.all_tasks` looks at those of all loops.
        task = super().create_task(*args, **kwargs)
        self._own.add(task)
        return task

    @property
    def tasks(self) -> "list[asyncio.Task[Any]]":
        return [task for task in self._own if not task.done()]

    def turn(self) -> None:
        with running(self):
            self._run_once()
        self.turns += 1

    @property
    def ready(self) -> bool:
        """Whether something runs in the next turn, timers aside."""
        return bool(self._ready)

    def next_timer(self) -> float | None:
        """When the first timer is due, by this loop's time."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:  # as the loop itself does it
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else None

    def is_closed(self) -> bool:
        """A killed process does nothing more, not even when it is collected."""
        return self.gone or super().is_closed()

    def bury(self) -> None:
        """Let the tasks of a killed process vanish."""
        self.gone = True
        self.set_exception_handler(lambda loop, context: None)
        while tasks := self.tasks:
            self._own.clear()
            for task in tasks:  # whose clean-up may start others
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        self._ready.clear()
        self._scheduled.clear()
        # The package knows loops for as long as their hubs, which nothing of them must keep.
        self._clock = float

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        """The loop never sleeps, so that nothing has to wake it."""


def _close(coroutine: Any) -> None:
    for _ in range(20):  # one that awaits in its clean-up refuses to be closed, once each await
        with suppress(BaseException):
            coroutine.close()
            return
