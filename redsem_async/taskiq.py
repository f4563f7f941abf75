"""taskiq tasks under a cap that holds for the whole fleet of workers."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from types import EllipsisType
from typing import Any
from weakref import WeakSet

from ._api.awaitables import Acquisition
from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._integrations.selector import acquirer

try:
    from taskiq import AsyncTaskiqDecoratedTask, TaskiqMessage, TaskiqMiddleware
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.taskiq needs taskiq: pip install 'redsem-async[taskiq]'"
    ) from _missing

__all__ = ["SemaphoreMiddleware"]

OLDEST = (0, 12)


def _see_that_contexts_are_kept(installed: str) -> None:
    if tuple(map(int, installed.split(".")[:2])) < OLDEST:
        raise ImportError(
            f"redsem_async.taskiq needs taskiq 0.12 or newer, not {installed}: until then a"
            " function that is not async ran without its task's context, and would not have"
            " known that it needs a permit"
        )


_see_that_contexts_are_kept(version("taskiq"))


class SemaphoreMiddleware(TaskiqMiddleware):
    """Every task that a worker runs holds a permit while its function does.

    ::

        broker = ListQueueBroker(url).with_middlewares(SemaphoreMiddleware(sem))

        models = SemaphoreGroup(redis, "model", limit=4)
        by_label = SemaphoreMiddleware(models, key=lambda message: message.labels.get("model"))

    A broker may have several: a task then holds a permit of each, taken in the reverse of their
    order.

    The permit is waited for when a worker has taken the task, as a part of it: what ``acquire``
    raises is the task's error, and so is ``PermitLost``; the result tells, and a retry middleware
    may act on it. A task that waits takes one of its worker's ``--max-async-tasks``, and the
    wait counts for its ``timeout`` label.

    For one task rather than all of a broker, put ``@throttled(sem)`` below ``@broker.task``.

    Args:
        sem: a semaphore, or a group of them.
        key: for a group: given the message, it gives the key, or ``None`` for a task that needs
            no permit.
        timeout: seconds that a task waits, instead of the semaphore's own; ``None`` for ever.
        permits: how many a task holds.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant. A function that is not async
            is refused when it is to run, as the error of its task.
    """

    def __init__(
        self,
        sem: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[TaskiqMessage], str | None] | None = None,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
    ) -> None:
        super().__init__()
        checked = _itself if key is not None else None
        self._acquire = acquirer(sem, checked, timeout=timeout, permits=permits)
        self._key = key
        self._due: ContextVar[TaskiqMessage | None] = ContextVar("due", default=None)
        self._guarded: WeakSet[AsyncTaskiqDecoratedTask[Any, Any]] = WeakSet()

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Guard the function of a task that is about to run.

        Not by acquiring here and releasing in ``post_execute``: that is left out where something
        in between fails, and nobody gets a result where this does.
        """
        task = self.broker.find_task(message.task_name)
        if task is not None:
            if task not in self._guarded:
                task.original_func = self._guard(task.task_name, task.original_func)
                self._guarded.add(task)
            self._due.set(message)
        return message

    def _guard(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def under_a_permit(*args: Any, **kwargs: Any) -> Any:
            permit = self._permit(name)
            if permit is None:
                return await function(*args, **kwargs)
            async with permit:
                return await function(*args, **kwargs)

        @wraps(function)
        def refused(*args: Any, **kwargs: Any) -> Any:
            permit = self._permit(name)
            if permit is None:
                return function(*args, **kwargs)
            permit.close()
            raise TypeError(
                f"{name} is not async, and a thread cannot be stopped where it"
                " loses its permit: make it `async def`, with asyncio.to_thread() inside"
            )

        return under_a_permit if inspect.iscoroutinefunction(function) else refused

    def _permit(self, name: str) -> Acquisition | None:
        """What the task that is about to run has to acquire: once, and not if it is called."""
        message = self._due.get()
        if message is None or message.task_name != name:  # called by a dependency of that task
            return None
        self._due.set(None)
        if self._key is None:
            return self._acquire()
        key = self._key(message)
        return None if key is None else self._acquire(key)


def _itself(key: str) -> str:
    return key
