"""Where a semaphore's commands go, with the state of the link and what keeps them from it."""

import asyncio
import math
import random
from collections.abc import Iterator

from redsem_async._core.backoff import delays
from redsem_async._core.errors import BackendError, BackendUnavailable, unreachable
from redsem_async._protocol.backend import ConnectionRejected, Link, Node

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
