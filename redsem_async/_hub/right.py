"""The right to reuse leases: how long it lasts, and when this process asks for it.

The server gives it while no other process wants the semaphore, and recalls it when one does. It
is a lease itself: it ends after a refresh interval, so that a recall that is lost delays others
for no longer than that.
"""

import asyncio
import math
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
        limit: the declared limit that it was asked for with.
        used: whether a lease was reused since it was last asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, route: Route) -> None:
        self.on_renew: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.until: float = -math.inf
        self.limit: int = 0
        self.used: bool = False
        self._loop = loop
        self._route = route
        self._interval = 0.0  # 0: no semaphore object of this process has `linger`
        self._lowest_limit = 0
        self._ask_at = -math.inf
        self._paused_until = -math.inf
        self._pause = FIRST_PAUSE
        self._recalled_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def want(self, interval: float, limit: int) -> None:
        """Leases with this refresh interval and declared limit are to be reused."""
        if not self._interval:
            self._interval, self._lowest_limit = interval, limit
        self._interval = min(self._interval, interval)
        self._lowest_limit = min(self._lowest_limit, limit)

    def ask(self) -> RightRequest | None:
        """What the command that is written now asks for."""
        if not (self._interval and self._may_be_recalled):
            return None
        now = clock()
        if now < self._ask_at or now < self._paused_until:
            return None
        self._ask_at = now + self._interval / 4
        self.used = False
        return RightRequest(math.floor(1000 * self._interval), self._lowest_limit)

    def answered(self, given: bool, asked: RightRequest, sent_at: float) -> None:  # noqa: FBT001
        """The command that asked, sent at *sent_at*, has its reply."""
        lasts = asked.lasts_ms / 1000
        until = sent_at + lasts - clock_margin(lasts)
        if not (given and self._may_be_recalled and sent_at > self._recalled_at):
            self.end()
            self._ask_at = clock() + self._interval / 4
        elif until > self.until:
            self.until, self.limit = until, asked.limit
            self._ask_at = until - self._interval / 2
            if self._timer is None:
                self._set_timer()

    @property
    def _may_be_recalled(self) -> bool:
        """Whether the push message would come."""
        return self._route.redirect is None and not self._route.link.no_push

    def recalled(self) -> None:
        """Another process wants the semaphore."""
        now = clock()
        # Each recall that follows soon on the one before it doubles the pause.
        again = now - self._recalled_at < 2 * self._pause + self._interval
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._recalled_at, self._paused_until = now, now + self._pause
        self.end()

    def end(self) -> None:
        """It is over, for example because the link, the server or the limit changed."""
        self._ask_at = -math.inf
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
