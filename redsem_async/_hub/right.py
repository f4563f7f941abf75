"""The right to reuse leases: how long it lasts, and when this process asks for it.

The server gives it while no other process wants the semaphore, and recalls it when one does. It
is a lease itself: it ends after a refresh interval, so that a recall that is lost delays others
for no longer than that.
"""

import asyncio
import math
import sys
from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import clock_margin
from redsem_async._protocol.operations import RightRequest

from .route import Route

FIRST_PAUSE = 1.0  # seconds without asking after a recall; the next recall doubles it
LONGEST_PAUSE = 30.0


class ReuseRight:
    """The right of this process, for one semaphore.

    Attributes:
        on_renew: has a command written that asks for it.
        on_end: called when the right ends.
        until: when it ends.
        used: whether a lease was reused since it was last asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, route: Route) -> None:
        self.on_renew: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.until: float = -math.inf
        self.used: bool = False
        self._loop = loop
        self._route = route
        self._interval = math.inf  # no semaphore object of this process has `linger`
        self._limit = sys.maxsize
        self._ask_at = -math.inf
        self._paused_until = -math.inf
        self._pause = FIRST_PAUSE
        self._recalled_at = -math.inf
        self._asked: RightRequest | None = None  # and the right has not ended since
        self._timer: asyncio.TimerHandle | None = None

    def want(self, interval: float, limit: int) -> None:
        """Leases with this refresh interval and declared limit are to be reused."""
        if interval < self._interval or limit != self._limit:
            # It was given for longer, or under a higher limit; or by this request more permits
            # may be in use than the lowest limit allows. It is asked for again.
            self._interval = min(self._interval, interval)
            self._limit = min(self._limit, limit)
            self.end()

    def ask(self) -> RightRequest | None:
        """What the command that is written now asks for."""
        if self._interval == math.inf or self._route.redirect or self._route.link.no_push:
            return None  # nobody wants it; or no recall would come
        now = clock()
        if now < self._ask_at or now < self._paused_until:
            return None
        self._ask_at = now + self._interval  # a later reply would be of no use
        self.used = False
        self._asked = RightRequest(math.floor(1000 * self._interval), self._limit)
        return self._asked

    def answered(self, given: bool, asked: RightRequest, sent_at: float) -> None:  # noqa: FBT001
        """The command that asked, sent at *sent_at*, has its reply."""
        if asked is not self._asked:
            return  # it is older than the recall, or a message may have been missed since
        lasts = asked.lasts_ms / 1000
        until = sent_at + lasts - clock_margin(lasts)
        if not given:
            self.end()
            self._ask_at = clock() + self._interval / 4
        elif until > self.until:
            self.until = until
            self._ask_at = until - self._interval / 2
            if self._timer is None:
                self._set_timer()

    def recalled(self) -> None:
        """Another process wants the semaphore."""
        now = clock()
        # Exponential back-off: a recall soon after the last one doubles the pause.
        again = now - self._recalled_at < 2 * self._pause + self._interval
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._recalled_at, self._paused_until = now, now + self._pause
        self.end()

    def end(self) -> None:
        """It is over, for example because the link, the server or the limit changed."""
        self._ask_at, self._asked = -math.inf, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.until > -math.inf:
            self.until = -math.inf
            if self.on_end is not None:
                self.on_end()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(max(0.0, self._ask_at - clock()), self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        now = clock()
        if now >= self.until:
            self.end()
        elif now < self._ask_at:
            self._set_timer()
        else:
            if self.used and self.on_renew is not None:
                self.on_renew()
            self._timer = self._loop.call_later(self.until - now, self._time_passed)
