"""What was measured: costs by case, a figure for each round."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Mode = Literal["fair", "zset"]
MODES: tuple[Mode, ...] = ("fair", "zset")

Subject = Literal[
    "free pair",  # acquire and release, nobody waits
    "sparse pair",  # a free pair, by a process that was silent for a lease
    "home pair",  # every permit goes to a waiter in the same process
    "handed pair",  # every permit goes to a waiter in another process
    "pair beside heavy",  # a free pair, beside holders of several permits; size counts those
    "heartbeat",  # size counts the waiters it asks about
    "refresh",  # one script, size counts its permits
    "library pair",  # a free pair by the library itself, size counts tasks of one process
    "empty script",  # a script that does nothing, each from a connection of its own
    "empty script, pipelined",  # the same, as many in one write as size counts
]


class Case(NamedTuple):
    """What was measured; size is the ids in one script call, unless the subject says otherwise."""

    subject: Subject
    mode: Mode
    size: int


class Cost(NamedTuple):
    """What one of something costs the server.

    Attributes:
        cpu: microseconds of its CPU, the kernel's work for it included.
        script: microseconds within scripts.
        heard: bytes that it was sent.
        said: bytes that it sent, messages included.
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
    waiter: float  # of a FairSemaphore; a Semaphore keeps none
    process: float  # what a semaphore keeps of one
    connection: float


@dataclass(frozen=True, slots=True)
class Figures:
    """All rounds. Costs are medians unless a reader asks for the rounds."""

    server: str
    machine: str
    costs: Mapping[Case, Sequence[Cost]]
    memory: Sequence[Memory]

    def rounds(
        self, subject: Subject, mode: Mode, size: int, of: Callable[[Cost], float]
    ) -> list[float]:
        """One part of a cost, round by round."""
        return [of(cost) for cost in self.costs[Case(subject, mode, size)]]

    def cpu(self, subject: Subject, mode: Mode, size: int) -> float:
        """The median CPU, in microseconds."""
        return statistics.median(self.rounds(subject, mode, size, lambda cost: cost.cpu))

    def bytes(self, subject: Subject, mode: Mode, size: int) -> float:
        """The median of bytes both ways."""
        both = self.rounds(subject, mode, size, lambda cost: cost.received + cost.sent)
        return statistics.median(both)

    def typical_memory(self) -> Memory:
        """Medians."""
        return Memory(*map(statistics.median, zip(*self.memory, strict=True)))

    def as_dict(self) -> dict[str, object]:
        """For a file."""
        return {
            "server": self.server,
            "machine": self.machine,
            "costs": [
                {**case._asdict(), "rounds": [cost._asdict() for cost in rounds]}
                for case, rounds in self.costs.items()
            ],
            "memory": [memory._asdict() for memory in self.memory],
        }
