"""A limit on taskiq tasks that holds across all workers."""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from types import EllipsisType
from typing import Any
from weakref import WeakSet

from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._core.rates import Cost
from ._integrations.outage import Block, OnOutage, Outage
from ._integrations.selector import Selector

try:
    from taskiq import AsyncTaskiqDecoratedTask, TaskiqMessage, TaskiqMiddleware
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.taskiq needs taskiq: pip install 'redsem-async[taskiq]'"
    ) from _missing

__all__ = ["SemaphoreMiddleware"]

OLDEST = (0, 12)


def _check_taskiq_version(installed: str) -> None:
    if tuple(map(int, installed.split(".")[:2])) < OLDEST:
        raise ImportError(
            f"redsem_async.taskiq needs taskiq 0.12 or newer, not {installed}: until then a"
            " function that is not async ran without its task's context, so it could not be"
            " known that it needs a permit"
        )


_check_taskiq_version(version("taskiq"))


class SemaphoreMiddleware(TaskiqMiddleware):
    """Every task of a worker holds a permit while its function runs.

    ```python
    broker = ListQueueBroker(url).with_middlewares(SemaphoreMiddleware(sem))

    models = SemaphoreGroup(redis, "model", limit=4)
    by_label = SemaphoreMiddleware(models, key=lambda message: message.labels.get("model"))

    jobs = FairSemaphore(redis, "jobs", limit=20, key_limit=4, share=True)
    by_tenant = SemaphoreMiddleware(jobs, key=lambda message: message.labels.get("tenant"))
    ```

    A broker may have several of these middlewares. A task then holds a permit of each, acquired in
    reverse order.

    A worker first fetches the task, and the task then waits for its permit. Errors of ``acquire``
    and ``PermitLost`` fail the task. They are in its result, and a retry middleware can handle
    them. A waiting task occupies one of its worker's ``--max-async-tasks``, and the wait
    counts towards its ``timeout`` label.

    To limit one task rather than all tasks of a broker, put ``@throttled(sem)`` below
    ``@broker.task``.

    Args:
        sem: a semaphore, or a group of them.
        key: in a group or in a semaphore with keys, a string or a function of the message that
            returns it, or ``None`` for a task that needs no permit. A semaphore with keys
            requires *key*, or ``None`` for tasks without a key.
        timeout: seconds that a task waits, instead of the semaphore's. ``None`` waits forever.
        permits: how many permits a task holds.
        cancel_on_loss: whether a lost permit cancels the task. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what a task takes from the rate, or a dict of what it takes from each rate, by name,
            as for ``acquire``, or a function of the message that returns one of these.
        on_outage: what happens to tasks while Redis is unavailable or rejects commands. With
            ``"closed"`` they fail with the error of ``acquire``. With ``"open"`` all run without a
            permit. With a number, that many at a time do in this process, and the others wait for
            them, for up to their timeout.

    Raises:
        ValueError, TypeError: for invalid arguments. A function that is not async raises
            TypeError when its task runs.
    """

    def __init__(
        self,
        sem: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[TaskiqMessage], str | None] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        cost: Callable[[TaskiqMessage], Cost | None] | Cost | None = None,
        on_outage: OnOutage = "closed",
    ) -> None:
        super().__init__()
        self._choose = Selector(
            sem, key, timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss, cost=cost
        )
        self._outage = Outage(on_outage)
        self._due: ContextVar[TaskiqMessage | None] = ContextVar("due", default=None)
        self._guarded: WeakSet[AsyncTaskiqDecoratedTask[Any, Any]] = WeakSet()

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Guard the function of a task that is about to run.

        It does not acquire here and release in ``post_execute``, because taskiq skips
        ``post_execute`` when something in between fails, and because a task has no result when
        this method fails.
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
            if self._permit(name) is None:
                return function(*args, **kwargs)
            raise TypeError(
                f"{name} is not async, and a thread cannot be stopped when its permit"
                " is lost: make it `async def`, with asyncio.to_thread() inside"
            )

        return under_a_permit if inspect.iscoroutinefunction(function) else refused

    def _permit(self, name: str) -> Block | None:
        """The permit that the current task has to acquire once, and not for calls from it."""
        message = self._due.get()
        if message is None or message.task_name != name:  # called by a dependency of that task
            return None
        self._due.set(None)
        key = self._choose.key(message)
        if key is None:
            return None
        return self._outage.held(self._choose.choose(key, self._choose.cost(message)))
