"""A task group whose tasks hold a permit each."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import EllipsisType
from typing import Any, TypeVar

from redsem_async._api.awaitables import Acquisition
from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._integrations.selector import Acquire, acquirer

T = TypeVar("T")


class ThrottledTaskGroup(asyncio.TaskGroup):
    """An ``asyncio.TaskGroup`` whose tasks hold a permit each while they run.

    ```python
    async with ThrottledTaskGroup(sem) as group:
        for image in images:
            group.create_task(resize(image))
    ```

    Tasks join the queue in the order in which they were created. A task that gets no permit, or
    loses its permit, fails as any task of a group does: the others are cancelled, and an
    ``ExceptionGroup`` leaves the block. A coroutine that was never started is closed.

    All tasks of a group exist at once. For more items than fit into memory, and for results as
    they are ready, see ``throttled_map``.

    Args:
        sem: a semaphore, or a group of them.
        key: for a group of semaphores: a function that returns the key of a task that is created
            without one. It gets the coroutine, as in ``key=lambda coro: coro.__name__``.
        timeout: seconds that a task waits for its permit, instead of the semaphore's own.
        permits: how many permits a task holds.
        cancel_on_loss: whether a lost permit cancels its task; default: as the semaphore says.
            ``False`` suits a cap on load, because work that is under way goes on.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """

    def __init__(
        self,
        sem: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Any], str] | None = None,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
    ) -> None:
        super().__init__()
        self._keyed = isinstance(sem, SemaphoreGroup)
        self._key = key
        checked_key = _itself if self._keyed and key is None else key
        acquirer(
            sem, checked_key, timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss
        )  # raises for bad arguments
        self._acquire: Acquire = acquirer(
            sem,
            _itself if self._keyed else None,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
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
            coro: what to run. It is closed if it is never started.
            name: of the task.
            context: of the task.
            key: for a group of semaphores, which of them.

        Raises:
            RuntimeError: as from ``asyncio.TaskGroup``: not entered, shutting down, finished.
            TypeError: *coro* is not a coroutine, or the key is missing or not allowed.
        """
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        try:
            running = _run_with_permit(self._permit_for(coro, key), coro)
            try:
                task = super().create_task(running, name=name, context=context)
            except BaseException:
                running.close()
                raise
        except BaseException:
            coro.close()
            raise
        # The task may be cancelled before it has begun, or while it waits for its permit.
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


async def _run_with_permit(acquire: Callable[[], Acquisition], coro: Coroutine[Any, Any, T]) -> T:
    async with acquire():
        return await coro
