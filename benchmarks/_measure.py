"""Taking turns: ours, a peer, a floor, ours, a peer, a floor ... on one server."""

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
    """One turn.

    Attributes:
        pairs: how many pairs of acquire and release it saw through.
        seconds: how long it took.
        waits: how long each acquire took, in seconds; none where nothing was acquired.
    """

    pairs: int
    seconds: float
    waits: Sequence[float] = field(default=())

    @property
    def rate(self) -> float:
        """Pairs a second."""
        return self.pairs / self.seconds


Turn = Callable[[], Awaitable[Burst]]


@dataclass(frozen=True, slots=True)
class Load:
    """Who wants permits.

    Attributes:
        tasks: as many at a time.
        limit: of the semaphore.
        work: seconds that each sleeps inside.
    """

    tasks: int
    limit: int
    work: float = 0.0


async def burst(semaphore: OpenSemaphore, load: Load, seconds: float) -> Burst:
    """Put *load* on a semaphore for a while."""
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
    """Let all take their turns; what warms up is thrown away.

    One that fails takes no further turns, and is left out; *failed* decides whether that is
    all, or raises.
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
    """Pairs a second, round by round."""
    return Figure(name, tuple(burst.rate for burst in bursts))


def ratio(name: str, bursts: Sequence[Burst], others: Sequence[Burst]) -> Figure:
    """The rate of some to that of others, round by round; above 1 is faster."""
    pairs = zip(bursts, others, strict=True)
    return Figure(name, tuple(burst.rate / other.rate for burst, other in pairs))


def all_waits(bursts: Sequence[Burst]) -> list[float]:
    """The single times of all rounds."""
    return [wait for burst in bursts for wait in burst.waits]


def fastest(bursts: Mapping[str, Sequence[Burst]], among: Sequence[str]) -> str | None:
    """Who of *among* has the highest median rate."""
    present = [label for label in among if label in bursts]
    return max(
        present,
        key=lambda label: statistics.median(burst.rate for burst in bursts[label]),
        default=None,
    )
