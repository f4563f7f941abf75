"""When a process with waiters sends a heartbeat: nothing polls, but time brings changes."""

import asyncio
import math

from .ledger import Ledger

STAGGER = 0.03  # seconds, once to twice that, for which a process leaves an expiry to others


class HeartbeatTimer:
    """One timer, at the earlier of the next heartbeat and the next moment that matters.

    Attributes:
        due: whether a heartbeat is to be written.
        in_flight: whether one has no reply yet.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.due: bool = False
        self.in_flight: bool = False
        self._ledger = ledger
        self._loop = ledger.identity.loop
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = math.inf  # of the heartbeats
        self._moment_at = math.inf

    def beat(self) -> None:
        """Have a heartbeat written."""
        self.due = True
        self._ledger.wake()

    def written(self) -> None:
        """One is on its way."""
        self.due, self.in_flight = False, True

    @property
    def expected(self) -> bool:
        """Whether a reply to a heartbeat will come."""
        return self.due or self.in_flight

    def forget(self) -> None:
        """The connection was closed on purpose: no reply will come."""
        self.due = self.in_flight = False

    def answered(self, interval: float) -> None:
        """The next one is *interval* away, whatever else is sent.

        Other commands say that this process is alive, too. But they ask about no waiters, and do
        not keep the line.
        """
        self.in_flight = False
        self._next_at = self._loop.time() + interval

    def expect(self, moment: float | None, interval: float) -> None:
        """Something may change by itself in *moment* seconds; None for never."""
        now = self._loop.time()
        if self._timer is None:
            self._next_at = now + interval
        self._moment_at = math.inf if moment is None else now + moment
        at = min(self._next_at, self._moment_at)
        if self._timer is None or at < self._timer.when():
            self._set_timer(at)

    def stop(self) -> None:
        """No claim waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self.stop()
        self._timer = self._loop.call_at(at, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        at = min(self._next_at, self._moment_at)
        if self._loop.time() < at:
            self._set_timer(at)  # the moment that it was set for has moved
        elif self._ledger.waiting and not self.in_flight:
            self.beat()
