"""The cases. Each checks that no permit was leaked while it measured."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from benchmarks._report import Row
from redsem_async import AnySemaphore, FairSemaphore, Semaphore

PAIRS = 300
BATCH = 50

# The least that one trip can do: one id goes in, or comes out, of a sorted set with an expiry.
TAKE = """
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 1, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], 10000)
return #ARGV
"""
GIVE = "for i = 1, #ARGV do redis.call('ZREM', KEYS[1], ARGV[i]) end return #ARGV"


async def p1_lone_pair(url: str, kind: type[Semaphore | FairSemaphore], rounds: int) -> list[Row]:
    """P1: one task, a free semaphore. The floor is two bare ``evalsha`` calls of redis-py."""
    async with Redis.from_url(url) as client:
        sem = kind(client, f"p1-{secrets.token_hex(4)}", limit=100)
        take, give = await client.script_load(TAKE), await client.script_load(GIVE)
        key = f"floor-{secrets.token_hex(4)}"
        latencies: list[float] = []

        async def ours() -> None:
            await _pairs(sem, PAIRS, latencies)

        async def floor() -> None:
            for _ in range(PAIRS):
                await client.evalsha(take, 1, key, "one")
                await client.evalsha(give, 1, key, "one")

        pairs, ratios = await _in_turn(ours, floor, PAIRS, rounds, latencies)
        await _check(sem)
    return [Row("P1", kind.__name__, pairs, ratios, "two bare evalsha", latencies)]


async def p2_many_tasks(
    url: str, kind: type[Semaphore | FairSemaphore], tasks: int, rounds: int
) -> list[Row]:
    """P2: many tasks in one process, a free semaphore. The floor is scripts of 50 ids each."""
    async with Redis.from_url(url) as client:
        sem = kind(client, f"p2-{secrets.token_hex(4)}", limit=2 * tasks)
        take, give = await client.script_load(TAKE), await client.script_load(GIVE)
        key = f"floor-{secrets.token_hex(4)}"
        ids = [secrets.token_hex(16) for _ in range(BATCH)]
        each = max(10, 10_000 // tasks)
        latencies: list[float] = []

        async def ours() -> None:
            await asyncio.gather(*(_pairs(sem, each, latencies) for _ in range(tasks)))

        async def floor() -> None:
            for _ in range(tasks * each // BATCH):
                await client.evalsha(take, 1, key, *ids)
                await client.evalsha(give, 1, key, *ids)

        pairs, ratios = await _in_turn(ours, floor, tasks * each, rounds, latencies)
        await _check(sem)
    floor_name = f"scripts of {BATCH} ids"
    return [Row(f"P2, {tasks} tasks", kind.__name__, pairs, ratios, floor_name, latencies)]


async def _pairs(sem: AnySemaphore, count: int, latencies: list[float]) -> None:
    for _ in range(count):
        start = time.perf_counter()
        async with sem.acquire():
            latencies.append(time.perf_counter() - start)


async def _in_turn(
    ours: Callable[[], Awaitable[None]],
    floor: Callable[[], Awaitable[None]],
    count: int,
    rounds: int,
    latencies: list[float],
) -> tuple[list[float], list[float]]:
    """Pairs a second and ratios, round by round; the first, which warms up, is thrown away."""
    pairs: list[float] = []
    ratios: list[float] = []
    for _ in range(rounds + 1):
        own, bare = await _timed(ours), await _timed(floor)
        pairs.append(count / own)
        ratios.append(bare / own)
        if len(pairs) == 1:
            latencies.clear()
    return pairs[1:], ratios[1:]


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def _check(sem: AnySemaphore) -> None:
    status = await sem.status()
    if status.held or status.waiting:
        raise AssertionError(f"a permit was leaked: {status}")
    await sem.clear()
