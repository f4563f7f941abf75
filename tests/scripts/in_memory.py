"""One semaphore of the scripts in memory, whose time and whose hubs a test decides.

Each call is judged by the rules of every run.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.pushes import Push
from redsem_async._protocol.replies import Reply
from tests.worlds.judge import Judge
from tests.worlds.look import Contents, Look
from tests.worlds.server import ScriptServer

HUBS: tuple[str, ...] = ("a" * 32, "b" * 32, "c" * 32)
START_US = 1_800_000_000_000_000
SLOTS = tuple("abcdefghij")
INFO = HubInfo("x")


class InMemory:
    """A semaphore, and three hubs that receive messages.

    Attributes:
        told: the messages of the last call.
        present: hubs that receive messages.
    """

    def __init__(self, mode: Mode, clock: Clock = "server") -> None:
        self.address = Address(mode, "p", "n", clock, ("a", "b") if "+rate" in mode else ())
        self.now_us = START_US
        self.told: list[tuple[str, Push]] = []
        self.present = {*HUBS}
        self.server = ScriptServer(self._deliver)
        self.judge = Judge()

    def call(self, hub: str, call: op.AnyOperation) -> Reply:
        """The reply, which is no error. A call that has more to do may leave somebody waiting."""
        said = self.answer(hub, call)
        assert isinstance(said, Reply), f"{call} was answered {said}"
        return said

    def answer(self, hub: str, call: op.AnyOperation) -> AnyReply | CommandError:
        self.told.clear()
        ran = self.server.run(self.address, call, hub, self.now_us)
        wrong = [*map(str, self.judge.ran(ran)), *self.server.broken]
        assert not wrong, wrong
        return ran.answer

    def acquire(
        self,
        hub: str,
        *numbers: int,
        limit: int = 1,
        lease_ms: int = 90_000,
        permits: int = 1,
        key: op.KeyTerms | None = None,
        info: HubInfo = INFO,
        **more: Any,
    ) -> Reply:
        options = op.RequestOptions(permits, key=key)
        every = {} if options == op.DEFAULT_OPTIONS else dict.fromkeys(numbers, options)
        slots = SLOTS[:limit] if self.address.slotted else None
        call = op.Acquire(numbers, lease_ms, limit, every, hub_info=info, slots=slots)
        return self.call(hub, replace(call, **more))

    def release(self, hub: str, *numbers: int, **more: Any) -> Reply:
        return self.call(hub, replace(op.Release(hub, numbers), **more))

    def heartbeat(self, hub: str, lease_ms: int = 90_000, *asked: op.QueuedRequest) -> Reply:
        return self.call(hub, op.Heartbeat(lease_ms, asked))

    def pass_time(self, ms: int) -> None:
        self.now_us += 1000 * ms

    def lose(self, *kinds: str) -> None:
        """Keys are evicted. With `meta` goes which tokens were granted."""
        for kind in kinds:
            self.server.lose(self.address, kind)
        if "meta" in kinds:
            self.judge.last_token, self.judge.sums = 0, ()

    @property
    def look(self) -> Look:
        return self.server.look(self.address, self.now_us)

    @property
    def kept(self) -> Contents:
        """What each kind of key has."""
        return defaultdict(dict, self.server.contents(self.address))

    @property
    def without_expiry(self) -> list[str]:
        """Keys that stay for ever, and are no set limit."""
        keys = self.server.keys_of(self.address)
        return [kind for kind, (_, until) in keys if until is None and "limit" not in kind]

    def held_by(self, hub: str) -> list[int]:
        return sorted(int(i.partition(".")[2]) for i in self.look.live if i.startswith(hub))

    def _deliver(self, _: str, hub: str, push: Push) -> int:
        self.told.append((hub, push))
        return int(hub in self.present)
