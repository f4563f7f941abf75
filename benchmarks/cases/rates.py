"""P16: several processes on one semaphore with a rate."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from redis.asyncio import Redis

from benchmarks._bench import NOT_INSTALLED, Bench, Case
from benchmarks._children import Context, child
from benchmarks._stats import scripts_run
from redsem_async import FairSemaphore, Rate

PROCESSES, TASKS, LIMIT = 5, 20, 50
RATE, BURST, HOLD = 100, 10, 0.05  # a second, at once, seconds
START_DELAY = 0.2  # seconds until all processes start at the same time
OURS, PEER = "FairSemaphore with rate=", "throttled-py (GCRA) and a FairSemaphore"

Entry = AbstractAsyncContextManager[float | None]


class Use(NamedTuple):
    """A block: when it was asked for, entered, and granted, if the server says so."""

    asked: float
    entered: float
    granted: float


def _ours(client: Redis, name: str) -> Callable[[], Entry]:
    semaphore = FairSemaphore(client, name, LIMIT, rate=Rate(RATE, burst=BURST))

    @asynccontextmanager
    async def enter() -> AsyncGenerator[float | None]:
        async with semaphore.acquire() as permit:
            yield permit.fencing_token / 1e6  # the server's clock

    return enter


def _peer(client: Redis, name: str) -> Callable[[], Entry]:
    throttled: Any = import_module("throttled.asyncio")

    address = client.connection_pool.connection_kwargs
    url = f"redis://{address['host']}:{address['port']}"
    quota = throttled.rate_limiter.per_sec(RATE, burst=BURST)
    shared = throttled.store.RedisStore(server=url)
    limiter = throttled.Throttled(key=name, using="gcra", quota=quota, store=shared, timeout=60)
    semaphore = FairSemaphore(client, name, LIMIT)

    @asynccontextmanager
    async def enter() -> AsyncGenerator[float | None]:
        async with semaphore.acquire():
            await limiter.limit()
            yield None

    return enter


LIBRARIES = {OURS: _ours, PEER: _peer}


async def _work(context: Context, label: str, url: str, begin: float, end: float) -> list[Use]:
    """A job: enter and leave in all tasks."""
    client = await context.once(url, lambda: Redis.from_url(url))
    enter = LIBRARIES[label](client, f"p16-{begin:.0f}")
    uses: list[Use] = []

    async def pairs() -> None:
        while (asked := time.monotonic()) < end:
            async with enter() as granted:
                entered = time.monotonic()
                uses.append(Use(asked, entered, entered if granted is None else granted))
                await asyncio.sleep(HOLD)

    await asyncio.sleep(begin - time.monotonic())
    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(pairs())
    return uses


def most_at_once(uses: list[Use]) -> float:
    """The most that was granted in any window of *t* seconds, less the rate times *t*."""
    ahead, most = float("inf"), 0.0
    for number, at in enumerate(sorted(use.granted for use in uses)):
        ahead = min(ahead, number - RATE * at)
        most = max(most, number - RATE * at - ahead + 1)
    return most


def most_overtaken(uses: list[Use]) -> float:
    """For how many seconds at most one had waited already, when a later one that entered came."""
    last, most = 0.0, 0.0
    for use in sorted(uses, key=lambda use: use.entered):
        most, last = max(most, last - use.asked), max(last, use.asked)
    return most


async def _measure(bench: Bench) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(bench.url))
        children = [await stack.enter_async_context(child(bench.loop)) for _ in range(PROCESSES)]
        for label in LIBRARIES:
            bench.progress(label)
            if label == PEER and not find_spec("throttled"):
                bench.table.absent[label] = NOT_INSTALLED
                continue
            begin, ran = time.monotonic() + START_DELAY, (await scripts_run(client))[0]
            end = begin + bench.effort.window
            jobs = (one.run(_work, label, bench.url, begin, end) for one in children)
            uses = [use for of_one in await asyncio.gather(*jobs) for use in of_one]
            ran = (await scripts_run(client))[0] - ran
            lasted = max(use.entered for use in uses) - min(use.entered for use in uses)
            figures = {
                "most at once": most_at_once(uses),
                "used, %": 100 * (len(uses) - BURST) / (RATE * lasted),
                "overtaken by, ms": 1000 * most_overtaken(uses),
                "scripts a grant": ran / len(uses),
            }
            waits = [use.entered - use.asked for use in uses]
            bench.row(label, waits=waits, figures={name: [n] for name, n in figures.items()})


P16 = Case(
    "P16",
    "Rates: five processes, 100 waiters",
    f"{PROCESSES} processes with {TASKS} tasks each, limit {LIMIT}, and at most {RATE} a second"
    f" with a burst of {BURST}; each sleeps {1000 * HOLD:.0f} ms while it holds a permit. Most at"
    f" once is what was granted in any window less the rate of that time: the bound is {BURST}. Of"
    " FairSemaphore it is by the server's clock, and of the other by when its block was entered,"
    " which includes delays of the process. Overtaken is how much earlier one had asked than one"
    " that entered before it. The peer has two waits: for the semaphore, then for the rate.",
    _measure,
)
