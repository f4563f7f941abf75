"""Replies and confirmations that a test can hold back, without a server."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

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


class Distant(MemoryBackend):
    """A client whose link is slow, or carries nothing any more."""

    def __init__(self) -> None:
        super().__init__()
        self.delay = 0.0  # seconds that everything takes on its way, in each direction
        self.muted = self.half_open = False  # what the server writes is lost, or everything is
        self.refusing = False  # new connections
        self.sent: list[AnyOperation] = []
        self.link: MemoryLink | None = None

    async def connect(self, listener: Listener) -> Link:
        if self.refusing:
            raise ConnectionError("it is cut off")
        link = self.link = cast("MemoryLink", await super().connect(listener))
        arrive, receive = link.send, link._receive
        loop, due = asyncio.get_running_loop(), {"there": 0.0, "back": 0.0}

        def later(way: str, call: Callable[..., None], *arguments: Any) -> None:
            due[way] = max(due[way] + 1e-6, loop.time() + self.delay)  # nothing overtakes
            loop.call_at(due[way], call, *arguments)

        def send(commands: Sequence[AnyOperation], now: float) -> None:
            self.sent += commands
            for command in commands:
                command.sent_at = now
            if not self.half_open:
                later("there", arrive, commands, now)

        def deliver(delivery: Callable[[], None]) -> None:
            if not (self.muted or self.half_open):
                later("back", receive, delivery)

        setattr(link, "send", send)  # noqa: B010 - no checker lets a method be replaced
        setattr(link, "_receive", deliver)  # noqa: B010
        return link

    def cut_off(self) -> None:
        """Break the connection, and refuse others."""
        self.refusing = True
        self.drop()

    def drop(self) -> None:
        """Break the connection."""
        assert self.link is not None
        self.link.fail(ConnectionError("it is cut off"))

    def asked(self, operation: str) -> int:
        """How often a command of that name was sent."""
        return sum(command.script == operation for command in self.sent)
