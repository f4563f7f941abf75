"""A dashboard that shows holders and waiters, and can change limits.

```python
from redsem_async.dashboard import dashboard

app.mount("/semaphores", dashboard(redis))
```

It is an ASGI application for any framework. ``redsem-async serve`` serves it by itself.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from redsem_async._core import config
from redsem_async._redis.dial import checked_client

try:
    from starlette.applications import Starlette

    from ._access import Access, Authorize
    from ._app import Dashboard
    from ._views import matcher
except ModuleNotFoundError as _missing:
    if (_missing.name or "").startswith("redsem_async"):
        raise
    raise ImportError(
        f"redsem_async.dashboard needs {_missing.name}: pip install 'redsem-async[dashboard]'"
    ) from _missing

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = ["Authorize", "dashboard"]


def dashboard(
    redis: "Redis | RedisCluster",
    *,
    prefix: str = "redsem",
    writable: bool = False,
    authorize: Authorize | None = None,
    interval: float = 0.5,
    metrics: str | Callable[[str], bool] = "",
    title: str = "Semaphores",
) -> Starlette:
    """Create the application. Mounted, it sends nothing to Redis until a page is open.

    Served by itself, it also reads every three seconds, so that charts are full from the start.

    Args:
        redis: any client of ``redis.asyncio``, also one in use elsewhere. The dashboard uses at
            most four of its connections, plus the library's one connection.
        prefix: of the keys of the semaphores.
        writable: whether the pages have controls to set limits, pause, resume, back off, revoke
            and delete. It needs *authorize*.
        authorize: ``authorize(request, action, name)``, a function or coroutine function that
            decides whether a request is allowed. It returns True, or a string that names the user
            in the log, to allow it, and False or an empty string to refuse it. *action* is
            ``"view"``, ``"metrics"``, or a change: ``"set_limit"``, ``"pause"``, ``"resume"``,
            ``"back_off"``, ``"revoke"`` or ``"delete"``. *name* is that of the semaphore, or None
            for the list and for metrics. *authorize* is also called to decide which controls a
            page shows, so it must not have side effects. Without *authorize*, every request may
            view.
        interval: seconds between two reads while a page is open, at least 0.1.
        metrics: which names ``GET metrics`` includes, as a part of the name, a glob such as
            ``"tenant:*"``, or a function of the name. By default all, at most 2,000.
        title: of the pages, such as ``"Production"``.

    Raises:
        ValueError, TypeError: for invalid arguments, and ``writable=True`` without *authorize*.
    """
    prefix = config.text(prefix, "prefix")
    writable = config.flag(writable, "writable")
    if writable and authorize is None:
        raise ValueError(
            "writable=True needs authorize=, a function that says who may change what"
        )
    _ = checked_client(redis)
    if not 0.1 <= interval < math.inf:
        raise ValueError(f"interval must be at least 0.1 seconds, not {interval}")
    chosen = metrics if callable(metrics) else matcher(metrics)
    access = Access(writable=writable, authorize=authorize)
    return Dashboard(redis, prefix, interval, access, chosen, title).app()
