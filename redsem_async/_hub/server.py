"""What is known of a server: its link, its outages, and where commands go in its stead."""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context

from redsem_async._core.backoff import delays
from redsem_async._core.clock import now as clock
from redsem_async._core.errors import BackendError, BackendUnavailable, unreachable
from redsem_async._core.log import facts
from redsem_async._protocol.backend import ConnectionRejected, Link, Node

logger = logging.getLogger("redsem_async")

MOST_NAMED = 5  # semaphores, in a message
CHECK_INTERVAL = 0.1  # seconds between looks at the callers that an outage outlasts
MAX_SUSPENSION = 0.2  # seconds between commands to a server that replies but cannot do as asked


class LinkState:
    """What a pipeline knows of its connection to one server.

    Attributes:
        link: the connection, if there is one.
        no_push: whether no push messages come over it.
        error: why the server cannot be asked, during an outage.
        round_trip: the shortest of this connection, in seconds.
        keeper: the task that keeps the connection open.
    """

    def __init__(self, node: Node) -> None:
        self.node: Node = node
        self.link: Link | None = None
        self.no_push: bool = False
        self.error: Exception | None = None
        self.round_trip: float = math.inf
        self.keeper: asyncio.Task[None] | None = None

    @property
    def ending(self) -> bool:
        """Whether the connection is being closed for good, so that nothing is worth a record."""
        return self.keeper is None or bool(self.keeper.cancelling())

    @property
    def fresh_at(self) -> float | None:
        """When the newest command that got its reply was sent, for any semaphore."""
        return self.link.fresh_at if self.link else None

    @property
    def uncounted(self) -> bool:
        """Whether scripts are told that no process receives its push messages."""
        return self.link is not None and self.link.uncounted


class Redirect:
    """Why a semaphore's commands are not carried out where they are sent, in a cluster.

    Attributes:
        target: the node to go to, once every command in flight has its reply.
        once: go there for the next commands only, because the semaphore is still being moved.
        count: redirections in a row.
        error: why no node carries out a command now, if so.
        since: when that began.
        suspended: whether nothing is written for a moment, as long as *suspensions* say.
    """

    __slots__ = ("count", "error", "once", "since", "suspended", "suspensions", "target")

    def __init__(self) -> None:
        self.target: Node | None = None
        self.once: bool = False
        self.count: int = 0
        self.error: Exception | None = None
        self.since: float = 0.0
        self.suspended: bool = False
        self.suspensions: Iterator[float] = delays(random.random, longest=MAX_SUSPENSION)


class Route:
    """The way of one semaphore's commands, which may change in a cluster."""

    def __init__(self, name: str, link_state: LinkState) -> None:
        self.link_state: LinkState = link_state
        self.redirect: Redirect | None = None
        self._name = name

    @property
    def error(self) -> Exception | None:
        """Why no command is carried out now, if that is known."""
        return (self.redirect.error if self.redirect else None) or self.link_state.error

    def redirected(self) -> Redirect:
        """The redirect, made when there is none."""
        if self.redirect is None:
            self.redirect = Redirect()
        return self.redirect

    def unavailable(self, cause: Exception | None = None) -> BackendUnavailable:
        """An error that says which server cannot be asked, and why."""
        cause = cause or self.error or TimeoutError("no answer came")
        place = self.link_state.node.place
        detail = f"{place} is unavailable: {why(cause)}"
        if words := unreachable(cause):
            detail = f"can't reach {place} ({words})"
        error = BackendUnavailable(self._name, detail)
        error.__cause__ = cause.__cause__ if isinstance(cause, ConnectionRejected) else cause
        return error

    def silent(self, seconds: float) -> BackendUnavailable:
        """An error that says why there was no answer for *seconds*."""
        missing = "connection" if self.link_state.link is None else "answer"
        return self.unavailable(self.error or TimeoutError(f"no {missing} in {seconds:.3g} s"))

    def rejected(self, rejection: ConnectionRejected) -> BackendError:
        """An error that says which server cannot be used, and why."""
        place = self.link_state.node.place
        error = BackendError(self._name, f"{place} {rejection}")
        error.__cause__ = rejection.__cause__
        return error


def why(error: Exception) -> str:
    """Why a server is unavailable, in words."""
    if isinstance(error, ConnectionRejected):
        return f"it {error}"
    return str(error) or type(error).__name__


class ServerOutage:
    """The outages of one server.

    A short one is not logged. The first check logs a longer one, and its end is then logged too.
    A client that was admitted before takes a rejection for an outage, such as of a stale token.

    *lasts* is called again and again, with when it began, as long as an outage lasts. *names* are
    those of the semaphores that the server has.

    Attributes:
        attempts: seconds between attempts to connect.
        suspensions: seconds for which nothing is written to a server that is busy.
        logged_since: when the logged outage began. It may outlast the connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: LinkState,
        names: Callable[[], Iterable[str]],
        lasts: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._state = state
        self._names = names
        self._lasts = lasts
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._rejection_logged = False
        self.logged_since: float | None = None
        self._reset_delays()

    def _reset_delays(self) -> None:
        self.attempts: Iterator[float] = delays(random.random)
        self.suspensions: Iterator[float] = delays(random.random, longest=MAX_SUSPENSION)

    def begin(self, error: Exception) -> None:
        """The server cannot be asked, because of *error*."""
        if self._state.error is None:
            self._since = clock()
            self._timer = self._loop.call_later(CHECK_INTERVAL, self._check, context=Context())
        self._state.error = error

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
        self._lasts(self._since)
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
        names = sorted(self._names())
        shown = f" for {', '.join(map(repr, names[:MOST_NAMED]))}" if names else ""
        shown += f" and {len(names) - MOST_NAMED:,} more" if names[MOST_NAMED:] else ""
        extra = facts("outage", place=place, semaphores=names)
        logger.warning("%s is unavailable%s: %s", place, shown, why(error), extra=extra)

    def _log_end(self, since: float) -> None:
        self.logged_since, self._rejection_logged = None, False
        place, lasted = self._state.node.place, clock() - since
        extra = facts("outage over", place=place, seconds=lasted)
        logger.warning("%s is available again, after %.3g s", place, lasted, extra=extra)
