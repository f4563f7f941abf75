"""A permit for each outbound request. The transports of both HTTP clients share this."""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from types import EllipsisType
from typing import Generic, Protocol, TypeVar

import anyio

from redsem_async._api.awaitables import Acquisition
from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.cancellation import finish
from redsem_async._core.clock import now as clock
from redsem_async._core.errors import PermitLost
from redsem_async._core.lease import reply_timeout

from .overload import OVERLOADED, OverloadedResponses
from .selector import Choice, Selector

Request = TypeVar("Request")

logger = logging.getLogger("redsem_async")


class OutboundLimiter(Generic[Request]):
    """Where requests wait for their permits."""

    def __init__(
        self,
        source: AnySemaphore | SemaphoreGroup,
        key: Callable[[Request], str] | str | EllipsisType | None,
        host: Callable[[Request], str],
        *,
        timeout: float | EllipsisType | None,
        permits: int,
        cancel_on_loss: bool | None,
        back_off: bool,
    ) -> None:
        self._overloads = OverloadedResponses() if config.flag(back_off, "back_off") else None
        self._choose = Selector(
            source,
            key,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
            default=host,
        )

    async def acquire(self, request: Request, pool_timeout: float | None) -> "HeldPermit":
        """Wait for a permit. A call that is cancelled meanwhile leaves nothing behind.

        *pool_timeout* is how long the client waits for a connection, and so for a permit, where
        the transport has no timeout of its own.
        """
        choice = self._choose(request)
        timeout: float | EllipsisType | None = ...
        if choice.options["timeout"] is ... and pool_timeout is not None:
            own = choice.semaphore.timeout
            timeout = pool_timeout if own is None else min(own, pool_timeout)
        held = HeldPermit(choice, timeout)
        await held.begin()
        return held

    def answered(self, held: "HeldPermit", status: int, retry_after: str | None) -> None:
        """The upstream answered. Have the fleet back off where it is overloaded."""
        if self._overloads is not None and status in OVERLOADED and held.permit is not None:
            self._overloads.note(held.permit, held.granted_at, retry_after)


class HeldPermit:
    """A permit from before a request is sent until its response is closed.

    That may be in another task than the one that sent it, and no task is in a block meanwhile. The
    permit is therefore held in a task of its own, which its loss ends.

    Attributes:
        permit: once it was granted, which was at *granted_at*.
    """

    def __init__(self, choice: Choice, timeout: float | EllipsisType | None) -> None:
        acquisition = choice.acquire(timeout)
        self._semaphore = choice.semaphore
        self._end_timeout = 2 * reply_timeout(choice.semaphore.lease)
        self.permit: Permit | None = None
        self.granted_at = 0.0
        self._used_at = 0.0  # when the headers came, or a part of the body, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._granted: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._scope: anyio.CancelScope | None = None
        self._loss: PermitLost | None = None
        self._task = asyncio.create_task(self._until_released(acquisition))
        self._task.add_done_callback(_ended)
        _holding.add(self._task)

    async def begin(self) -> None:
        """Wait until the permit is held. Raises what ``acquire`` does."""
        try:
            await asyncio.wait([self._granted, self._task], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._task.cancel()
            await self.end()
            raise
        self.check()

    @contextmanager
    def guarded(self) -> Generator[None]:
        """Cancel the block when the permit is lost, and raise PermitLost then."""
        self.check()
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None
                self._used_at = self._loop.time()
        if scope.cancelled_caught:
            self.check()

    def check(self) -> None:
        """Raise the reason why the permit is not held, if that is to stop us."""
        if self._loss is not None:
            raise self._loss
        if self._task.done():
            self._task.result()

    def expect_reading(self, request: str) -> None:
        """The response to *request* is handed out. Warn when it is left unread for a lease.

        *request* is method and host, and nothing that may be secret.
        """
        lease, now = self._semaphore.lease, self._loop.time()
        is_read = self._scope is not None  # a caller waits for the upstream
        left = (now if is_read else self._used_at) + lease - now
        if left > 0:
            self._timer = self._loop.call_later(left, self.expect_reading, request)
            return
        self._timer, name = None, self._semaphore.name
        logger.warning(
            "the response to %s has been unread for %.3g s: it holds a permit of %r until it is"
            " read or closed (max_hold caps that)",
            request,
            lease,
            name,
            extra={"event": "unread response", "semaphore": name, "held": lease - left},
        )

    async def end(self) -> None:
        """Release the permit, though we may be cancelled."""
        self._over.set()
        await finish(self._task, self._end_timeout)

    def drop(self) -> None:
        """Have the permit released. May be called in any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)

    async def _until_released(self, acquisition: Acquisition) -> None:
        async with acquisition as permit:
            self.permit, self.granted_at = permit, clock()
            self._granted.set_result(None)
            try:
                await self._over.wait()
            except asyncio.CancelledError:
                self._stop(permit)  # first, as releasing a permit may take a while in an outage
                raise
            finally:
                if self._timer is not None:
                    self._timer.cancel()

    def _stop(self, permit: Permit) -> None:
        """Cancel what runs under *permit*, if it is lost."""
        try:
            permit.check()
        except PermitLost as loss:
            self._loss = loss
            if self._scope is not None:
                self._scope.cancel()


_holding: set["asyncio.Task[None]"] = set()  # a loop keeps no task alive


def _ended(task: "asyncio.Task[None]") -> None:
    _holding.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved here, as the caller gets it from `check`


class Stream(Protocol):
    """What a response's body comes from."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


def check_wrapped(wrapped: object, library: str) -> None:
    """Whether *wrapped* sends requests as *library* has them.

    Raises:
        TypeError: it does not.
    """
    roots = {cls.__module__.partition(".")[0] for cls in type(wrapped).__mro__}
    other = roots & {"httpx", "httpx2"}
    if (other and library not in roots) or not hasattr(wrapped, "handle_async_request"):
        raise TypeError(f"wrapped must be an async transport of {library}, not {wrapped!r}")


class ReleasingStream:
    """A response's body, which releases the permit when it was read or is closed."""

    def __init__(self, wrapped: Stream, held: HeldPermit) -> None:
        self._wrapped = wrapped
        self._held = held
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._wrapped)
        try:
            while True:
                with self._held.guarded():
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        break
                yield chunk
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close what is read, and release the permit."""
        if not self._closed:
            self._closed = True
            try:
                await self._wrapped.aclose()
            finally:
                await self._held.end()

    def __del__(self) -> None:
        if not self._closed:
            message = "a response was dropped unread: its permit was held until now"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self._held.drop()
