"""Permits for code that is not async: Celery tasks, Django and Flask views, scripts, notebooks.

```python
portal = Portal("redis://localhost:6379")
reports = portal.fair("reports", limit=4)

with reports.acquire(timeout=5) as permit:
    ...
```
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ._api.awaitables import Acquisition
from ._api.classes import FairSemaphore, Semaphore
from ._api.client import aclose, from_url
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._core.errors import PermitLost, SemaphoreClosed, SemaphoreError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from ._api.options import AnyRedis

__all__ = ["BlockingSemaphore", "Portal"]

T = TypeVar("T")


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread


class Portal(AbstractContextManager["Portal"]):
    """An event loop in a thread, which holds the permits of the other threads of this process.

    The loop starts at the first use, and separately in a forked child, so a portal may be a
    module-level variable. It ends with the program, ``close`` or a ``with`` block, or when a
    coroutine stops it. The next use starts another.

    Args:
        redis: a URL, a client of ``redis.asyncio``, or a ``MemoryBackend``.
        options: for ``from_url``.

    Attributes:
        client: the client that its semaphores use.
    """

    def __init__(self, redis: "AnyRedis | str", **options: Any) -> None:
        self._owned: Redis | None = None
        if isinstance(redis, str):
            redis = self._owned = from_url(redis, **options)
        self.client: AnyRedis = redis
        self.forget_parent()
        _PORTALS.add(self)

    def fair(self, name: str, limit: int | None = None, **options: Any) -> "BlockingSemaphore":
        """Create a ``FairSemaphore`` for threads, with all of its arguments except the client."""
        return BlockingSemaphore(self, FairSemaphore(self.client, name, limit, **options))

    def semaphore(
        self, name: str, limit: int | None = None, **options: Any
    ) -> "BlockingSemaphore":
        """Create a ``Semaphore`` for threads, with all of its arguments except the client."""
        return BlockingSemaphore(self, Semaphore(self.client, name, limit, **options))

    def forget_parent(self) -> None:
        """Start with nothing: called in a forked child, which has neither thread nor lock."""
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of *coroutine*, such as ``reports.wrapped.status()``.

        If the wait is interrupted, for example by Ctrl-C, the coroutine is cancelled.
        """
        future = self.start(coroutine)
        try:
            return self.wait(future)
        finally:
            future.cancel()

    def wait(self, future: Future[T]) -> T:
        """Return the result of *future*, which its own thread cannot wait for."""
        running = self._running
        if running is not None and running.thread is threading.current_thread():
            raise RuntimeError("this would block the event loop of the portal")
        return future.result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start *coroutine* in the loop, and return its future."""
        with self._lock:
            if self._running is None:
                started: Future[_Running] = Future()
                thread = threading.Thread(
                    target=lambda: self._serve(started),
                    name="redsem-portal",
                    daemon=True,  # so that the program ends, and closes it
                )
                thread.start()
                self._running = started.result()
            return asyncio.run_coroutine_threadsafe(coroutine, self._running.loop)

    def _serve(self, started: Future[_Running]) -> None:
        with asyncio.Runner() as runner:
            stop = asyncio.Event()
            running = _Running(runner.get_loop(), stop, threading.current_thread())
            started.set_result(running)
            try:
                runner.run(stop.wait())
            finally:
                with self._lock:
                    if self._running is running:  # a coroutine stopped it, as SystemExit does
                        self._running = None
                runner.run(self._release_all())

    async def _release_all(self) -> None:
        await aclose(self.client)
        if self._owned is not None:
            await self._owned.aclose()

    def close(self) -> None:
        """Release all permits and end the thread. The next use starts another thread.

        Waiting threads get ``SemaphoreClosed``, and blocks that hold a permit get ``PermitLost``.
        """
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            with suppress(RuntimeError):  # it was stopped, and is closed by now
                running.loop.call_soon_threadsafe(running.stop.set)
            running.thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingSemaphore:
    """A semaphore for threads, created by `Portal.fair` or `Portal.semaphore`.

    Attributes:
        wrapped: the async semaphore. ``Portal.run`` runs its coroutines.
    """

    def __init__(self, portal: Portal, wrapped: AnySemaphore) -> None:
        self._portal = portal
        self.wrapped: AnySemaphore = wrapped

    @contextmanager
    def acquire(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        on_loss: Callable[[PermitLost], object] | None = None,
        **of_fair: Any,
    ) -> Generator[Permit]:
        """Hold a permit in a ``with`` block, or in each call of a function that it decorates.

        The permit is refreshed in the thread of the portal.

        A thread cannot be cancelled, so the loss of the permit does not end the block. Call
        ``permit.check()`` before each step that matters, or pass *on_loss*. An exception such as
        ``KeyboardInterrupt`` ends the wait, and leaves no request behind. Leaving the block waits,
        for a bounded time, until the server has confirmed the release.

        Args:
            timeout: seconds to wait, as in ``FairSemaphore.acquire``.
            permits: how many permits to acquire.
            cancel_on_loss: with False, the end of the block raises nothing after a loss.
            on_loss: called with the ``PermitLost`` when the permit is lost, in a separate thread.
            of_fair: ``key``, ``ahead`` and ``cost``, of a ``FairSemaphore``.

        Raises:
            PermitLost: at the end of the block, unless the block itself raises.
            SemaphoreError: as for ``FairSemaphore.acquire``.
        """
        options: dict[str, Any] = {"timeout": timeout, "permits": permits, **of_fair}
        options["cancel_on_loss"] = cancel_on_loss
        held = _HeldByThread(lambda: self.wrapped.acquire(**options), on_loss)
        finalizer = weakref.finalize(block := _Block(), held.close)
        with closing(held):  # at once, although a kept traceback may keep the block alive
            holding = self._portal.start(held.hold())
            holding.add_done_callback(lambda _: held.settle(holding, self.wrapped.name))
            permit = self._portal.wait(held.granted)
            process = os.getpid()

            def leave() -> None:
                if os.getpid() != process:  # forked in the block: the permit is the parent's
                    permit.check()
                held.close()
                finalizer.detach()  # an interruption in a finalizer would be lost
                self._portal.wait(holding)

            try:
                yield permit
            except BaseException:
                # RuntimeError: a dropped generator, collected in the thread of the portal.
                with suppress(PermitLost, CancelledError, RuntimeError):
                    leave()
                raise
            with suppress(CancelledError):  # the portal was closed, and a loss is no error
                leave()
        del block


class _Block:
    """Lives as long as the frame of a block, which an exception may end anywhere."""


class _HeldByThread:
    """A permit that a task of its own holds, for a block in another thread.

    Attributes:
        granted: the permit, or why there is none.
    """

    def __init__(
        self,
        acquire: Callable[[], Acquisition],
        on_loss: Callable[[PermitLost], object] | None,
    ) -> None:
        self.granted: Future[Permit] = Future()
        self._acquire = acquire
        self._on_loss = on_loss
        self._over = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[Any] | None = None

    async def hold(self) -> None:
        """Acquire a permit and hold it until the block ends, or the permit is lost."""
        self._task = asyncio.current_task()
        if self._ended:
            return
        try:
            async with self._acquire() as permit:
                self.granted.set_result(permit)
                await self._over.wait()
                with suppress(SemaphoreError):  # it expires then
                    await permit.release()
        except PermitLost as loss:
            if self._on_loss is not None:
                threading.Thread(target=self._on_loss, args=(loss,), daemon=True).start()
            raise

    def close(self) -> None:
        """The block has ended, or no thread waits for it. In any thread, and also twice."""
        self._ended = True
        if self._task is not None:
            with suppress(RuntimeError):  # the loop was closed
                self._task.get_loop().call_soon_threadsafe(self._close)

    def _close(self) -> None:
        if self.granted.done():
            self._over.set()
        elif self._task is not None:
            self._task.cancel()

    def settle(self, holding: Future[None], name: str) -> None:
        """The task has ended: whoever waits for a permit learns that there is none."""
        if not self.granted.done():
            error = SemaphoreClosed(name) if holding.cancelled() else holding.exception()
            self.granted.set_exception(error)


_PORTALS: weakref.WeakSet[Portal] = weakref.WeakSet()


def _forget_parent() -> None:
    for portal in list(_PORTALS):
        portal.forget_parent()


def _close_all() -> None:
    for portal in list(_PORTALS):
        portal.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
