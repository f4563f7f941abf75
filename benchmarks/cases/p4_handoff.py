"""P4: the hand-off of a permit from one process to another."""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis

from benchmarks._baselines import REMOVE
from benchmarks._children import Child, JobContext, child
from benchmarks._comparison import Comparison, name_for
from benchmarks._limit_check import LimitExceeded
from benchmarks._measure import Burst, all_waits
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.libraries import OURS, PEERS, REDIS_LOCK, OpenSemaphore, Options

HOP = "baseline: publish to message"
ROUND_TRIP = "baseline: round trip"
TIME = "time, × hop + trip"
AIMS = {library.label: (Aim(TIME, 0.80, at_most=True),) for library in OURS}
PAUSE = 0.01  # seconds until the other process waits
MAX_TURN = 3.0  # seconds for a turn, if waiters poll
HOW = (
    "One process holds the only permit, and another waits for it. The time is from the call of"
    " release in the first until the block runs in the second, by the clock that both share."
    " Baselines: redis-py's publish until the message is read in the other process, and a round"
    " trip with redis-py, both after the same pause of 10 ms as a release."
)


@dataclass(frozen=True, slots=True)
class Take:
    """Acquire a permit and release it; returns the times of the request and of the grant."""

    label: str
    options: Options

    async def run(self, context: JobContext) -> tuple[float, float]:
        semaphore = await context.semaphore(self.label, self.options)
        asked = time.monotonic()
        async with semaphore.permit():
            return asked, time.monotonic()


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a message; returns the times of the start and of the message."""

    url: str
    channel: str

    async def run(self, context: JobContext) -> tuple[float, float]:
        listener = await context.once(self, lambda: _listener(self.url, self.channel))
        asked = time.monotonic()
        await listener.get_message(ignore_subscribe_messages=True, timeout=None)
        return asked, time.monotonic()


@asynccontextmanager
async def _listener(url: str, channel: str) -> AsyncGenerator[Any]:
    async with Redis.from_url(url, socket_timeout=None) as client, client.pubsub() as listener:
        await listener.subscribe(channel)
        await listener.get_message(timeout=None)
        yield listener


async def measure(setup: Setup) -> Table:
    """Measure all libraries and both baselines in turns."""
    async with (
        Comparison(
            setup
        ) as comparison,  # entered first, so that it cleans up after the child has ended
        child(setup.loop) as other,
        Redis.from_url(setup.url) as client,
    ):
        for library in (*OURS, *PEERS, REDIS_LOCK):
            options = Options(url=setup.url, name=name_for("p4"), limit=1, tasks=2)
            semaphore = await comparison.enter(library, options)
            if semaphore is not None:
                take = Take(library.label, options)
                once = partial(handoff, semaphore, other, take)
                comparison.add(library.label, partial(repeat, setup, once))
        receive = Receive(setup.url, name_for("channel"))
        comparison.add(HOP, partial(repeat, setup, partial(_hop, client, other, receive)))
        comparison.add(ROUND_TRIP, partial(repeat, setup, partial(_trip, client)))
        setup.progress("hand-offs")
        await comparison.run()
    rows = _rows(comparison.bursts)
    return Table(
        case="P4", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=comparison.absent
    )


async def handoff(semaphore: OpenSemaphore, other: Child, take: Take) -> float | None:
    """The seconds of one hand-off; None if the other process was not waiting yet."""
    async with semaphore.permit():
        taking = asyncio.create_task(other.run(take))
        await asyncio.sleep(PAUSE)
        released = time.monotonic()
    asked, came = await taking
    if came < released:
        raise LimitExceeded(2, 1)
    return _waited(asked, released, came)


async def _hop(client: Redis, other: Child, receive: Receive) -> float | None:
    receiving = asyncio.create_task(other.run(receive))
    await asyncio.sleep(PAUSE)
    published = time.monotonic()
    while not await client.publish(receive.channel, "now"):
        await asyncio.sleep(PAUSE)  # the subscription may not be active yet
        published = time.monotonic()
    asked, came = await receiving
    return _waited(asked, published, came)


async def _trip(client: Redis) -> float:
    await asyncio.sleep(PAUSE)
    sent = time.monotonic()
    await client.eval(REMOVE, 1, name_for("baseline"), "nothing")
    return time.monotonic() - sent


def _waited(asked: float, given: float, came: float) -> float | None:
    """The duration of the hand-off; None if the other process was not waiting yet."""
    return came - given if asked < given - PAUSE / 2 else None


async def repeat(setup: Setup, once: Callable[[], Coroutine[Any, Any, float | None]]) -> Burst:
    """A turn of hand-offs."""
    waits: list[float] = []
    until = time.monotonic() + MAX_TURN
    while not waits or (len(waits) < setup.effort.handoffs and time.monotonic() < until):
        waited = await once()
        if waited is not None:
            waits.append(waited)
    return Burst(len(waits), sum(waits), waits)


def _rows(bursts: dict[str, list[Burst]]) -> list[Row]:
    baselines = [
        _median(hop) + _median(trip)
        for hop, trip in zip(bursts[HOP], bursts[ROUND_TRIP], strict=True)
    ]
    rows: list[Row] = []
    for label, own in bursts.items():
        times = zip(own, baselines, strict=True)
        ratio = Figure(TIME, tuple(_median(burst) / baseline for burst, baseline in times))
        baseline = label in (HOP, ROUND_TRIP)
        rows.append(
            Row(
                label=label,
                acquire=Acquire.of(all_waits(own)),
                figures=() if baseline else (ratio,),
                aims=AIMS.get(label, ()),
            )
        )
    return rows


def _median(burst: Burst) -> float:
    return statistics.median(burst.waits)


CASE = Case("P4", "Hand-off of a permit between processes", measure)
