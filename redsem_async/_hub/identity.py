"""How the servers know this process, by a hub's id and the numbers that it draws."""

import asyncio
import random
from collections.abc import Coroutine
from contextvars import Context
from typing import Any
from weakref import WeakSet

from redsem_async._core.keys import new_hub_id


class HubIdentity:
    """The part of a hub that everything below it needs.

    Attributes:
        loop: the event loop that the hub belongs to.
        id: names the hub in Redis. It is new after the hub was idle.
        usable: False in a forked child, where the connections and permits are the parent's.
        closing: whether ``aclose`` is under way.
        admitted: whether a login of this client has succeeded. A rejection may pass then.
        warned_of_no_push: whether the log has it that no push messages come.
        last_number: that was drawn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.id: str = new_hub_id()
        self.usable: bool = True
        self.closing: bool = False
        self.admitted: bool = False
        self.warned_of_no_push: bool = False
        self.last_number: int = 0

    def new_number(self) -> int:
        """Draw a number for a request or a call when it is written, so in the wire's order."""
        self.last_number += 1
        return self.last_number

    def stagger(self, time: float) -> float:
        """Once to twice *time*, at random, so that no two processes act at once."""
        return time * (1 + random.random())


HUB_TASKS: WeakSet["asyncio.Task[None]"] = WeakSet()
"""The tasks of every hub. At the end of a program they do not wait for each other."""


def start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], name: str
) -> "asyncio.Task[None]":
    """Start *coroutine* in an empty context, and in silence if *loop* is closed before its end.

    The context of the caller who happens to start it would stay alive as long as the task.
    """
    # Not with the argument `context`, which a task factory of Python 3.11 need not know.
    task = Context().run(loop.create_task, coroutine, name=name)
    HUB_TASKS.add(task)
    untyped: Any = task
    untyped._log_destroy_pending = False  # noqa: SLF001 - there is no public way
    return task
