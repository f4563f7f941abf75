"""Runs a test in simulated time, on a memory backend: exact, and no sleep takes time."""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import Command, Link, Listener
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.pushes import Push
from redsem_async.testing import MemoryBackend
from redsem_async.testing._memory import MemoryLink
from tests.worlds.loop import RESOLUTION, SimulatedLoop
from tests.worlds.stand_ins import in_place

Arguments = ParamSpec("Arguments")


class TimedLoop(SimulatedLoop):
    """A loop that goes on to its next timer whenever nothing is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def run_to_end(self, main: Coroutine[Any, Any, None]) -> None:
        with in_place(self.time, random.Random(1), secrets):
            task = self.create_task(main)
            while not task.done():
                due = self.next_timer()
                if not self.ready and due is not None:
                    self.now = max(self.now, due + RESOLUTION)
                self.turn()
            self.bury()
        task.result()

    def timers(self) -> int:
        """How many timers are set."""
        return sum(not timer.cancelled() for timer in self._scheduled)


def in_simulated_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in an event loop whose sleeps take no time."""
    TimedLoop().run_to_end(main())


def simulated(
    test: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Have a test run in simulated time."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        in_simulated_time(lambda: test(*args, **kwargs))

    return run


def loop_of_test() -> TimedLoop:
    """The loop that the test runs in."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    return loop


def stall(seconds: float) -> None:
    """Block the event loop."""
    loop_of_test().now += seconds


class Distant(MemoryBackend):
    """A client of *memory*, with a link that a test disturbs.

    Attributes:
        delay: seconds that replies and push messages take.
        deaf: push messages are lost, until the next command.
        lost: those that were.
        refusals: the replies to the next commands, which are not carried out.
    """

    def __init__(self, memory: MemoryBackend, delay: float = 0.0) -> None:
        self._store = memory._store
        self.delay: float = delay
        self.deaf: bool = False
        self.lost: list[Push] = []
        self.refusals: deque[CommandError] = deque()
        self.listeners: list[Listener] = []

    async def connect(self, listener: Listener) -> Link:
        self.listeners.append(listener)
        return _DistantLink(self, listener)

    def unsubscribe(self, address: Address) -> None:
        """End the subscription, as a server of a cluster does: the next command renews it."""
        self.deaf = True
        self.listeners[-1].unsubscribed(address)


class _DistantLink(MemoryLink):
    def __init__(self, client: Distant, listener: Listener) -> None:
        super().__init__(client._store, listener)
        self._client = client
        self._on_its_way: deque[Callable[[], None]] = deque()

    def send(self, commands: Sequence[Command], now: float) -> None:
        self._client.deaf = False
        for command in commands:
            if self._client.refusals:
                refusal = self._client.refusals.popleft()
                self._receive(partial(self._reply_received, command, refusal))
            else:
                super().send([command], now)

    def push(self, prefix: str, push: Push) -> None:
        if self._client.deaf:
            self._client.lost.append(push)
        else:
            super().push(prefix, push)

    def _receive(self, delivery: Callable[[], None]) -> None:
        self._on_its_way.append(delivery)
        self._loop.call_later(self._client.delay, self._arrives)

    def _arrives(self) -> None:
        delivery = self._on_its_way.popleft()
        if self._open:
            delivery()
