"""Tasks of the library's own, which belong to no caller."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


def start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], name: str
) -> "asyncio.Task[None]":
    """Start *coroutine* in an empty context, and in silence if *loop* is closed before its end.

    The context of the caller who happens to start it would stay alive as long as the task.
    """
    # Not with the argument `context`, which a task factory of Python 3.11 need not know.
    task = Context().run(loop.create_task, coroutine, name=name)
    untyped: Any = task
    untyped._log_destroy_pending = False  # noqa: SLF001 - there is no public way
    return task
