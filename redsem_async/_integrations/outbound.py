"""A permit for what begins in one task and ends in another, such as an outbound request."""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio

from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.cancellation import finish
from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, PermitLost, QueueFull
from redsem_async._core.lease import reply_timeout
from redsem_async._core.log import facts

from .outage import Block

logger = logging.getLogger("redsem_async")


@contextmanager
def raising(timeout: type[AcquireTimeout], queue_full: type[QueueFull]) -> Generator[None]:
    """Raise what says that no permit is free as errors that are also those of another library."""
    try:
        yield
    except AcquireTimeout as full:
        timed_out = (full.name, full.waited, full.retry_after, full.blocked_by, full.nested)
        raise timeout(*timed_out) from full
    except QueueFull as full:
        raise queue_full(full.name, full.max_waiters, full.retry_after, full.for_key) from full


class HeldPermit:
    """A permit from before a request is sent until its response is closed.

    That may be in another task than the one that sent it, and no task is in a block meanwhile. The
    permit is therefore held in a task of its own, which its loss ends.

    Attributes:
        permit: once it was granted, which was at *granted_at*. None where an outage lets the
            request through without.
    """

    def __init__(self, semaphore: AnySemaphore, block: Block) -> None:
        self._semaphore = semaphore
        self._end_timeout = 2 * reply_timeout(semaphore.lease)
        self.permit: Permit | None = None
        self.granted_at = 0.0
        self._used_at = 0.0  # when the headers came, or a part of the body, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._granted: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._scope: anyio.CancelScope | None = None
        self._loss: PermitLost | None = None
        self._task = asyncio.create_task(self._until_released(block))
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
        if self.permit is None:
            return
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
            extra=facts("unread response", semaphore=name, held=lease - left),
        )

    async def end(self) -> None:
        """Release the permit, though we may be cancelled."""
        self._over.set()
        await finish(self._task, self._end_timeout)

    def drop(self) -> None:
        """Have the permit released. May be called in any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)

    async def _until_released(self, block: Block) -> None:
        async with block as permit:
            self.permit, self.granted_at = permit, clock()
            self._granted.set_result(None)
            try:
                await self._over.wait()
            except asyncio.CancelledError:
                if permit is not None:
                    self._stop(permit)  # first, as it may take a while to release in an outage
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


WhenRead = Callable[[bytes], None]
"""Gets what was read of a response's body, and raises nothing."""


class ReleasingStream:
    """A response's body, which releases the permit when it was read or is closed.

    Before that, *when_read* is called with what was read, unless reading has never begun.
    """

    def __init__(self, wrapped: Stream, held: HeldPermit, when_read: WhenRead | None) -> None:
        self._wrapped = wrapped
        self._held = held
        self._when_read = when_read
        self._read: list[bytes] | None = None
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks, self._read = aiter(self._wrapped), []
        try:
            while True:
                with self._held.guarded():
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        break
                if self._when_read is not None:
                    self._read.append(chunk)
                yield chunk
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close what is read, and release the permit."""
        if not self._closed:
            self._closed = True
            try:
                if self._when_read is not None and self._read is not None:
                    self._when_read(b"".join(self._read))
                await self._wrapped.aclose()
            finally:
                await self._held.end()

    def __del__(self) -> None:
        if not self._closed:
            message = "a response was dropped unread: its permit was held until now"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self._held.drop()
