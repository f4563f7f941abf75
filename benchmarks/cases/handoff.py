"""P4: a permit passes from one process to another."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from redis.asyncio import Redis

from benchmarks._baselines import Scripts
from benchmarks._bench import Bench, Case, LimitExceeded
from benchmarks._children import Child, Context, child
from benchmarks._comparison import Burst, Bursts, Comparison, medians, name_for, quotients
from benchmarks._libraries import OURS, PEERS, REDIS_LOCK, OpenSemaphore, Options

HOP = "baseline: publish to message"
TRIP = "baseline: round trip"
PAUSE = 0.01  # seconds until the other process waits
MAX_TURN = 3.0  # seconds for a turn, if waiters poll


async def _take(context: Context, label: str, options: Options) -> tuple[float, float]:
    """A job: acquire and release; returns the times of the request and of the grant."""
    semaphore = await context.semaphore(label, options)
    asked = time.monotonic()
    async with semaphore.permit():
        return asked, time.monotonic()


async def _receive(context: Context, url: str, channel: str) -> tuple[float, float]:
    """A job: wait for a message; returns the times of the start and of the message."""
    listener = await context.once(channel, lambda: _listener(url, channel))
    asked = time.monotonic()
    await listener.get_message(ignore_subscribe_messages=True, timeout=None)
    return asked, time.monotonic()


@asynccontextmanager
async def _listener(url: str, channel: str) -> AsyncGenerator[Any]:
    async with Redis.from_url(url, socket_timeout=None) as client, client.pubsub() as listener:
        await listener.subscribe(channel)
        await listener.get_message(timeout=None)
        yield listener


async def measure(bench: Bench, setting: str = "") -> None:
    """Measure hand-offs of all libraries and both baselines in turns."""
    async with (
        # Entered first, so that it cleans up after the child has ended.
        Comparison(bench, setting) as comparison,
        child(bench.loop) as other,
        Redis.from_url(bench.url) as client,
        Scripts.at(bench.url) as scripts,
    ):
        await comparison.enter(
            (*OURS, *PEERS, REDIS_LOCK),
            Options(url=bench.url, name="p4", limit=1, tasks=2),
            partial(_handoffs, bench, other),
        )
        hop = partial(_hop, client, other, bench.url, name_for("channel"))
        comparison.add(HOP, partial(_repeat, bench, hop))
        comparison.add(TRIP, partial(_repeat, bench, partial(_trip, scripts)))
        bursts = await comparison.run()
        floor = [
            sum(pair) for pair in zip(medians(bursts[HOP]), medians(bursts[TRIP]), strict=True)
        ]
        peer = comparison.best_peer(lambda own: [-wait for wait in medians(own)])

        def over_floor(label: str, own: Bursts) -> list[float] | None:
            return None if label in (HOP, TRIP) else quotients(medians(own), floor)

        def over_peer(_label: str, own: Bursts) -> list[float] | None:
            return quotients(medians(own), medians(bursts[peer])) if peer else None

        comparison.report(
            {
                "time, × hop + trip": over_floor,
                "× fastest Python peer": comparison.ours_only(over_peer),
            }
        )


async def _handoffs(
    bench: Bench, other: Child, label: str, semaphore: OpenSemaphore, options: Options
) -> Burst:
    """A turn of hand-offs to the other process."""

    async def once() -> float | None:
        async with semaphore.permit():
            taking = asyncio.create_task(other.run(_take, label, options))
            await asyncio.sleep(PAUSE)
            released = time.monotonic()
        asked, came = await taking
        if came < released:
            raise LimitExceeded(2, 1)
        return _waited(asked, released, came)

    return await _repeat(bench, once)


async def _hop(client: Redis, other: Child, url: str, channel: str) -> float | None:
    receiving = asyncio.create_task(other.run(_receive, url, channel))
    await asyncio.sleep(PAUSE)
    published = time.monotonic()
    while not await client.publish(channel, "now"):
        await asyncio.sleep(PAUSE)  # the subscription may not be active yet
        published = time.monotonic()
    asked, came = await receiving
    return _waited(asked, published, came)


async def _trip(scripts: Scripts) -> float:
    await asyncio.sleep(PAUSE)
    return await scripts.trip()


def _waited(asked: float, given: float, came: float) -> float | None:
    """The duration of the hand-off; None if the other process was not waiting yet."""
    return came - given if asked < given - PAUSE / 2 else None


async def _repeat(bench: Bench, once: Callable[[], Coroutine[Any, Any, float | None]]) -> Burst:
    waits: list[float] = []
    until = time.monotonic() + MAX_TURN
    while not waits or (len(waits) < bench.effort.handoffs and time.monotonic() < until):
        waited = await once()
        if waited is not None:
            waits.append(waited)
    return Burst(len(waits), sum(waits), waits)


P4 = Case(
    "P4",
    "Hand-off of a permit between processes",
    "One process holds the only permit, and another waits for it. The time is from the call of"
    " release in the first until the block runs in the second, by the clock that both share."
    " Baselines: redis-py's publish until the message is read in the other process, and a round"
    " trip with redis-py, both after the same pause of 10 ms as a release.",
    measure,
)
