"""The parameters of every case: server, event loop and effort."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, Self

from benchmarks.libraries import Library

LoopName = Literal["asyncio", "uvloop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Durations and sizes. Times are in seconds.

    Attributes:
        warm_ups: rounds before the measured ones: they open connections, load scripts and give a
            just-in-time compiler time.
        rounds: number of measured rounds.
        burst: duration of a turn.
        window: duration of a measurement of idle processes.
        handoffs: hand-offs per turn.
        tasks: numbers of tasks in one process.
        bulk: number of holders, or waiters, in cases with many.
        peer_bulk: the same for other libraries, because each of theirs needs a connection.
        populations: numbers of holders and waiters for which the cost of a pair is compared.
        imports: number of timed imports.
        settle: time to wait until all holders or waiters of a bulk are in place.
        lease: lease of the permits that expire together.
    """

    warm_ups: int = 2
    rounds: int = 7
    burst: float = 0.4
    window: float = 20.0
    handoffs: int = 100
    tasks: tuple[int, ...] = (50, 200, 1000)
    bulk: int = 10_000
    peer_bulk: int = 1_000
    populations: tuple[int, ...] = (10, 1_000, 100_000)
    imports: int = 25
    settle: float = 3.0
    lease: float = 2.0

    @classmethod
    def quick(cls) -> Self:
        """A short run with rough figures."""
        return cls(
            rounds=3,
            burst=0.15,
            window=10.0,
            handoffs=25,
            populations=(10, 1_000, 10_000),
            peer_bulk=200,
            imports=7,
        )

    def bulk_of(self, library: Library) -> int:
        """The bulk for that library: small for polling ones, because they load the server."""
        if library.ours:
            return self.bulk
        return self.peer_bulk // 10 if library.polls else self.peer_bulk

    def with_rounds(self, rounds: int | None) -> Self:
        """The same effort with another number of rounds, if it is given."""
        return self if rounds is None else replace(self, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parameters of a case.

    Attributes:
        url: URL of the server.
        loop: event loop of all processes of the case.
        effort: durations and sizes.
        progress: displays what is being measured.
    """

    url: str
    loop: LoopName
    effort: Effort
    progress: Callable[[str], None]

    def through(self, url: str) -> Self:
        """The same setup with another URL of the server."""
        return replace(self, url=url)


def runner_of(loop: LoopName) -> "asyncio.Runner":
    """A runner of that event loop; raises ``ModuleNotFoundError`` if it is not installed."""
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def has_uvloop() -> bool:
    """Whether uvloop is installed."""
    return find_spec("uvloop") is not None
