"""Decides which requests are let in. The web modules translate between it and a framework."""

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import EllipsisType
from typing import Any, Generic, TypeVar, Unpack

import anyio

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.cancellation import finish
from redsem_async._core.errors import (
    AcquireTimeout,
    BackendError,
    BlockedBy,
    PermitLost,
    SemaphoreClosed,
    SemaphoreFull,
)
from redsem_async._core.log import facts

from .outage import Block, OnOutage, Outage
from .selector import AcquireOptions, Choice, Selector

logger = logging.getLogger("redsem_async")

RetryAfter = Callable[[SemaphoreFull], float]
"""Returns the seconds for ``Retry-After``, in place of the error's own estimate."""

_REASONS: dict[BlockedBy, str] = {
    "limit": "all permits are in use",
    "key": "all permits of this key are in use",
    "paused": "paused",
    "back_off": "backing off",
    "rate": "the rate is used up",
}
LONGEST = 10**9  # seconds in Retry-After

UNAVAILABLE = 503
CLIENT_CLOSED_REQUEST = 499  # what proxies log for a client that disconnected
TRY_AGAIN_LATER = 1013  # a WebSocket's close code
READ_AHEAD = 65_536  # bytes of a body that are read before the application asks for them
DISCONNECTS = frozenset({"http.disconnect", "websocket.disconnect"})

Request = TypeVar("Request")


class Rejected(Exception):
    """The request is answered with an error instead. ``__cause__`` is why.

    Attributes:
        status: of the answer.
        retry_after: whole seconds, at least 1.
        detail: a sentence for the client, which names no semaphore.
    """

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = spread(0.0) if retry_after is None else max(1, retry_after)


def spread(estimate: float) -> int:
    """*estimate* in whole seconds, at least 1, and by chance up to as much again.

    Clients that are rejected together would otherwise all come back together.
    """
    least = max(1, math.ceil(min(estimate, LONGEST)))
    return random.randint(least, 2 * least)


class ClientDisconnected(Exception):
    """The client hung up while it waited. Nothing is held."""


class Admission(Generic[Request]):
    """The rules of one gate."""

    def __init__(
        self,
        source: AnySemaphore | SemaphoreGroup,
        key: Callable[[Request], str] | str | EllipsisType | None,
        *,
        on_outage: OnOutage,
        status: int,
        retry_after: RetryAfter | None,
        **options: Unpack[AcquireOptions],
    ) -> None:
        self._choose = Selector(source, key, **options)
        self._outage = Outage(on_outage, fails_fast=True)
        self.status = status_of(status)
        if retry_after is not None:
            config.check_function(retry_after, "retry_after")
        self._retry_after = retry_after

    @asynccontextmanager
    async def admitted(
        self, request: Request, gone: "asyncio.Future[Any] | None"
    ) -> AsyncGenerator[Permit | None]:
        """Hold a permit for the block. ``None`` where an outage lets requests through without.

        Raises:
            Rejected: nothing was free, or the permit was lost in the block.
            ClientDisconnected: *gone* was done first.
        """
        try:
            block = await self._acquire(self._choose(request), gone)
        except SemaphoreFull as full:
            reason = "too many requests are waiting"
            if isinstance(full, AcquireTimeout):
                reason = _REASONS[full.blocked_by]
            raise Rejected(self.status, reason, self._seconds(full)) from full
        except SemaphoreClosed as closed:
            raise Rejected(UNAVAILABLE, "this server is shutting down") from closed
        except BackendError as error:
            raise Rejected(UNAVAILABLE, "temporarily unavailable") from error
        try:
            async with block as permit:
                yield permit
        except PermitLost as lost:
            if not isinstance(block, Permit) or lost.permit_id != block.id:
                raise
            raise Rejected(UNAVAILABLE, "the permit of this request was lost") from lost

    def _seconds(self, full: SemaphoreFull) -> int:
        """What the user's function says. The error's estimate without one, or where it fails."""
        if self._retry_after is not None:
            try:
                return min(math.ceil(self._retry_after(full)), LONGEST)
            except Exception as error:  # noqa: BLE001 - a rejection must not become a server error
                extra = facts("retry_after")
                logger.warning("the function retry_after failed: %r", error, extra=extra)
        return spread(full.retry_after)

    async def _acquire(self, choice: Choice, gone: "asyncio.Future[Any] | None") -> Block:
        """Wait for a permit, but no longer than the client does."""
        block: Block | None = None
        with anyio.CancelScope() as scope:

            def leave(_: object) -> None:
                scope.cancel()

            if gone is not None:
                gone.add_done_callback(leave)
            try:
                block = await self._outage.acquire(choice)
            finally:
                if gone is not None:
                    gone.remove_done_callback(leave)
        if block is None:
            raise ClientDisconnected
        return block


async def stop(task: "asyncio.Task[Any]") -> None:
    """Cancel *task*, and wait for its end. Its error is known already, or does not matter."""
    task.cancel()
    await finish(task, 1.0)
    if task.done() and not task.cancelled():
        task.exception()


def status_of(value: object) -> int:
    """Return the status of an answer that says *full*."""
    status = config.whole(value, "status", 400)
    if status > 599:
        raise ValueError(f"status must be that of an error, such as 503 or 429, not {status}")
    return status
