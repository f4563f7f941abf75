"""P16: several processes on one semaphore with a rate."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from redis.asyncio import Redis

from benchmarks._bench import NOT_INSTALLED, Bench, Case
from benchmarks._children import Child, Context, child
from benchmarks._node import Node, NodeUnavailable, node
from benchmarks._stats import scripts_run
from redsem_async import FairSemaphore, Rate

PROCESSES, TASKS, LIMIT, HOLD = 5, 20, 50, 0.05  # in each process, at once, seconds
REQUESTS = Rate(100, burst=10)
TOKENS, ESTIMATE, REAL = Rate(20_000), 1_500, (200, 1_200)
START_DELAY = 0.2  # seconds until all processes start at the same time

OURS, SETTLED, UNSETTLED = (
    f"FairSemaphore, {setting}"
    for setting in ("requests", "tokens, settled", "tokens, only estimated")
)
PEER = "throttled-py (GCRA) and a FairSemaphore"
RESERVOIR = {"maxConcurrent": LIMIT, "reservoir": 500, "reservoirRefreshAmount": 500}
RESERVOIR["reservoirRefreshInterval"] = 5_000  # ms: the shortest in a cluster
NODE: Mapping[str, Mapping[str, float]] = {
    "Bottleneck, reservoir": RESERVOIR,
    "Bottleneck, reservoir and minTime": {**RESERVOIR, "minTime": 1000 / REQUESTS.amount},
}


class Grant(NamedTuple):
    """What was granted, and when by the server's clock; None where the server does not say."""

    cost: float = 1
    at: float | None = None


class Use(NamedTuple):
    """A block: when it was asked for, entered, and granted, and what for."""

    asked: float
    entered: float
    granted: float
    cost: float


Worker = Callable[[float, float], Coroutine[Any, Any, list[Use]]]  # from when to when
Enter = Callable[[], AbstractAsyncContextManager[Grant]]


def _ours(client: Redis, name: str) -> Enter:
    semaphore = FairSemaphore(client, name, LIMIT, rate=REQUESTS)

    @asynccontextmanager
    async def enter() -> AsyncGenerator[Grant]:
        async with semaphore.acquire() as permit:
            yield Grant(at=permit.fencing_token / 1e6)

    return enter


def _tokens(*, settle: bool) -> Callable[[Redis, str], Enter]:
    def open_one(client: Redis, name: str) -> Enter:
        semaphore = FairSemaphore(client, name, LIMIT, rate=TOKENS)

        @asynccontextmanager
        async def enter() -> AsyncGenerator[Grant]:
            async with semaphore.acquire(cost=ESTIMATE) as permit:
                real = random.uniform(*REAL)
                yield Grant(real, permit.fencing_token / 1e6)
                if settle:
                    permit.settle(real)

        return enter

    return open_one


def _peer(client: Redis, name: str) -> Enter:
    throttled: Any = import_module("throttled.asyncio")

    address = client.connection_pool.connection_kwargs
    url = f"redis://{address['host']}:{address['port']}"
    quota = throttled.rate_limiter.per_sec(int(REQUESTS.amount), burst=int(REQUESTS.most))
    shared = throttled.store.RedisStore(server=url)
    limiter = throttled.Throttled(key=name, using="gcra", quota=quota, store=shared, timeout=60)
    semaphore = FairSemaphore(client, name, LIMIT)

    @asynccontextmanager
    async def enter() -> AsyncGenerator[Grant]:
        async with semaphore.acquire():
            await limiter.limit()
            yield Grant()

    return enter


LIBRARIES = {
    OURS: _ours,
    SETTLED: _tokens(settle=True),
    UNSETTLED: _tokens(settle=False),
    PEER: _peer,
}


async def _work(context: Context, label: str, url: str, begin: float, end: float) -> list[Use]:
    """A job: enter and leave in all tasks."""
    client = await context.once(url, lambda: Redis.from_url(url))
    enter = LIBRARIES[label](client, f"p16-{begin:.0f}")
    uses: list[Use] = []

    async def pairs() -> None:
        while (asked := time.monotonic()) < end:
            async with enter() as granted:
                entered = time.monotonic()
                uses.append(Use(asked, entered, granted.at or entered, granted.cost))
                await asyncio.sleep(HOLD)

    await asyncio.sleep(begin - time.monotonic())
    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(pairs())
    return uses


def _in_python(process: Child, label: str, url: str) -> Worker:
    return lambda begin, end: process.run(_work, label, url, begin, end)


