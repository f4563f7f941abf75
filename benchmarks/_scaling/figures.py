"""The measured figures: costs by case, one per round."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Mode = Literal["fair", "zset"]
MODES: tuple[Mode, ...] = ("fair", "zset")

Subject = Literal[
    "free pair",  # acquire and release without waiters
    "sparse pair",  # a free pair of a process that was inactive for a lease
    "home pair",  # every permit goes to a waiter in the same process
    "handed pair",  # every permit goes to a waiter in another process
    "pair beside heavy",  # a free pair beside holders of several permits; size is their number
    "heartbeat",  # size is the number of waiters in it
    "refresh",  # one script call; size is its number of permits
    "library pair",  # a free pair by the library itself; size is the number of tasks
    "empty script",  # a script that does nothing, each on its own connection
    "empty script, pipelined",  # the same, size of them in one write
]


class Case(NamedTuple):
    """A measured case; size is the number of ids per script call, unless noted above."""

    subject: Subject
    mode: Mode
    size: int


class Cost(NamedTuple):
    """The cost of one unit on the server.

    Attributes:
        cpu: microseconds of CPU, including system time.
        script: microseconds within scripts.
        received: bytes received.
        sent: bytes sent, including push messages.
        calls: script calls.
    """

    cpu: float
    script: float
    received: float
    sent: float
    calls: float


class Memory(NamedTuple):
    """Bytes of the server's memory."""

    holder: float
    waiter: float  # of a FairSemaphore; a Semaphore stores no waiters
    process: float  # stored per process and semaphore
    connection: float


class Fleet(NamedTuple):
    """Processes with one semaphore each, or with a *contended* one; *label* is the class."""

    label: str
    contended: bool


class Contention(NamedTuple):
    """What the processes of a fleet did together.

    Attributes:
        pairs: pairs per second.
        calls: script calls per pair.
        cpu: microseconds of the server's CPU per pair.
        client_cpu: microseconds of the processes' CPU per pair.
    """

    pairs: float
    calls: float
    cpu: float
    client_cpu: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of all rounds."""

    server: str
    machine: str
    costs: Mapping[Case, Sequence[Cost]]
    memory: Sequence[Memory]
    contention: Mapping[Fleet, Sequence[Contention]]

    def rounds(
        self, subject: Subject, mode: Mode, size: int, of: Callable[[Cost], float]
    ) -> list[float]:
        """One attribute of a cost, round by round."""
        return [of(cost) for cost in self.costs[Case(subject, mode, size)]]

    def cpu(self, subject: Subject, mode: Mode, size: int) -> float:
        """The median CPU, in microseconds."""
        return statistics.median(self.rounds(subject, mode, size, lambda cost: cost.cpu))

    def bytes(self, subject: Subject, mode: Mode, size: int) -> float:
        """The median of bytes in both directions."""
        both = self.rounds(subject, mode, size, lambda cost: cost.received + cost.sent)
        return statistics.median(both)

    def typical_memory(self) -> Memory:
        """The medians."""
        return Memory(*map(statistics.median, zip(*self.memory, strict=True)))

    def as_dict(self) -> dict[str, object]:
        """The figures for JSON."""
        return {
            "server": self.server,
            "machine": self.machine,
            "costs": [
                {**case._asdict(), "rounds": [cost._asdict() for cost in rounds]}
                for case, rounds in self.costs.items()
            ],
            "memory": [memory._asdict() for memory in self.memory],
            "contention": [
                {**fleet._asdict(), "rounds": [found._asdict() for found in rounds]}
                for fleet, rounds in self.contention.items()
            ],
        }
