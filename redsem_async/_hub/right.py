"""The right to reuse leases. How long it lasts, and when this process asks for it.

The server gives it while no other process wants the semaphore, and recalls it when one does. It
is a lease itself, which ends after a refresh interval, so that a lost recall delays others for no
longer than that.
"""

import math
import sys

from redsem_async._core.lease import clock_margin
from redsem_async._protocol.operations import RightRequest

FIRST_PAUSE = 1.0  # seconds without asking after a recall. The next recall doubles it
LONGEST_PAUSE = 30.0


class ReuseRight:
    """The right of this process, for one semaphore.

    Methods that may end it return whether it has ended, because idle leases are then released.

    Attributes:
        until: when it ends.
        used: whether a lease was reused since it was last asked for.
        wanted: whether some semaphore object of this process has `linger`.
        look_at: when time alone changes something, because it is to be asked for, or ends.
    """

    def __init__(self) -> None:
        self.until: float = -math.inf
        self.used: bool = False
        self.wanted: bool = False
        self.look_at: float = math.inf
        self._interval = math.inf
        self._limit = sys.maxsize
        self._ask_at = -math.inf
        self._paused_until = -math.inf
        self._pause = FIRST_PAUSE
        self._recalled_at = -math.inf
        self._asked: RightRequest | None = None  # and the right has not ended since

    def want(self, interval: float, limit: int) -> bool:
        """Leases with this refresh interval and declared limit are to be reused."""
        self.wanted = True
        if interval < self._interval or limit != self._limit:
            # It was given for longer, or under a higher limit, or this request may take more
            # permits into use than the lowest limit allows. It is asked for again.
            self._interval = min(self._interval, interval)
            self._limit = min(self._limit, limit)
            return self.end()
        return False

    def ask(self, now: float) -> RightRequest | None:
        """What the command that is written now asks for."""
        if not self.wanted or now < self._ask_at or now < self._paused_until:
            return None
        self._ask_at = now + self._interval  # a later reply would be of no use
        self.used = False
        self._asked = RightRequest(math.floor(1000 * self._interval), self._limit)
        return self._asked

    def answered(
        self,
        given: bool,  # noqa: FBT001 - as the reply has it
        asked: RightRequest,
        sent_at: float,
        now: float,
    ) -> bool:
        """The command that asked, sent at *sent_at*, has its reply."""
        if asked is not self._asked:
            return False  # it is older than the recall, or a message may have been missed since
        if not given:
            ended = self.end()
            self._ask_at = now + self._interval / 4
            return ended
        lasts = asked.lasts_ms / 1000
        until = sent_at + lasts - clock_margin(lasts)
        if until > self.until:
            self.until = until
            self._ask_at = until - self._interval / 2
            self.look_at = min(self.look_at, self._ask_at)
        return False

    def recalled(self, now: float) -> bool:
        """Another process wants the semaphore."""
        # Exponential back-off. A recall soon after the last one doubles the pause.
        again = now - self._recalled_at < 2 * self._pause + self._interval
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else FIRST_PAUSE
        self._recalled_at, self._paused_until = now, now + self._pause
        return self.end()

    def end(self) -> bool:
        """The right is over, for example because the link, the server or the limit changed."""
        self._ask_at, self._asked, self.look_at = -math.inf, None, math.inf
        was_given = self.until > -math.inf
        self.until = -math.inf
        return was_given

    def look(self, now: float) -> bool:
        """Time has passed, so look again later, unless it has ended."""
        if now >= self.until:
            return self.end()
        self.look_at = self._ask_at if now < self._ask_at else self.until
        return False

    def to_be_renewed(self, now: float) -> bool:
        """Whether the right is used, and a command that asks for it is to be written."""
        return self.used and now >= self._ask_at
