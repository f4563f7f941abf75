"""What every world has: a time, processes with a loop each, and links between them and a server.

A world decides when something happens and what goes wrong; here is what that is about.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from redsem_async._hub.hub import known_hub
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import AnyReply, Backend, Listener
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation, Release, SemaphoreRef, StartBackOff
from redsem_async._protocol.pushes import Push
from tests.worlds.loop import SimulatedLoop, running

START_US = 1_700_000_000_000_000  # by the server's clock


class Violation(AssertionError):
    """A promise was broken."""


class BaseProcess:
    """A process: a loop, and a way to the server.

    Attributes:
        backend: what its semaphores have for a client.
    """

    backend: Backend

    def __init__(self, world: "BaseWorld[Any]", name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.alive = True
        self.loop = SimulatedLoop(clock)
        self.loop.set_exception_handler(self._unhandled)
        self._violated = world.violated

    @property
    def remotes(self) -> list[RemoteSemaphore]:
        """What it knows of semaphores."""
        with running(self.loop):
            hub = known_hub(self.backend)
        return list(hub._semaphores.values()) if hub else []

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._violated(f"unhandled in {self.name}: {error or context['message']!r}", error)


AnyProcess = TypeVar("AnyProcess", bound=BaseProcess)


class BaseWorld(Generic[AnyProcess]):
    """Some processes in one time.

    Attributes:
        owners: processes, by the ids of their hubs.
        trace: lines that tell what happened, where they are wanted.
    """

    def __init__(self, now: float, *, traced: bool = False) -> None:
        self.now = now
        self.processes: list[AnyProcess] = []
        self.owners: dict[str, AnyProcess] = {}
        self.violations: list[str] = []
        self.trace: list[str] | None = [] if traced else None
        self._began = now

    def note(self, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now - self._began:12.6f} " + " ".join(map(str, what)))

    def violated(self, what: str, error: BaseException | None = None) -> None:
        """A promise was broken, perhaps by an *error* that nobody expected."""
        self.violations.append(f"at {self.now - self._began:.6f}: {what}")
        self.note("VIOLATED", what, "".join(traceback.format_exception(error)) if error else "")

    def end(self) -> None:
        for process in self.processes:
            process.loop.bury()
            process.loop.close()

    @property
    def server_us(self) -> int:
        return self.server_us_at(self.now)

    @staticmethod
    def server_us_at(moment: float) -> int:
        """What the server's clock shows at a *moment* of the world's time."""
        return START_US + round(moment * 1_000_000)

    @staticmethod
    def by_server_clock(moment_ms: int) -> float:
        """The world's time of a moment by the server's clock."""
        return (moment_ms - START_US // 1000) / 1000


class BaseLink(Generic[AnyProcess]):
    """A connection as its process sees it. A world says when, and whether, anything passes."""

    def __init__(
        self, world: BaseWorld[AnyProcess], process: AnyProcess, listener: Listener
    ) -> None:
        self.fresh_at: float | None = None
        self.uncounted = False
        self.process = process
        self.listener = listener
        self.open = True
        self._owners = world.owners

    @property
    def writable(self) -> bool:
        return self.open

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        hub = self.listener.hub_id
        self._owners[hub] = self.process
        released = set[SemaphoreRef]()
        for command in commands:
            command.sent_at = now
            match command:
                case Release():
                    released.add(command.semaphore)
                case StartBackOff(token=int()) if command.semaphore in released:
                    self.process._violated(f"{command} comes after a release")
                case _:
                    pass
            self.written(command, hub)

    def written(self, command: AnyOperation, hub: str) -> None:
        """A *command* of *hub* is on its way."""
        raise NotImplementedError

    def answered(self, command: AnyOperation, answer: AnyReply | CommandError) -> None:
        """The answer to *command* has arrived."""
        self.fresh_at = command.sent_at
        self.listener.reply_received(command, answer)

    def notified(self, prefix: str, message: Push) -> None:
        """A message has arrived."""
        self.listener.push_received(prefix, message)

    def abort(self) -> None:
        if self.open:
            self.open = False
            self.closed()

    def closed(self) -> None:
        """Its process has closed it."""
        raise NotImplementedError

    async def close(self) -> None:
        self.abort()
