"""P4: a permit that goes from one process to another."""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis

from benchmarks._children import Child, Stage, child
from benchmarks._contest import Contest, name_for
from benchmarks._floors import GIVE
from benchmarks._gauge import TooManyInside
from benchmarks._measure import Burst, all_waits
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case
from benchmarks.contenders import OURS, PEERS, REDIS_LOCK, Contender, Terms

HOP = "floor: publish to message"
TRIP = "floor: round trip"
TIME = "time, × hop + trip"
AIM = Aim(TIME, 0.7, at_most=True)
SETTLE = 0.01  # seconds in which the other process comes to wait
MOST = 3.0  # seconds for a turn, where waiters poll
HOW = (
    "One process holds the only permit, and another waits for it: from just before release is"
    " called in the one until the body runs in the other, by the clock that both share. Floor: a"
    " publish of redis-py until its message is read in the other process, and a round trip of"
    " redis-py, both after the same pause of 10 ms as a release."
)


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for a permit and give it back; returns when it was asked for, and when it came."""

    label: str
    terms: Terms

    async def carry_out(self, here: Stage) -> tuple[float, float]:
        contender = await here.contender(self.label, self.terms)
        asked = time.monotonic()
        async with contender.permit():
            return asked, time.monotonic()


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for a message; returns since when, and when it came."""

    url: str
    channel: str

    async def carry_out(self, here: Stage) -> tuple[float, float]:
        listener = await here.once(self, lambda: _listener(self.url, self.channel))
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
    """All libraries and both floors in turn."""
    async with (
        Contest(setup) as contest,  # which clears up when the child has ended
        child(setup.loop) as other,
        Redis.from_url(setup.url) as client,
    ):
        for library in (*OURS, *PEERS, REDIS_LOCK):
            terms = Terms(url=setup.url, name=name_for("p4"), limit=1, tasks=2)
            contender = await contest.enter(library, terms)
            if contender is not None:
                take = Take(library.label, terms)
                once = partial(_handoff, contender, other, take)
                contest.add(library.label, partial(_repeat, setup, once))
        hear = Hear(setup.url, name_for("channel"))
        contest.add(HOP, partial(_repeat, setup, partial(_hop, client, other, hear)))
        contest.add(TRIP, partial(_repeat, setup, partial(_trip, client)))
        setup.say("hand-offs")
        await contest.run()
    rows = _rows(contest.bursts)
    return Table(
        case="P4", title=CASE.title, how=HOW, loop=setup.loop, rows=rows, absent=contest.absent
    )


async def _handoff(contender: Contender, other: Child, take: Take) -> float | None:
    async with contender.permit():
        taking = asyncio.create_task(other.ask(take))
        await asyncio.sleep(SETTLE)
        released = time.monotonic()
    asked, came = await taking
    if came < released:
        raise TooManyInside(2, 1)
    return _waited(asked, released, came)


async def _hop(client: Redis, other: Child, hear: Hear) -> float | None:
    hearing = asyncio.create_task(other.ask(hear))
    await asyncio.sleep(SETTLE)
    published = time.monotonic()
    while not await client.publish(hear.channel, "now"):
        await asyncio.sleep(SETTLE)  # the very first comes before the subscription
        published = time.monotonic()
    asked, came = await hearing
    return _waited(asked, published, came)


async def _trip(client: Redis) -> float:
    await asyncio.sleep(SETTLE)
    sent = time.monotonic()
    await client.eval(GIVE, 1, name_for("floor"), "nothing")
    return time.monotonic() - sent


def _waited(asked: float, given: float, came: float) -> float | None:
    """How long it was on its way; nothing, if the other one was not waiting by then."""
    return came - given if asked < given - SETTLE / 2 else None


async def _repeat(setup: Setup, once: Callable[[], Coroutine[Any, Any, float | None]]) -> Burst:
    waits: list[float] = []
    until = time.monotonic() + MOST
    while not waits or (len(waits) < setup.effort.handoffs and time.monotonic() < until):
        waited = await once()
        if waited is not None:
            waits.append(waited)
    return Burst(len(waits), sum(waits), waits)


def _rows(bursts: dict[str, list[Burst]]) -> list[Row]:
    floors = [
        _median(hop) + _median(trip) for hop, trip in zip(bursts[HOP], bursts[TRIP], strict=True)
    ]
    ours = {library.label for library in OURS}
    rows: list[Row] = []
    for who, own in bursts.items():
        times = zip(own, floors, strict=True)
        ratio = Figure(TIME, tuple(_median(burst) / floor for burst, floor in times))
        floor = who in (HOP, TRIP)
        rows.append(
            Row(
                who=who,
                acquire=Acquire.of(all_waits(own)),
                figures=() if floor else (ratio,),
                aims=(AIM,) if who in ours else (),
            )
        )
    return rows


def _median(burst: Burst) -> float:
    return statistics.median(burst.waits)


CASE = Case("P4", "A permit goes from one process to another", measure)
