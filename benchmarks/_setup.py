"""What every case is given: a server, an event loop, and how much effort to make."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, Self

from benchmarks.libraries import Library

LoopName = Literal["asyncio", "uvloop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long and how large to measure. Times are seconds.

    Attributes:
        warm_ups: rounds that open connections, load scripts, and give a just-in-time compiler its
            time; their figures are thrown away.
        rounds: how often all take their turns then.
        burst: how long a turn takes.
        window: how long to watch what stands still.
        handoffs: how many permits change hands in a turn.
        tasks: numbers of tasks that share a process.
        crowd: how many hold, or wait, where it is about many.
        peer_crowd: as many do of another library, where each of them is a connection.
        populations: numbers of holders and waiters between which the cost of a pair is compared.
        imports: how often each import is timed.
        settle: how long to wait until all of a crowd are in their places.
        lease: of those whose permits expire at once.
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
        """To see that everything works: minutes become seconds, and figures rough."""
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
        """How many of that library's make a crowd; pollers keep a server busy by themselves."""
        if library.ours:
            return self.bulk
        return self.peer_bulk // 10 if library.polls else self.peer_bulk

    def with_rounds(self, rounds: int | None) -> Self:
        """The same, but for the rounds, if told otherwise."""
        return self if rounds is None else replace(self, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every case is given.

    Attributes:
        url: of the server.
        loop: the event loop that all processes of the case run on.
        effort: how long and how large to measure.
        say: shows in a few words what is measured now.
    """

    url: str
    loop: LoopName
    effort: Effort
    progress: Callable[[str], None]

    def through(self, url: str) -> Self:
        """The same by another way to the server."""
        return replace(self, url=url)


def runner_of(loop: LoopName) -> "asyncio.Runner":
    """A runner on that event loop; ``ModuleNotFoundError`` if it is not installed."""
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def has_uvloop() -> bool:
    """Whether the other event loop is installed."""
    return find_spec("uvloop") is not None
