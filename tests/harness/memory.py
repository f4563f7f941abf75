"""Replies and confirmations that a test can hold back, without a server."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from redsem_async._protocol.backend import AnyReply, Link, Listener
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation
from redsem_async.testing import MemoryBackend
from redsem_async.testing._memory import MemoryLink


class Gated(MemoryBackend):
    """Keeps replies back while it is shut."""

    shut = False

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[tuple[AnyOperation, Callable[[], None]]] = deque()

    async def connect(self, listener: Listener) -> Link:
        link = cast("MemoryLink", await super().connect(listener))
        deliver = link._reply_received

        def gated(command: AnyOperation, reply: AnyReply | CommandError) -> None:
            self.kept.append((command, partial(deliver, command, reply)))
            if not self.shut:
                self.open()

        setattr(link, "_reply_received", gated)  # noqa: B010 - no checker lets a method be replaced
        return link

    def pass_one(self) -> None:
        """Deliver the oldest reply."""
        self.kept.popleft()[1]()

    def open(self) -> None:
        """Deliver all of them, and those to come."""
        self.shut = False
        while self.kept:
            self.pass_one()
