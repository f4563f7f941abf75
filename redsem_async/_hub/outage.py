"""An outage of one server: when its callers are told, and what the log says of it."""

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping
from contextvars import Context

from redsem_async._core.backoff import delays
from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._protocol.backend import ConnectionRejected

from .endings import fail_not_waiting, fail_outlasted
from .route import MAX_SUSPENSION, LinkState, why
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")

MOST_NAMED = 5  # semaphores, in a message
CHECK_INTERVAL = 0.1  # seconds between looks at the callers that an outage outlasts


class ServerOutage:
    """The outages of one server.

    A short one is not logged. The first check logs a longer one, and its end is then logged too.
    A client that was admitted before takes a rejection for an outage, such as of a stale token.

    Attributes:
        attempts: seconds between attempts to connect.
        suspensions: seconds for which nothing is written to a server that is busy.
        logged_since: when the logged outage began. It may outlast the connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: LinkState,
        semaphores: Mapping[Address, SemaphoreState],
    ) -> None:
        self._loop = loop
        self._state = state
        self._semaphores = semaphores
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._rejection_logged = False
        self.logged_since: float | None = None
        self._reset_delays()

    def _reset_delays(self) -> None:
        self.attempts: Iterator[float] = delays(random.random)
        self.suspensions: Iterator[float] = delays(random.random, longest=MAX_SUSPENSION)

    def begin(self, error: Exception, *, ends_not_waiting: bool = False) -> None:
        """The server cannot be asked, because of *error*."""
        if self._state.error is None:
            self._since = clock()
            self._timer = self._loop.call_later(CHECK_INTERVAL, self._check, context=Context())
        self._state.error = error
        if ends_not_waiting:
            for semaphore in list(self._semaphores.values()):
                fail_not_waiting(semaphore)

    def end(self) -> None:
        """The server replied."""
        if self.logged_since is not None:
            self._log_end(self.logged_since)
        if self._state.error is not None:
            self.forget()
            self._reset_delays()

    def forget(self) -> None:
        """The connection is closed, and nothing is asked."""
        self._state.error = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._log()
        for semaphore in list(self._semaphores.values()):
            fail_outlasted(semaphore, self._since)
        self._timer = self._loop.call_later(CHECK_INTERVAL, self._check)

    def _log(self) -> None:
        """Log the outage once, and once more if the server comes back and rejects this client."""
        place, error = self._state.node.place, self._state.error
        rejected = isinstance(error, ConnectionRejected)
        known = self.logged_since is not None and (self._rejection_logged or not rejected)
        if error is None or known or self._state.ending:
            return
        self._rejection_logged = rejected
        if self.logged_since is None:
            self.logged_since = self._since
        names = sorted({address.name for address in self._semaphores})
        shown = f" for {', '.join(map(repr, names[:MOST_NAMED]))}" if names else ""
        shown += f" and {len(names) - MOST_NAMED:,} more" if names[MOST_NAMED:] else ""
        facts = {"event": "outage", "place": place, "semaphores": names}
        logger.warning("%s is unavailable%s: %s", place, shown, why(error), extra=facts)

    def _log_end(self, since: float) -> None:
        self.logged_since, self._rejection_logged = None, False
        place, lasted = self._state.node.place, clock() - since
        facts = {"event": "outage over", "place": place, "seconds": lasted}
        logger.warning("%s is available again, after %.3g s", place, lasted, extra=facts)
