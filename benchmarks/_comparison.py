"""Measures in turns: this library, a peer, a baseline, this library, ... on one server."""

import asyncio
import gc
import secrets
import statistics
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from benchmarks._bench import Bench, Leaked, LimitExceeded
from benchmarks._libraries import OURS, PEERS, Library, OpenSemaphore, Options

PAIRS = "pairs/s"
TO_PEER = "÷ best Python peer"
OUR_LABELS = {library.label for library in OURS}


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one turn.

    Attributes:
        pairs: completed pairs of acquire and release.
        seconds: duration of the turn.
        waits: duration of each acquire in seconds; empty if nothing was acquired.
        figures: what else was measured, by column.
    """

    pairs: int
    seconds: float
    waits: Sequence[float] = ()
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds

    @property
    def wait(self) -> float:
        """The median wait."""
        return statistics.median(self.waits)


Turn = Callable[[], Awaitable[Burst]]
Bursts = Sequence[Burst]
# The values of a column, round by round, of the subject with that label; None if it has none.
Column = Callable[[str, Bursts], Sequence[float] | None]


@dataclass(frozen=True, slots=True)
class Load:
    """The load on a semaphore.

    Attributes:
        tasks: number of concurrent tasks.
        limit: limit of the semaphore.
        work: seconds that a task sleeps while it holds a permit.
    """

    tasks: int
    limit: int
    work: float = 0.0


async def burst(semaphore: OpenSemaphore, load: Load, seconds: float) -> Burst:
    """Run *load* on a semaphore for *seconds*; raises `LimitExceeded`."""
    waits: list[float] = []
    inside = 0

    async def pairs() -> None:
        nonlocal inside
        while (start := time.perf_counter()) < until:
            async with semaphore.permit():
                waits.append(time.perf_counter() - start)
                inside += 1
                if inside > load.limit:
                    raise LimitExceeded(inside, load.limit)
                if load.work:
                    await asyncio.sleep(load.work)
                inside -= 1

    begin = time.perf_counter()
    until = begin + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(load.tasks):
            group.create_task(pairs())
    return Burst(len(waits), time.perf_counter() - begin, waits)


def check_spans(spans: Iterable[tuple[float, float]], limit: int) -> None:
    """Raise `LimitExceeded` if more than *limit* spans overlap.

    A span is the start and the end of the use of a permit, by a clock that all processes share.
    It lies within the time for which the permit was held. A span that ends when another begins
    does not overlap with it.
    """
    inside = 0
    for _, change in sorted(change for start, end in spans for change in ((start, 1), (end, -1))):
        inside += change
        if inside > limit:
            raise LimitExceeded(inside, limit)


def quotients(ones: Iterable[float], others: Iterable[float]) -> list[float]:
    """Each of *ones* divided by that of the same round of *others*."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def rates(bursts: Bursts) -> list[float]:
    """Pairs per second, round by round."""
    return [burst.rate for burst in bursts]


def of_pairs(_label: str, bursts: Bursts) -> list[float]:
    """The column of the rates."""
    return rates(bursts)


def medians(bursts: Bursts) -> list[float]:
    """The median wait, round by round."""
    return [burst.wait for burst in bursts]


def all_waits(bursts: Bursts) -> list[float]:
    """The durations of all acquires of all rounds."""
    return [wait for burst in bursts for wait in burst.waits]


def name_for(case: str) -> str:
    """A unique name for a semaphore."""
    return f"bench-{case}-{secrets.token_hex(4)}"


