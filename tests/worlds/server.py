"""The server of the worlds: the real scripts, on a small Redis in memory."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation, Argument
from redsem_async._protocol.pushes import Push, push_of
from redsem_async._redis.codec import Codec
from redsem_async._redis.faults import command_error, error_from
from redsem_async.testing._redis import ErrorReply, MemoryRedis, Snapshot, SortedSet, Value
from tests.worlds.invariants import of_keys
from tests.worlds.look import Contents, Look, Ran, look_of

Deliver = Callable[[str, str, Push], int]
"""Takes a message for a hub, by its prefix, and says how many connections it went to."""


class _Outcome(NamedTuple):
    said: Any  # or the refusal
    messages: Sequence[tuple[bytes, bytes]]
    state: int


class Memory:
    """What came of calls, for paths that begin alike; and states, each with a number."""

    def __init__(self) -> None:
        # A look at a semaphore, until when in ms nothing changes by itself, and by how many us its
        # clock is ahead.
        self.looks: dict[Hashable, tuple[float, int, Look]] = {}
        self.outcomes: dict[Hashable, _Outcome] = {}
        self.kept: list[Snapshot] = []
        self._numbers: dict[Hashable, int] = {}
        self._values: dict[Hashable, tuple[int, Value]] = {}

    def number_of(self, found: Snapshot) -> int:
        shared: Snapshot = {}  # with the values of other states
        facts: list[Hashable] = []
        for key in sorted(found):
            value, expires = found[key]
            nth, same = self._values.setdefault(_plain(value), (len(self._values), value))
            shared[key] = same, expires
            facts.append((key, nth, expires))
        number = self._numbers.setdefault(tuple(facts), len(self.kept))
        if number == len(self.kept):
            self.kept.append(shared)
        return number


class ScriptServer:
    """Runs calls one at a time, at a time that it is given.

    Args:
        reach: tells which hubs a message would reach, where calls are remembered.

    Attributes:
        addresses: of the semaphores that were called, by name.
        state: the number of what it keeps, where calls are remembered.
        broken: what is wrong with the keys since the last call.
    """

    def __init__(
        self, deliver: Deliver, memory: Memory | None = None, reach: Callable[[], Hashable] = tuple
    ) -> None:
        self.addresses: dict[str, Address] = {}
        self.now_us = 0
        self.broken: list[str] = []
        self.doubtful = set[str]()  # semaphores that lost a key, which may show much later
        self._deliver = deliver
        self._remembers = memory is not None
        self._memory = memory or Memory()
        self._looks = self._memory.looks
        self._reach = reach
        self._messages: list[tuple[bytes, bytes]] = []
        self._redis = _shared_redis()
        _current[:] = [self]
        self._redis.restore({})
        self.state = self._stands = self._memory.number_of({})  # and that of the small Redis

    def run(self, address: Address, call: AnyOperation, hub: str, now_us: int) -> Ran:
        """Carry *call* out, and answer as a link does: between two looks at the semaphore."""
        before = self.look(address, now_us)
        self.addresses[address.name] = address
        codec = Codec(address, lambda: now_us)
        script, arguments = codec.encode(call, 0, hub)
        answer: AnyReply | CommandError
        try:
            answer = call.reply(self._evaluated(address, script.text, arguments), address)
        except ErrorReply as refused:
            answer = command_error(error_from(str(refused)))
        self.broken = []
        return Ran(before, call, hub, answer, self.look(address, now_us))

    def look(self, address: Address, now_us: int) -> Look:
        """How the semaphore stands now."""
        self.now_us = now_us
        state = self._state_of(address)
        if state in self._looks:
            until, ahead, last = self._looks[state]
            if now_us // 1000 < until:
                same = last.now_us == now_us + ahead
                return last if same else replace(last, now_us=now_us + ahead)
        found = self.contents(address)
        ahead = int(found["meta"].get("lead", 0)) if "meta" in found else 0
        kept = {kind: at for kind, (_, at) in self.keys_of(address) if kind in found}
        until = min((at for at in kept.values() if at), default=math.inf)
        ends = {kind: at and at + ahead // 1000 for kind, at in kept.items()}
        look = look_of(found, address, now_us + ahead, ends)
        self.broken = [] if address.name in self.doubtful else [*of_keys(found, look)]
        self._looks[state] = until, ahead, look
        return look

    def contents(self, address: Address) -> Contents:
        """What each key of a semaphore has."""
        now = self.now_us // 1000
        kept = self.keys_of(address)
        return {kind: _texts(value) for kind, (value, at) in kept if at is None or at > now}

    def keys_of(self, address: Address) -> Iterator[tuple[str, tuple[Value, int | None]]]:
        """The keys of a semaphore by kind, with their expiries."""
        base = f"{address.prefix}:{{{address.name}}}:"
        for key, kept in self._snapshot().items():
            if (name := key.decode()).startswith(base):
                yield name[len(base) :], kept

    def lose(self, address: Address, kind: str) -> None:
        """One key is evicted."""
        self._redis.command("DEL", f"{address.prefix}:{{{address.name}}}:{kind}")
        self.doubtful.add(address.name)
        self._looks.clear()

    def evict(self, which: int) -> str:
        """Lose some keys that expire. Returns of which semaphore, or "" if there is none.

        Half the time it is one key, else each by a bit of *which*.
        """
        found = [k for k, (_, at) in sorted(self._snapshot().items()) if at is not None]
        key = found[which // 2 % len(found)] if found else b""
        of, _, _ = key.partition(b"}")
        every = [other for other in found if other.startswith(of + b"}")]
        several = [other for i, other in enumerate(every) if which >> i & 2]
        self._redis.command("DEL", key, *several * (which % 2))
        self._looks.clear()
        name = of.decode().partition("{")[2]
        self.doubtful.add(name)
        return name

    def forget(self) -> None:
        """What is kept was changed from outside."""
        self._looks.clear()

    def flush(self) -> None:
        """Lose everything."""
        self._redis.restore({})
        self._looks.clear()

    def published(self, channel: bytes, message: bytes) -> int:
        self._messages.append((channel, message))
        return self._sent(channel, message)

    def _sent(self, channel: bytes, message: bytes) -> int:
        prefix, _, hub = channel.decode().rpartition(":@")
        push = push_of(message)
        assert push is not None
        return self._deliver(prefix, hub, push)

    def _evaluated(self, address: Address, text: str, arguments: Sequence[Argument]) -> Any:
        self._messages = []
        if not self._remembers:
            self._looks.pop(address.name, None)
            return self._redis.eval(text, *arguments)
        memory = self._memory
        before = self.state, self.now_us, text, arguments, self._reach()
        outcome = memory.outcomes.get(before)
        if outcome is not None:
            for message in outcome.messages:
                self._sent(*message)
        else:
            if self._stands != self.state:
                self._redis.restore(memory.kept[self.state])
            try:
                said = self._redis.eval(text, *arguments)
            except ErrorReply as refused:
                said = refused
            self._stands = memory.number_of(self._redis.snapshot())
            outcome = memory.outcomes[before] = _Outcome(said, self._messages, self._stands)
        self.state = outcome.state
        if isinstance(outcome.said, ErrorReply):
            raise outcome.said
        return outcome.said

    def _state_of(self, address: Address) -> Hashable:
        """As long as it is the same, only a call changes what is kept of the semaphore."""
        return self.state if self._remembers else address.name

    def _snapshot(self) -> Snapshot:
        return self._memory.kept[self.state] if self._remembers else self._redis.snapshot()


_current: list[ScriptServer] = []  # the last one: worlds come one after another


@cache
def _shared_redis() -> MemoryRedis:
    """For all worlds of this process: to make one, and to load the scripts, takes long."""

    def publish(channel: bytes, message: bytes) -> int:
        return _current[0].published(channel, message)

    return MemoryRedis(lambda: _current[0].now_us, publish)


def _texts(value: Value) -> dict[str, Any]:
    if isinstance(value, SortedSet):
        return {member.decode(): score for score, member in value.rows}
    if isinstance(value, bytes):
        return {"": value.decode()}
    return {name.decode(): text.decode() for name, text in value.items()}


def _plain(value: Value) -> Hashable:
    if isinstance(value, SortedSet):
        return tuple(value.rows)
    return value if isinstance(value, bytes) else tuple(sorted(value.items()))