def _in_node(driver: Node, options: Mapping[str, float]) -> Worker:
    async def work(begin: float, end: float) -> list[Use]:
        job = {"name": f"p16-{begin:.0f}", "tasks": TASKS, "hold_ms": 1000 * HOLD}
        times = await driver.turn({**job, "options": options, "begin": begin, "end": end})
        return [Use(asked, entered, entered, 1) for asked, entered in times]

    return work


def most_at_once(uses: Sequence[Use], rate: Rate) -> float:
    """The most that was granted in any window of *t* seconds, less the rate times *t*."""
    ahead, granted, most = float("inf"), 0.0, 0.0
    for use in sorted(uses, key=lambda use: use.granted):
        ahead = min(ahead, granted - use.granted / rate.time_for(1))
        granted += use.cost
        most = max(most, granted - use.granted / rate.time_for(1) - ahead)
    return most


def most_overtaken(uses: Sequence[Use]) -> float:
    """For how many seconds at most one had waited already, when a later one that entered came."""
    last, most = 0.0, 0.0
    for use in sorted(uses, key=lambda use: use.entered):
        most, last = max(most, last - use.asked), max(last, use.asked)
    return most


@dataclass(frozen=True, slots=True)
class Turn:
    """What one library granted, and how many scripts the server ran for it."""

    label: str
    uses: list[Use]
    scripts: float

    @property
    def rate(self) -> Rate:
        return TOKENS if "tokens" in self.label else REQUESTS


@asynccontextmanager
async def workers(bench: Bench) -> AsyncGenerator[dict[str, list[Worker]]]:
    """What the processes do for each library that is there."""
    found: dict[str, list[Worker]] = {}
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(child(bench.loop)) for _ in range(PROCESSES)]
        for label in LIBRARIES:
            if label == PEER and not find_spec("throttled"):
                bench.table.absent[label] = NOT_INSTALLED
            else:
                found[label] = [_in_python(one, label, bench.url) for one in children]
        try:
            drivers = [
                await stack.enter_async_context(node(bench.url, "rates.mjs")) for _ in children
            ]
        except NodeUnavailable as error:
            bench.table.absent |= dict.fromkeys(NODE, f"{NOT_INSTALLED} ({error})")
        else:
            for label, options in NODE.items():
                found[label] = [_in_node(driver, options) for driver in drivers]
        yield found


async def turns(bench: Bench) -> AsyncGenerator[Turn]:
    """One turn of each library, for the window of the bench."""
    async with Redis.from_url(bench.url) as client, workers(bench) as found:
        for label, processes in found.items():
            bench.progress(label)
            begin, ran = time.monotonic() + START_DELAY, (await scripts_run(client))[0]
            end = begin + bench.effort.window
            done = await asyncio.gather(*(process(begin, end) for process in processes))
            ran = (await scripts_run(client))[0] - ran
            yield Turn(label, [use for of_one in done for use in of_one], ran)


async def _measure(bench: Bench) -> None:
    async for turn in turns(bench):
        uses, rate = turn.uses, turn.rate
        entered = [use.entered for use in uses]
        granted = sum(use.cost for use in uses) - rate.most
        figures = {
            "most at once, ÷ burst": most_at_once(uses, rate) / rate.most,
            "used, %": 100 * rate.time_for(granted) / (max(entered) - min(entered)),
            "overtaken by, ms": 1000 * most_overtaken(uses),
            "scripts a grant": turn.scripts / len(uses),
        }
        waits = [use.entered - use.asked for use in uses]
        bench.row(turn.label, waits=waits, figures={name: [n] for name, n in figures.items()})


P16 = Case(
    "P16",
    "Rates: five processes, 100 waiters",
    f"{PROCESSES} processes with {TASKS} tasks each, limit {LIMIT}; each sleeps"
    f" {1000 * HOLD:.0f} ms while it holds a permit. Of requests, {REQUESTS.amount:g} a second"
    f" with a burst of {REQUESTS.most:g}. Of tokens, {TOKENS.amount:,} a second, with an estimate"
    f" of {ESTIMATE:,} for each request, which uses {REAL[0]} to {REAL[1]:,}. Most at once is what"
    " was granted in any window, less the rate of that time: the bound is the burst. Of"
    " FairSemaphore it is by the server's clock, and of others by when a block was entered, which"
    " includes delays of its process. Overtaken is how much earlier one had asked than one that"
    " entered before it. With throttled-py there are two waits: for the semaphore, then for the"
    " rate. Bottleneck's reservoir is filled every 5 seconds, the least that it allows in a"
    " cluster; with minTime, jobs also keep a distance.",
    _measure,
)
