"""Background work under a cap that holds for the whole fleet.

``throttled`` guards a function, ``ThrottledTaskGroup`` tasks, and ``throttled_map`` one call for
each of any number of items. What each of them takes as *sem* is a semaphore, or a
:class:`~redsem_async.SemaphoreGroup` and a *key* that chooses from it.
"""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sized,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import wraps
from types import EllipsisType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from ._api.awaitables import Acquisition
from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._core import config
from ._integrations.selector import Acquire, acquirer

__all__ = ["ThrottledTaskGroup", "throttled", "throttled_map"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

TASKS_OF_A_GROUP = 100  # of a map over a group of semaphores, unless said otherwise


def throttled(
    sem: AnySemaphore | SemaphoreGroup,
    *,
    key: Callable[..., str] | None = None,
    timeout: float | EllipsisType | None = ...,
    permits: int = 1,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an async function or method: each call holds a permit while it runs.

    ::

        @throttled(sem, timeout=30)
        async def embed(text: str) -> list[float]: ...


        @throttled(per_tenant, key=lambda tenant, _: tenant)
        async def report(tenant: str, day: date) -> None: ...

    Args:
        sem: a semaphore, or a group of them.
        key: for a group: given the call's arguments as they are, ``self`` among them, it gives
            the key.
        timeout: seconds to wait for the permit, instead of the semaphore's own; ``None`` for
            ever, 0 for not at all.
        permits: how many, held and released as one.

    Returns:
        What makes of a function one with the same signature, types and name. A call raises what
        ``acquire`` raises before the function has begun; ``PermitLost`` where the permit was
        lost meanwhile, which cancels the function; and else what the function raises.
        Cancelled in line, it leaves nothing behind; cancelled later, it gives the permit back
        once the function has ended.

    Raises:
        TypeError: for what is not an async function, and for a key without a group or a group
            without a key.
        ValueError: for a timeout or permits that cannot be meant.
    """
    acquire = acquirer(sem, key, timeout=timeout, permits=permits)

    def decorate(
        function: Callable[P, Coroutine[Any, Any, R]],
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        _see_that_it_is_async(function)

        @wraps(function)
        async def under_a_permit(*args: P.args, **kwargs: P.kwargs) -> R:
            async with acquire(*args, **kwargs):
                return await function(*args, **kwargs)

        return under_a_permit

    return decorate


def _see_that_it_is_async(function: object) -> None:
    if inspect.iscoroutinefunction(function):
        return
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function):
        what = "is an async generator, which may be left anywhere: hold a permit inside it"
    elif isinstance(function, classmethod | staticmethod):
        what = "is decorated already: put throttled() below @classmethod or @staticmethod"
    else:
        what = "is not: make it `async def`, and call blocking code by asyncio.to_thread()"
    raise TypeError(f"throttled() is for async functions, and {name} {what}")


class ThrottledTaskGroup(asyncio.TaskGroup):
    """An ``asyncio.TaskGroup`` whose tasks run under a permit each.

    ::

        async with ThrottledTaskGroup(sem) as group:
            for image in images:
                group.create_task(resize(image))

    Tasks get in line in the order in which they were created, and fail as any task of the group
    does when they get no permit or lose theirs: the others are cancelled, and an
    ``ExceptionGroup`` leaves the block. A coroutine whose turn never came is closed.

    All tasks of a group exist at once: for more items than fit into memory, and for results as
    they come, see :func:`throttled_map`.

    Args:
        sem: a semaphore, or a group of them.
        key: for a group of semaphores: given the coroutine, it gives the key of a task that is
            created without one, as in ``key=lambda coro: coro.__name__``.
        timeout: seconds that a task waits for its permit, instead of the semaphore's own.
        permits: how many a task holds.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant.
    """

    def __init__(
        self,
        sem: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Any], str] | None = None,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
    ) -> None:
        super().__init__()
        self._keyed = isinstance(sem, SemaphoreGroup)
        self._key = key
        chosen = _itself if self._keyed and key is None else key
        acquirer(sem, chosen, timeout=timeout, permits=permits)  # bad arguments are told here
        self._acquire: Acquire = acquirer(
            sem, _itself if self._keyed else None, timeout=timeout, permits=permits
        )

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        key: str | None = None,
    ) -> asyncio.Task[T]:
        """Create a task that runs *coro* once it has a permit, and return it.

        Args:
            coro: what to run. It is closed if that does not come to pass.
            name: of the task.
            context: that it runs in.
            key: for a group of semaphores, which of them.

        Raises:
            RuntimeError: where ``asyncio.TaskGroup`` does: not entered, shutting down, finished.
            TypeError: *coro* is no coroutine, or the key is missing or too many.
        """
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        try:
            running = _under(self._permit_for(coro, key), coro)
            try:
                task = super().create_task(running, name=name, context=context)
            except BaseException:
                running.close()
                raise
        except BaseException:
            coro.close()
            raise
        # It may be cancelled before it has begun, or in line.
        task.add_done_callback(lambda _: coro.close())
        return task

    def _permit_for(
        self, coro: Coroutine[Any, Any, Any], key: str | None
    ) -> Callable[[], Acquisition]:
        if not self._keyed:
            if key is not None:
                raise TypeError("key= chooses from a SemaphoreGroup, and this is a semaphore")
            return self._acquire
        if key is None:
            if self._key is None:
                raise TypeError("which semaphore of the group? Give the task a key=")
            key = self._key(coro)
        return lambda: self._acquire(key)


def _itself(key: str) -> str:
    return key


async def _under(acquire: Callable[[], Acquisition], coro: Coroutine[Any, Any, T]) -> T:
    async with acquire():
        return await coro


def throttled_map(
    sem: AnySemaphore | SemaphoreGroup,
    fn: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    on_progress: Callable[[int, int | None], object] | None = None,
    key: Callable[[T], str] | None = None,
    timeout: float | EllipsisType | None = ...,
    permits: int = 1,
    max_tasks: int | None = None,
) -> AbstractAsyncContextManager[AsyncIterator[R]]:
    """Call ``fn(item)`` for each of *items* under a permit; results come as they are ready.

    ::

        async with throttled_map(sem, fetch, urls) as pages:
            async for page in pages:
                ...

    Items may be endless. One is taken when there may be a permit for it: no more than
    *max_tasks* calls run or stand in line, and no more than twice as many items were taken
    whose results were not. A consumer that is slow holds up the calls, without a permit in
    its hands.

    Errors are a task group's: when a call fails, or *items*, or *on_progress*, the calls that
    run and the block are cancelled, and an ``ExceptionGroup`` leaves the block; so does an
    exception of the block's own, within one. Leaving the block in any way cancels what still
    runs and waits for its end; an async generator of items is closed. Several tasks may share
    the results: each is given once.

    Args:
        sem: a semaphore, or a group of them.
        fn: the function to call. Where it ends as cancelled though nobody cancelled the map,
            there is no result, as in a task group.
        items: to call it for, iterable or async iterable. Taken in the event loop: what blocks
            to find the next one belongs in an async generator.
        on_progress: called as ``on_progress(done, total)`` in the event loop, once for each call
            that has returned, before its result is given: *done* counts them from 1, and *total*
            is ``len(items)``, or ``None`` where they have no length.
        key: for a group: given the item, it gives the key.
        timeout: seconds that a call waits for its permit, instead of the semaphore's own.
        permits: how many a call holds.
        max_tasks: most calls at a time in this process, those in line included: by default as
            many as the declared limit has room for, and 100 for a group of semaphores.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant.
    """
    acquire = acquirer(sem, key, timeout=timeout, permits=permits)
    if not isinstance(items, Iterable | AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"items must be iterable or async iterable, not {items!r}")
    if inspect.iscoroutinefunction(on_progress):
        raise TypeError("on_progress must be a plain function: nobody would await it")
    if max_tasks is None:
        if isinstance(sem, SemaphoreGroup):
            max_tasks = TASKS_OF_A_GROUP
        else:
            max_tasks = max(1, sem.limit // permits)
    most = config.whole(max_tasks, "max_tasks", 1)
    return _running(_Results(acquire, fn, on_progress, most), items)


@asynccontextmanager
async def _running(
    results: "_Results[T, R]", items: Iterable[T] | AsyncIterable[T]
) -> AsyncGenerator[AsyncIterator[R]]:
    closed: GeneratorExit | None = None
    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(results.feed(items, tasks))
        try:
            yield results
        except GeneratorExit as error:
            closed = error  # the block is a generator's: a task group would call that an error
        finally:
            feeding.cancel()
            results.close()
    if closed is not None:
        raise closed


class _End:
    """Comes after the last result."""


_END: Final = _End()


class _Results(Generic[T, R]):
    """The calls of a map, and their results in the order in which they are ready."""

    def __init__(
        self,
        acquire: Acquire,
        fn: Callable[[T], Awaitable[R]],
        on_progress: Callable[[int, int | None], object] | None,
        most: int,
    ) -> None:
        self._acquire = acquire
        self._fn = fn
        self._on_progress = on_progress
        self._most = most
        self._calls = asyncio.Semaphore(most)
        self._untaken = asyncio.Semaphore(2 * most)  # calls, and results that nobody took yet
        self._ready: asyncio.Queue[R | _End] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False
        self._done = 0
        self._total: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        if self._closed:
            raise StopAsyncIteration
        result = await self._ready.get()
        if isinstance(result, _End):
            self._ready.put_nowait(result)  # for others who share the results
            raise StopAsyncIteration
        self._untaken.release()
        return result

    async def feed(self, items: Iterable[T] | AsyncIterable[T], tasks: asyncio.TaskGroup) -> None:
        """Start a call for each item, as there is room; then, or where that fails, it is over."""
        try:
            await self._feed(items, tasks)
        except BaseException:
            self.close()  # now: the block's own clean-up may wait for who waits for results
            raise
        self._ready.put_nowait(_END)

    async def _feed(self, items: Iterable[T] | AsyncIterable[T], tasks: asyncio.TaskGroup) -> None:
        self._total = len(items) if isinstance(items, Sized) else None
        source = aiter(items) if isinstance(items, AsyncIterable) else _Each(iter(items))
        try:
            while True:
                await self._untaken.acquire()
                await self._calls.acquire()
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    break
                if self._closed:  # whoever gave the item was cancelled, and went on
                    return
                call = tasks.create_task(self._call(item))
                self._running.add(call)
                call.add_done_callback(self._running.discard)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        for _ in range(self._most - 1):  # one was for the item that did not come
            await self._calls.acquire()

    async def _call(self, item: T) -> None:
        answered = False
        try:
            async with self._acquire(item):
                result = await self._fn(item)
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)
            self._ready.put_nowait(result)
            answered = True
        finally:
            self._calls.release()
            if not answered:
                self._untaken.release()

    def close(self) -> None:
        """Cancel what runs, and end every iteration."""
        self._closed = True
        for call in self._running:
            call.cancel()
        self._ready.put_nowait(_END)


class _Each(Generic[T]):
    """An iterator, as an async one."""

    def __init__(self, iterator: Iterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None
