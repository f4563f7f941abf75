"""How the servers know this process: the hub's id, its numbers, and what it says of itself."""

import asyncio
import os
import random
import socket
import time
from collections.abc import Coroutine
from contextvars import Context
from typing import Any
from weakref import WeakSet

from redsem_async._core.config import Terms
from redsem_async._core.keys import Address, new_hub_id
from redsem_async._core.rates import told_rates
from redsem_async._core.version import __version__
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, UNCOUNTED, HubInfo, describe

from .server import Route

_STARTED = time.time()


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
        orders: two semaphores each. A task in a block of the first asked for the second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.id: str = new_hub_id()
        self.usable: bool = True
        self.closing: bool = False
        self.admitted: bool = False
        self.warned_of_no_push: bool = False
        self.last_number: int = 0
        self.orders: set[tuple[Address, Address]] = set()

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


class Introduction:
    """What a hub says of itself to a server, once for each connection and semaphore.

    It is attached to the next command that can carry it, until the server has it.

    Attributes:
        terms: those of the semaphore object that was used last.
        sent: whether a command carried it, and the server may be expected to remember.
    """

    def __init__(self, route: Route, label: str | None) -> None:
        self.terms: Terms | None = None
        self.sent: bool = False
        self._route = route
        self._label = label

    def take(self, used: int = 0) -> HubInfo:
        """What the command that is written now carries. UNCHANGED if the server has it."""
        if self.sent:
            return UNCHANGED
        self.sent = True
        terms = self.terms
        assert terms is not None
        of_keys = terms.key_limit
        description = describe(
            label=self._label,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            started=round(_STARTED, 3),
            limit=terms.limit,
            lease=terms.lease,
            refresh_interval=round(terms.refresh_interval, 3),
            **({"key_limit": of_keys} if isinstance(of_keys, int) else {}),
            **({"rates": told_rates(terms.rates)} if terms.rates else {}),
        )
        link = self._route.link_state
        messages = NO_PUSH if link.no_push else link.uncounted * UNCOUNTED
        return HubInfo(description, messages, used)
