"""Decides which requests are let in. The web modules translate between it and a framework."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import EllipsisType
from typing import Any, Generic, Literal, TypeVar

import anyio

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    BlockedBy,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreFull,
)

from .selector import Choice, Selector

logger = logging.getLogger("redsem_async")

OnOutage = Literal["closed", "open"] | int
"""What happens to requests while Redis grants no permits. A number is a limit for this process."""

RetryAfter = Callable[[SemaphoreFull], float]
"""Returns the seconds for ``Retry-After``, in place of the error's own estimate."""

_REASONS: dict[BlockedBy, str] = {
    "limit": "all permits are in use",
    "key": "all permits of this key are in use",
    "paused": "paused",
    "back_off": "backing off",
}
LONGEST = 10**9  # seconds in Retry-After

UNAVAILABLE = 503
TRY_AGAIN_LATER = 1013  # a WebSocket's close code

Request = TypeVar("Request")


class Rejected(Exception):
    """The request is answered with an error instead. ``__cause__`` is why.

    Attributes:
        status: of the answer.
        retry_after: whole seconds, at least 1.
        detail: a sentence for the client, which names no semaphore.
    """

    def __init__(self, status: int, detail: str, retry_after: float = 0.0) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = max(1, math.ceil(retry_after))


class ClientDisconnected(Exception):
    """The client hung up while it waited. Nothing is held."""


class Admission(Generic[Request]):
    """The rules of one gate, and what it knows of an outage."""

    def __init__(
        self,
        source: AnySemaphore | SemaphoreGroup,
        key: Callable[[Request], str] | str | EllipsisType | None,
        *,
        timeout: float | EllipsisType | None,
        permits: int,
        cancel_on_loss: bool | None,
        on_outage: OnOutage,
        status: int,
        retry_after: RetryAfter | None,
    ) -> None:
        self._choose = Selector(
            source, key, timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss
        )
        self._on_outage = on_outage_of(on_outage)
        self.status = status_of(status)
        if retry_after is not None:
            config.check_function(retry_after, "retry_after")
        self._retry_after = retry_after
        self._away = False
        self._asking = False  # whether it is over
        self._inside = 0  # let in by the local limit

    def choose(self, request: Request) -> Choice:
        """The permit that *request* needs."""
        return self._choose(request)

    @asynccontextmanager
    async def admitted(
        self, choice: Choice, gone: "asyncio.Future[Any] | None"
    ) -> AsyncGenerator[Permit | None]:
        """Hold a permit for the block. ``None`` where an outage lets requests through without.

        Raises:
            Rejected: nothing was free, or the permit was lost in the block.
            ClientDisconnected: *gone* was done first.
        """
        try:
            permit = await self._acquire(choice, gone)
        except AcquireTimeout as full:
            reason = _REASONS[full.blocked_by]
            raise Rejected(self.status, reason, self._seconds(full)) from full
        except QueueFull as full:
            raise Rejected(
                self.status, "too many requests are waiting", self._seconds(full)
            ) from full
        except SemaphoreClosed as closed:
            raise Rejected(UNAVAILABLE, "this server is shutting down") from closed
        except BackendError as error:  # unreachable, or it refuses: out of memory, NOPERM, ...
            self._note(error)
            self._refuse_in_outage(error)
            permit = None
        if permit is None:
            self._inside += 1
            try:
                yield None
            finally:
                self._inside -= 1
            return
        try:
            async with permit:
                yield permit
        except PermitLost as lost:
            if lost.permit_id != permit.id:
                raise
            raise Rejected(UNAVAILABLE, "the permit of this request was lost") from lost

    def _seconds(self, full: SemaphoreFull) -> float:
        """What the user's function says. The error's estimate without one, or where it fails."""
        estimate = min(full.retry_after, LONGEST)
        if self._retry_after is None:
            return estimate
        try:
            return min(math.ceil(self._retry_after(full)), LONGEST)
        except Exception as error:  # noqa: BLE001 - a rejection must not become a server error
            facts = {"event": "retry_after"}
            logger.warning("the function retry_after failed: %r", error, extra=facts)
            return estimate

    async def _acquire(self, choice: Choice, gone: "asyncio.Future[Any] | None") -> Permit:
        """Wait for a permit, but no longer than the client does."""
        permit: Permit | None = None
        with anyio.CancelScope() as scope:

            def leave(_: object) -> None:
                scope.cancel()

            if gone is not None:
                gone.add_done_callback(leave)
            try:
                permit = await self._ask(choice)
            finally:
                if gone is not None:
                    gone.remove_done_callback(leave)
        if permit is None:
            raise ClientDisconnected
        return permit

    async def _ask(self, choice: Choice) -> Permit:
        if self._away:
            # The first to notice waited for its whole timeout. After it one at a time asks, since
            # where Redis is silent that takes seconds, and no other request waits.
            if self._asking:
                raise BackendUnavailable(
                    choice.semaphore.name, "Redis could not be asked just now"
                )
            self._asking = True
            try:
                permit = await choice.acquire(timeout=0)
            except SemaphoreFull:
                self._note(None)
            else:
                self._note(None)
                return permit
            finally:
                self._asking = False
        return await choice.acquire()

    def _refuse_in_outage(self, error: BackendError) -> None:
        """Raise Rejected unless the rules let one more in."""
        rule = self._on_outage
        if rule == "open":
            return
        if isinstance(rule, str) or self._inside >= rule:
            raise Rejected(UNAVAILABLE, "temporarily unavailable") from error

    def _consequence(self) -> str:
        match self._on_outage:
            case "closed":
                return "rejecting requests"
            case "open":
                return "admitting requests without a permit"
            case limit:
                return f"admitting {limit} requests at a time, without a permit"

    def _note(self, error: BackendError | None) -> None:
        if error is not None and not self._away:
            text = "Redis grants no permits: %s (on_outage=%r), because of %s"
            facts = {"event": "on_outage"}
            logger.warning(text, self._consequence(), self._on_outage, error, extra=facts)
        elif self._away and error is None:
            facts = {"event": "on_outage over"}
            logger.warning("Redis grants permits again: requests need one", extra=facts)
        self._away = error is not None


def on_outage_of(value: object) -> OnOutage:
    """Return what to do while Redis is unavailable."""
    match value:
        case "closed":
            return "closed"
        case "open":
            return "open"
        case str():
            raise ValueError(f"on_outage must be 'closed', 'open' or a limit, not {value!r}")
        case _:
            return config.whole(value, "on_outage", 1)


def status_of(value: object) -> int:
    """Return the status of an answer that says *full*."""
    status = config.whole(value, "status", 400)
    if status > 599:
        raise ValueError(f"status must be that of an error, such as 503 or 429, not {status}")
    return status