class Comparison:
    """Libraries and baselines that take turns on one server. Closes them after its block.

    A peer that fails is left out of the table, with the reason. A failure of this library or of a
    baseline is raised.

    Attributes:
        bursts: the measured rounds of each.
    """

    def __init__(self, bench: Bench, setting: str = "") -> None:
        self._bench = bench
        self._setting = setting
        self._turns: dict[str, Turn] = {}
        self._peers: set[str] = set()
        self._stack = AsyncExitStack()
        self.bursts: dict[str, list[Burst]] = {}

    def add(self, label: str, turn: Turn, *, peer: bool = False) -> None:
        """Add a library or a baseline."""
        self._turns[label] = turn
        if peer:
            self._peers.add(label)

    async def enter(
        self,
        libraries: Iterable[Library],
        options: Options,
        turn: Callable[[str, OpenSemaphore, Options], Awaitable[Burst]],
    ) -> None:
        """Open a semaphore of each library that is installed, with a name of its own.

        Its turns are those of *turn*, called with its label, semaphore and options.
        """
        for library in self._bench.installed(libraries):
            label, own = library.label, replace(options, name=name_for(options.name))
            with self._may_fail(label, peer=not library.ours):
                semaphore = await self._stack.enter_async_context(self._opened(library, own))
                self.add(label, partial(turn, label, semaphore, own), peer=not library.ours)

    async def enter_load(self, libraries: Iterable[Library], load: Load) -> None:
        """Open a semaphore of each library that is installed, to be measured under *load*."""

        async def turn(_label: str, semaphore: OpenSemaphore, _options: Options) -> Burst:
            return await burst(semaphore, load, self._bench.effort.burst)

        options = Options(url=self._bench.url, name="load", limit=load.limit, tasks=load.tasks)
        await self.enter(libraries, options, turn)

    async def run(self) -> dict[str, list[Burst]]:
        """Measure all in turns, round by round, and check for leaked permits."""
        effort = self._bench.effort
        self._bench.progress(self._setting or "in turns")
        self.bursts = {label: [] for label in self._turns}
        for _ in range(effort.warm_ups + effort.rounds):
            for label, own in list(self.bursts.items()):
                gc.collect()
                with self._may_fail(label, peer=label in self._peers):
                    own.append(await self._turns[label]())
        for own in self.bursts.values():
            del own[: effort.warm_ups]
        await self._stack.aclose()
        return self.bursts

    def report(self, columns: Mapping[str, Column]) -> None:
        """Add a row for each."""
        for label, own in self.bursts.items():
            values = {column: of(label, own) for column, of in columns.items()}
            figures = {column: figure for column, figure in values.items() if figure is not None}
            self._bench.row(label, self._setting, waits=all_waits(own), figures=figures)

    def faster_than(self, other: str | None) -> Column:
        """The column of the rate ÷ that of *other*."""
        rival = self.bursts.get(other or "")

        def column(label: str, own: Bursts) -> list[float] | None:
            return quotients(rates(own), rates(rival)) if rival and label != other else None

        return column

    def ours_only(self, column: Column) -> Column:
        """That column for this library alone."""
        return lambda label, own: column(label, own) if label in OUR_LABELS else None

    def best_peer(self, score: Callable[[Bursts], Sequence[float]] = rates) -> str | None:
        """The Python peer with the highest median of *score*."""
        present = [peer.label for peer in PEERS if peer.label in self.bursts]
        return max(
            present, key=lambda label: statistics.median(score(self.bursts[label])), default=None
        )

    @contextmanager
    def _may_fail(self, label: str, *, peer: bool) -> Generator[None]:
        subject = f"{label}, {self._setting}" if self._setting else label
        with self._bench.may_fail(subject, peer=peer):
            try:
                yield
            except Exception:
                self.bursts.pop(label, None)
                raise

    @asynccontextmanager
    async def _opened(self, library: Library, options: Options) -> AsyncGenerator[OpenSemaphore]:
        """A semaphore for a block; no permit may be held at its end."""
        async with AsyncExitStack() as stack:
            semaphore = await stack.enter_async_context(library.open(options))
            stack.push_async_callback(semaphore.delete)
            yield semaphore
            with self._may_fail(library.label, peer=not library.ours):
                if held := await semaphore.held():
                    raise Leaked(held)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
