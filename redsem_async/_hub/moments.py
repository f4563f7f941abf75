"""When time alone changes something: the next heartbeat, and who is looked at. Nothing polls."""

import heapq
import math

from .model import Request

CLEAN_UP = 64  # entries, from which on those of the past are looked for
STAGGER = 0.03  # seconds, once to twice that, for which a process leaves an expiry to others


class Heartbeats:
    """Sent at the earlier of the next heartbeat and the next moment that matters.

    Attributes:
        due: whether a heartbeat is to be written.
        in_flight: whether one has no reply yet.
        look_at: when one is due next. Infinite where nothing is expected.
    """

    def __init__(self) -> None:
        self.due: bool = False
        self.in_flight: bool = False
        self.look_at: float = math.inf
        self._next_at = math.inf

    @property
    def expected(self) -> bool:
        """Whether a reply to a heartbeat will come."""
        return self.due or self.in_flight

    def written(self) -> None:
        """A heartbeat is on its way."""
        self.due, self.in_flight = False, True

    def answered(self, now: float, interval: float) -> None:
        """The next heartbeat is *interval* away, whatever else is sent.

        Other commands say that this process is alive, too. But they ask about no waiters, and do
        not keep the queue.
        """
        self.in_flight = False
        self._next_at = now + interval

    def expect(self, moment: float | None, interval: float, now: float) -> None:
        """Something may change by itself in *moment* seconds. None for never."""
        if self.look_at == math.inf:
            self._next_at = now + interval
        self.look_at = self._next_at if moment is None else min(self._next_at, now + moment)

    def look_in(self, moment: float, now: float) -> None:
        """Something changes by itself in *moment* seconds, if not earlier."""
        self.look_at = min(self.look_at, now + moment + 0.001)

    def stop(self) -> None:
        """No request waits any more, or the time has come."""
        self.look_at = math.inf

    def forget(self) -> None:
        """The connection was closed on purpose, so no reply will come."""
        self.due = self.in_flight = False


class Agenda(list[tuple[float, int, Request]]):
    """A heap of when to look at which request. Those that have ended are passed over."""

    _clean_up_at = CLEAN_UP

    def add(self, request: Request, at: float) -> None:
        """Look at *request* at that time."""
        if len(self) > self._clean_up_at:  # most may be of the past
            self[:] = [entry for entry in self if entry[2].pending]
            heapq.heapify(self)
            self._clean_up_at = CLEAN_UP + 2 * len(self)
        heapq.heappush(self, (at, request.order, request))

    def next(self) -> float:
        """When to look next."""
        while self and not self[0][2].pending:
            heapq.heappop(self)
        return self[0][0] if self else math.inf

    def come(self, now: float) -> tuple[float, Request] | None:
        """The next request whose time has come by *now*, and that time. It is looked at once."""
        if self.next() > now:
            return None
        at, _, request = heapq.heappop(self)
        return at, request
