"""When a lane with waiters is to be heard from again: nothing polls, but time brings changes."""

import asyncio
import math
from collections.abc import Callable

STAGGER = 0.03  # seconds, between one and two of them, that a process leaves an expiry to others


class Pulse:
    """One timer, at the earlier of the next heartbeat and the next moment that matters."""

    def __init__(self, loop: asyncio.AbstractEventLoop, beat: Callable[[], None]) -> None:
        self._loop = loop
        self._beat = beat
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = math.inf
        self._moment_at = math.inf

    def heard_from(self, interval: float) -> None:
        """The server was told that we are alive: the next heartbeat is an interval away."""
        self._beat_at = self._loop.time() + interval

    def expect(self, moment: float | None, interval: float) -> None:
        """Something may change by itself in *moment* seconds; None for never."""
        now = self._loop.time()
        if self._timer is None:
            self._beat_at = now + interval
        self._moment_at = math.inf if moment is None else now + moment
        at = min(self._beat_at, self._moment_at)
        if self._timer is None or at < self._timer.when():
            self._set_timer(at)

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self.stop()
        self._timer = self._loop.call_at(at, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        at = min(self._beat_at, self._moment_at)
        if self._loop.time() < at:
            self._set_timer(at)  # what it was set for has moved
        else:
            self._beat()
