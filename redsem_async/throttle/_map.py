"""Calls for any number of items, each with a permit, and their results as they are ready."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sized,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import EllipsisType, TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.rates import Cost
from redsem_async._integrations.outage import Acquire, BackOff, OnOutage, acquirer
from redsem_async._integrations.selector import AcquireOptions

T = TypeVar("T")
R = TypeVar("R")

MAX_TASKS_OF_GROUP = 100  # default for a group of semaphores


def throttled_map(
    sem: AnySemaphore | SemaphoreGroup,
    fn: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    on_progress: Callable[[int, int | None], object] | None = None,
    key: Callable[[T], str] | str | EllipsisType | None = ...,
    timeout: float | EllipsisType | None = ...,
    permits: int = 1,
    cancel_on_loss: bool | None = None,
    cost: Callable[[T], Cost | None] | Cost | None = None,
    max_tasks: int | None = None,
    back_off: BackOff | None = None,
    on_outage: OnOutage = "closed",
) -> AbstractAsyncContextManager[AsyncIterator[R]]:
    """Call ``fn(item)`` for each of *items* with a permit, and yield results in completion order.

    ```python
    async with throttled_map(sem, fetch, urls) as pages:
        async for page in pages:
            ...
    ```

    *items* may be endless. The next item is read when there may be a permit for it. At most
    *max_tasks* calls run or wait for a permit, and the results of at most twice as many items are
    pending. A slow consumer delays further calls, and holds no permit meanwhile.

    Errors are handled as in a task group. If a call, *items* or *on_progress* fails, the running
    calls and the block are cancelled, and the block raises an ``ExceptionGroup``. An exception of
    the block itself is also raised in one. Leaving the block in any way cancels the running calls
    and waits for their end. An async generator of items is closed. Several tasks may share the
    results. Each result is given to one of them.

    Args:
        sem: a semaphore, or a group of them.
        fn: the function to call. A call that ends as cancelled, although the map was not
            cancelled, has no result, as in a task group. In *items*, that is an error.
        items: iterable or async iterable. Items are read in the event loop, so use an async
            generator if finding the next one blocks.
        on_progress: called as ``on_progress(done, total)`` in the event loop after each call,
            before its result is returned. *done* counts the calls from 1, and *total* is
            ``len(items)``, or ``None`` if *items* has no length.
        key: in a group or in a semaphore with keys, a string or a function of the item. A
            semaphore with keys requires it, or ``None`` for items without a key.
        timeout: seconds that a call waits for its permit, instead of the semaphore's own.
        permits: how many permits a call holds.
        cancel_on_loss: whether a lost permit cancels its call. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what a call takes from the rate, or a dict of what it takes from each rate, by name,
            as for ``acquire``, or a function of the item that returns one of these.
        max_tasks: how many calls may run or wait in this process at once. The default is the
            number that the declared limit allows, and 100 for a group of semaphores.
        back_off: a function from an exception of a call to the number of seconds for which the
            whole fleet backs off (``permit.back_off``), or ``None`` for no back-off.
        on_outage: what happens to calls while Redis is unavailable or rejects commands. With
            ``"closed"`` the error of ``acquire`` is raised. With ``"open"`` all run without a
            permit. With a number, that many at a time do in this process, and the others wait for
            them, for up to their timeout.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """
    options = AcquireOptions(
        timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss, cost=cost
    )
    acquire = acquirer(sem, key, on_outage, back_off, **options)
    if not isinstance(items, Iterable | AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"items must be iterable or async iterable, not {items!r}")
    if not callable(fn):
        raise TypeError(f"fn must be an async function, not {fn!r}")
    if on_progress is not None:
        config.check_function(on_progress, "on_progress")
    if max_tasks is None:
        if isinstance(sem, SemaphoreGroup):
            max_tasks = MAX_TASKS_OF_GROUP
        else:
            max_tasks = max(1, sem.limit // permits)
    max_calls = config.whole(max_tasks, "max_tasks", 1)
    return _Map(_run(_Results(acquire, fn, on_progress, max_calls), items))


class _Map(AbstractAsyncContextManager[AsyncIterator[R]]):
    """What ``throttled_map`` returns. Raises a helpful error if used without `async with`."""

    def __init__(self, block: AbstractAsyncContextManager[AsyncIterator[R]]) -> None:
        self._block = block

    async def __aenter__(self) -> AsyncIterator[R]:
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._block.__aexit__(exc_type, exc, traceback)

    def _is_a_block(self) -> NoReturn:
        raise TypeError(
            "write `async with throttled_map(...) as results:`, and loop over the results in it"
        )

    __aiter__ = __await__ = _is_a_block


@asynccontextmanager
async def _run(
    results: "_Results[T, R]", items: Iterable[T] | AsyncIterable[T]
) -> AsyncGenerator[AsyncIterator[R]]:
    closed: GeneratorExit | None = None
    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(results.feed(items, tasks))
        try:
            yield results
        except GeneratorExit as error:
            closed = error  # a generator with this block was closed, an error to a task group
        finally:
            feeding.cancel()
            results.close()
    if closed is not None:
        raise closed


class _End:
    """Marks the end of the results."""


_END: Final = _End()


class _Results(Generic[T, R]):
    """The calls of a map, and their results in the order in which they are ready."""

    def __init__(
        self,
        acquire: Acquire,
        fn: Callable[[T], Awaitable[R]],
        on_progress: Callable[[int, int | None], object] | None,
        max_calls: int,
    ) -> None:
        self._acquire = acquire
        self._fn = fn
        self._on_progress = on_progress
        self._max_calls = max_calls
        self._free_calls = asyncio.Semaphore(max_calls)
        self._free_results = asyncio.Semaphore(2 * max_calls)  # one for each call and ready result
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
            self._ready.put_nowait(result)  # for other tasks that share the results
            raise StopAsyncIteration
        self._free_results.release()
        return result

    async def feed(self, items: Iterable[T] | AsyncIterable[T], tasks: asyncio.TaskGroup) -> None:
        """Start a call for each item, as there is room. End the results after the last call."""
        try:
            await self._feed(items, tasks)
        except BaseException as error:
            cancelled_here = isinstance(error, asyncio.CancelledError) and not self._closed
            self.close()  # at once, because the block's cleanup may wait for a consumer of results
            if cancelled_here and not _is_being_cancelled():
                # To a task group, a task that ends as cancelled is no failure.
                raise RuntimeError("the items of the map ended as cancelled") from error
            raise
        self._ready.put_nowait(_END)

    async def _feed(self, items: Iterable[T] | AsyncIterable[T], tasks: asyncio.TaskGroup) -> None:
        self._total = len(items) if isinstance(items, Sized) else None
        source = aiter(items) if isinstance(items, AsyncIterable) else _each_of(items)
        try:
            while True:
                await self._free_results.acquire()
                await self._free_calls.acquire()
                try:
                    item = await anext(source)
                except StopAsyncIteration:
                    break
                if self._closed:  # the source of items was cancelled, and ignored it
                    return
                call = tasks.create_task(self._call(item))
                self._running.add(call)
                call.add_done_callback(self._running.discard)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()
        for _ in range(self._max_calls - 1):  # one was acquired for the item after the last
            await self._free_calls.acquire()

    async def _call(self, item: T) -> None:
        has_result = False
        try:
            async with self._acquire(item):
                result = await self._fn(item)
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)
            self._ready.put_nowait(result)
            has_result = True
        finally:
            self._free_calls.release()
            if not has_result:
                self._free_results.release()

    def close(self) -> None:
        """Cancel the running calls, and end every iteration."""
        self._closed = True
        for call in self._running:
            call.cancel()
        self._ready.put_nowait(_END)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _each_of(items: Iterable[T]) -> AsyncGenerator[T]:
    for item in items:
        yield item
