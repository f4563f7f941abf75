"""A function whose calls each hold a permit."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import EllipsisType
from typing import Any, ParamSpec, TypeVar

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.rates import Cost
from redsem_async._integrations.outage import BackOff, OnOutage, acquirer
from redsem_async._integrations.selector import AcquireOptions

P = ParamSpec("P")
R = TypeVar("R")


def throttled(
    sem: AnySemaphore | SemaphoreGroup,
    *,
    key: Callable[..., str] | str | EllipsisType | None = ...,
    timeout: float | EllipsisType | None = ...,
    permits: int = 1,
    cancel_on_loss: bool | None = None,
    cost: Callable[..., Cost | None] | Cost | None = None,
    back_off: BackOff | None = None,
    on_outage: OnOutage = "closed",
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an async function or method, so that each call holds a permit while it runs.

    ```python
    @throttled(sem, timeout=30)
    async def embed(text: str) -> list[float]: ...


    @throttled(per_tenant, key=lambda tenant, _: tenant)
    async def report(tenant: str, day: date) -> None: ...
    ```

    Args:
        sem: a semaphore, or a group of them.
        key: in a group or in a semaphore with keys, a string or a function that returns it. It
            gets the call's arguments unchanged, with ``self`` for a method. A semaphore with keys
            requires it, or ``None`` for calls without a key.
        timeout: seconds to wait for the permit, instead of the semaphore's. ``None`` waits
            forever. 0 does not join the queue, and returns as soon as Redis replies.
        permits: how many permits a call holds.
        cancel_on_loss: whether a lost permit cancels the call. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what a call takes from the rate, or a dict of what it takes from each rate, by name,
            as for ``acquire``, or a function of the call's arguments that returns one of these.
        back_off: a function from an exception of a call to the number of seconds for which the
            whole fleet backs off (``permit.back_off``), or ``None`` for no back-off.
        on_outage: what happens to calls while Redis is unavailable or rejects commands. With
            ``"closed"`` the error of ``acquire`` is raised. With ``"open"`` all run without a
            permit. With a number, that many at a time do in this process, and the others wait for
            them, for up to their timeout.

    Returns:
        A decorator that keeps the function's signature, types and name. A decorated call raises
        the errors of ``acquire`` before the function starts. If the permit is lost while the
        function runs, the function is cancelled and the call raises ``PermitLost``. A call that is
        cancelled while it waits leaves nothing behind. A call that is cancelled later releases the
        permit once the function has ended.

    Raises:
        TypeError: *function* is not an async function, *key* is given without a group or a
            semaphore with keys, or one of these without *key*. The same for *cost* and rates.
        ValueError: an invalid timeout, number of permits or cost.
    """
    options = AcquireOptions(
        timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss, cost=cost
    )
    acquire = acquirer(sem, key, on_outage, back_off, **options)

    def decorate(
        function: Callable[P, Coroutine[Any, Any, R]],
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        _require_async(function)

        @wraps(function)
        async def with_permit(*args: P.args, **kwargs: P.kwargs) -> R:
            async with acquire(*args, **kwargs):
                return await function(*args, **kwargs)

        return with_permit

    return decorate


def _require_async(function: object) -> None:
    if inspect.iscoroutinefunction(function):
        return
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isasyncgenfunction(function):
        what = "is an async generator: use `async with sem.acquire()` inside it"
    elif isinstance(function, classmethod | staticmethod):
        what = "is decorated already: put throttled() below @classmethod or @staticmethod"
    else:
        what = "is not: make it `async def`, and call blocking code by asyncio.to_thread()"
    raise TypeError(f"throttled() is for async functions, and {name} {what}")
