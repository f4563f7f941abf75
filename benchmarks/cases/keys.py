"""P13: what a key adds to a pair."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from redis.asyncio import Redis

from benchmarks._bench import Bench, Case
from benchmarks._children import Context, child
from benchmarks._comparison import Bursts, Comparison, Load, burst, name_for, quotients, rates
from benchmarks._libraries import OpenSemaphore
from redsem_async import FairSemaphore

BUSY, OTHER = "busy", "other"
PLAIN = "pair, without a key"


def _semaphore(client: Redis, name: str, limit: int, *, share: bool) -> FairSemaphore:
    return FairSemaphore(client, name, limit, key_limit=1, share=share, lease=3600)


async def _ask(context: Context, url: str, name: str, count: int, *, share: bool) -> None:
    """A job: start *count* tasks that ask with one key, and hold for ever."""
    client = await context.once(url, lambda: Redis.from_url(url))
    semaphore = _semaphore(client, name, count, share=share)

    async def hold() -> None:
        async with semaphore.acquire(key=BUSY):
            await asyncio.Event().wait()

    context.tasks += [asyncio.create_task(hold()) for _ in range(count)]


async def _measure(bench: Bench) -> None:
    many = bench.effort.bulk
    crowded = f", {many:,} of another wait"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(bench.url))
        comparison = Comparison(bench)

        def add(label: str, semaphore: FairSemaphore, key: str | None) -> None:
            async def held() -> int:
                return (await semaphore.status(0)).held

            stack.push_async_callback(semaphore.delete)
            opened = OpenSemaphore(partial(semaphore.acquire, key=key), held, semaphore.delete)
            load = Load(tasks=1, limit=1)
            comparison.add(label, partial(burst, opened, load, bench.effort.burst))

        add(PLAIN, FairSemaphore(client, name_for("p13"), many), None)
        for share, keyed in ((False, "pair, a key"), (True, "pair, a key (share)")):
            add(keyed, _semaphore(client, name_for("p13"), many, share=share), OTHER)
            name = name_for("p13")
            beside = _semaphore(client, name, many, share=share)
            add(f"{keyed}{crowded}", beside, OTHER)
            bench.progress(f"{keyed}{crowded}")
            process = await stack.enter_async_context(child(bench.loop))
            await process.run(_ask, bench.url, name, many, share=share)
            while (await beside.status(0)).waiting != many - 1:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)
            stack.push_async_callback(process.kill)
        bursts = await comparison.run()

        def over(label: str, own: Bursts, *, other: str) -> list[float] | None:
            return None if label == other else quotients(rates(bursts[other]), rates(own))

        def over_alone(label: str, own: Bursts) -> list[float] | None:
            return over(label, own, other=label.removesuffix(crowded))

        comparison.report(
            {
                "µs per pair": lambda _, own: [1e6 / rate for rate in rates(own)],
                "× without a key": partial(over, other=PLAIN),
                "× without that line": over_alone,
            }
        )


P13 = Case(
    "P13",
    "A pair with a key",
    "One task acquires and releases, without a key, with one, and with one while requests of"
    " another key wait in another process that only the limit of their key holds up.",
    _measure,
)
