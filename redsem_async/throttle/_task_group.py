"""A task group whose tasks each hold a permit."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from types import EllipsisType
from typing import Any, TypeVar

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.rates import Cost
from redsem_async._integrations.outage import OnOutage, Outage
from redsem_async._integrations.selector import Choice, Selector, terms_of

T = TypeVar("T")


class ThrottledTaskGroup(asyncio.TaskGroup):
    """An ``asyncio.TaskGroup`` whose tasks each hold a permit while they run.

    ```python
    async with ThrottledTaskGroup(sem) as group:
        for image in images:
            group.create_task(resize(image))
    ```

    Tasks join the queue in the order in which they were created. A task that gets no permit, or
    loses its permit, fails as any task of a group does. The others are cancelled, and an
    ``ExceptionGroup`` leaves the block. A coroutine that was never started is closed.

    All tasks of a group exist from the start. For more items than fit into memory, and for
    results as they are ready, see ``throttled_map``.

    Args:
        sem: a semaphore, or a group of them.
        key: in a group or in a semaphore with keys, the key of tasks created without one. A string
            or a function of the coroutine, as in ``key=lambda coro: coro.__name__``. With
            ``None``, tasks of a semaphore with keys may have none.
        timeout: seconds that a task waits for its permit, instead of the semaphore's own.
        permits: how many permits a task holds.
        cancel_on_loss: whether a lost permit cancels its task. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: of tasks created without one. What a task takes from the rate, or a dict of what it
            takes from each rate, by name, as for ``acquire``, or a function of the coroutine.
        on_outage: what happens to tasks while Redis is unavailable or rejects commands. With
            ``"closed"`` they fail with the error of ``acquire``. With ``"open"`` all run without a
            permit. With a number, that many at a time do in this process, and the others wait for
            them, for up to their timeout.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """

    def __init__(
        self,
        sem: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Any], str] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        cost: Callable[[Any], Cost | None] | Cost | None = None,
        on_outage: OnOutage = "closed",
    ) -> None:
        super().__init__()
        self._keyed = not isinstance(sem, AnySemaphore) or sem.keyed
        self._needs_key = self._keyed and (key is not None or isinstance(sem, SemaphoreGroup))
        given = _told_later if self._keyed and (key is None or key is ...) else key
        cost = _told_later if cost is None else cost
        self._choose = Selector(
            sem, given, timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss, cost=cost
        )
        self._terms = terms_of(sem)
        self._outage = Outage(on_outage)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        key: str | None = None,
        cost: Cost | None = None,
    ) -> asyncio.Task[T]:
        """Create a task that runs *coro* once it has a permit, and return it.

        Args:
            coro: what to run. It is closed if it is never started.
            name: of the task.
            context: of the task.
            key: the semaphore's key in a group, or the key of a semaphore with keys. By default
                that of the task group.
            cost: what the task takes from the rates. By default that of the task group.

        Raises:
            RuntimeError: as from ``asyncio.TaskGroup``: not entered, shutting down, finished.
            TypeError: *coro* is not a coroutine, or the key or the cost is missing or not allowed.
            ValueError: an invalid cost.
        """
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        try:
            running = self._run(self._choice_for(coro, key, cost), coro)
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

    def _choice_for(
        self, coro: Coroutine[Any, Any, Any], key: str | None, cost: Cost | None
    ) -> Callable[[], Choice]:
        chosen = self._choose.key(coro) if key is None else key
        if chosen is None and self._needs_key:
            raise TypeError(
                "create_task() needs key= for this semaphore or group; for tasks without"
                " one, use ThrottledTaskGroup(sem, key=None)"
            )
        if key is not None and not self._keyed:
            raise TypeError("key= needs a SemaphoreGroup, or a semaphore that has keys")
        cost = self._choose.cost(coro) if cost is None else cost
        self._terms.costs(cost)  # raises
        return partial(self._choose.choose, ... if chosen is None else chosen, cost)

    async def _run(self, choose: Callable[[], Choice], coro: Coroutine[Any, Any, T]) -> T:
        async with self._outage.held(choose()):
            return await coro


def _told_later(_: object) -> None: ...
