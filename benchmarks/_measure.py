"""Measures in turns: this library, a peer, a baseline, this library, ... on one server."""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks._limit_check import LimitCheck
from benchmarks._results import Figure
from benchmarks._setup import Effort
from benchmarks.libraries import OpenSemaphore


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one turn.

    Attributes:
        pairs: completed pairs of acquire and release.
        seconds: duration of the turn.
        waits: duration of each acquire in seconds; empty if nothing was acquired.
    """

    pairs: int
    seconds: float
    waits: Sequence[float] = field(default=())

    @property
    def rate(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds


Turn = Callable[[], Awaitable[Burst]]


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
    """Run *load* on a semaphore for *seconds*."""
    check = LimitCheck(load.limit)
    waits: list[float] = []
    start = time.perf_counter()
    until = start + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(load.tasks):
            group.create_task(_pairs(semaphore, check, load.work, waits, until))
    return Burst(len(waits), time.perf_counter() - start, waits)


async def _pairs(
    semaphore: OpenSemaphore, check: LimitCheck, work: float, waits: list[float], until: float
) -> None:
    while (start := time.perf_counter()) < until:
        async with semaphore.permit():
            waits.append(time.perf_counter() - start)
            check.enter()
            if work:
                await asyncio.sleep(work)
            check.leave()


async def in_turn(
    turns: Mapping[str, Turn], effort: Effort, failed: Callable[[str, Exception], None]
) -> dict[str, list[Burst]]:
    """Run all turns, round by round, and return their bursts without the warm-up rounds.

    One that fails takes no further turns and is left out; *failed* may raise instead.
    """
    bursts: dict[str, list[Burst]] = {label: [] for label in turns}
    for _ in range(effort.warm_ups + effort.rounds):
        for label in list(bursts):
            gc.collect()
            try:
                bursts[label].append(await turns[label]())
            except Exception as error:  # noqa: BLE001 - a peer's, of whatever kind
                del bursts[label]
                failed(label, error)
    return {label: of_one[effort.warm_ups :] for label, of_one in bursts.items()}


def rates(name: str, bursts: Sequence[Burst]) -> Figure:
    """Pairs per second, round by round."""
    return Figure(name, tuple(burst.rate for burst in bursts))


def ratio(name: str, bursts: Sequence[Burst], others: Sequence[Burst]) -> Figure:
    """The ratio of the rates, round by round; above 1 the first is faster."""
    pairs = zip(bursts, others, strict=True)
    return Figure(name, tuple(burst.rate / other.rate for burst, other in pairs))


def all_waits(bursts: Sequence[Burst]) -> list[float]:
    """The durations of all acquires of all rounds."""
    return [wait for burst in bursts for wait in burst.waits]


def fastest(bursts: Mapping[str, Sequence[Burst]], among: Sequence[str]) -> str | None:
    """The label of *among* with the highest median rate."""
    present = [label for label in among if label in bursts]
    return max(
        present,
        key=lambda label: statistics.median(burst.rate for burst in bursts[label]),
        default=None,
    )
