"""The server of a search, which remembers what came of a call: most paths begin alike."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from redsem_async._core.keys import Address
from redsem_async._protocol.operations import Argument
from redsem_async.testing._redis import Refused, Snapshot, SortedSet, Value
from tests.worlds.look import Look
from tests.worlds.server import Deliver, Edit, ScriptServer


class _Outcome(NamedTuple):
    said: Any  # or the refusal
    messages: Sequence[tuple[bytes, bytes]]
    state: int


class Memory:
    """The states of a server, each with a number: the same where it keeps the same."""

    def __init__(self) -> None:
        self.edited = set[Edit]()
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
            plain = _plain(value)
            nth, same = self._values.setdefault(plain, (len(self._values), value))
            shared[key] = same, expires
            facts.append((key, nth, expires))
        number = self._numbers.setdefault(tuple(facts), len(self.kept))
        if number == len(self.kept):
            self.kept.append(shared)
        return number


class RememberingServer(ScriptServer):
    """The same, with a memory.

    Args:
        reach: tells which hubs a message would reach.
    """

    def __init__(
        self,
        deliver: Deliver,
        reach: Callable[[], Hashable],
        memory: Memory,
        edits: Sequence[Edit] = (),
    ) -> None:
        self._memory = memory
        self._reach = reach
        self._messages: list[tuple[bytes, bytes]] = []
        super().__init__(deliver, edits)
        self.edited, self._looks = memory.edited, memory.looks
        self.state = self._stands = memory.number_of({})  # and that of the small Redis

    def published(self, channel: bytes, message: bytes) -> int:
        self._messages.append((channel, message))
        return super().published(channel, message)

    def _evaluated(self, address: Address, text: str, arguments: Sequence[Argument]) -> Any:
        memory = self._memory
        before = self.state, self.now_us, text, arguments, self._reach()
        outcome = memory.outcomes.get(before)
        if outcome is not None:
            for message in outcome.messages:
                super().published(*message)
        else:
            if self._stands != self.state:
                self._redis.restore(memory.kept[self.state])
            self._messages = []
            try:
                said = super()._evaluated(address, text, arguments)
            except Refused as refused:
                said = refused
            self._stands = memory.number_of(self._redis.snapshot())
            outcome = memory.outcomes[before] = _Outcome(said, self._messages, self._stands)
        self.state = outcome.state
        if isinstance(outcome.said, Refused):
            raise outcome.said
        return outcome.said

    def _state_of(self, address: Address) -> Hashable:
        return self.state

    def _snapshot(self) -> Snapshot:
        return self._memory.kept[self.state]


def _plain(value: Value) -> Hashable:
    if isinstance(value, SortedSet):
        return tuple(value.rows)
    return value if isinstance(value, bytes) else tuple(sorted(value.items()))
