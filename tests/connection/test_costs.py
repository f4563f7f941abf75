"""What a permit costs, counted: a regression guard that no clock can fool.

Each bound is what was counted when it was written, with a little room for another Python; a
change that needs more has to say why. What it comes to in time is the benchmarks' to measure.
"""

import asyncio
import contextlib
import gc
import math
import selectors
import sys
import tracemalloc
import types
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Kind

PAIRS = 100
OURS = str(Path(redsem_async.__file__).parent)


@pytest.fixture(autouse=True)
def near_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is near, however slow a busy machine makes it: commands are counted here."""
    monkeypatch.setattr("redsem_async._hub.pipeline.FAR", math.inf)


async def pairs(semaphore: AnySemaphore, count: int = PAIRS) -> None:
    for _ in range(count):
        async with semaphore.acquire():
            pass


async def together(semaphore: AnySemaphore, each: int) -> None:
    """Pairs of fifty tasks at once."""
    await asyncio.gather(*(pairs(semaphore, each) for _ in range(50)))


@pytest.fixture
async def semaphore(kind: Kind, client_a: Redis) -> AnySemaphore:
    """A semaphore with room for all, after its first uses."""
    made = kind(client_a, "jobs", 100)
    await together(made, 2)
    return made


@contextlib.asynccontextmanager
async def commands(admin: Redis) -> AsyncGenerator[Counter[str]]:
    """Counts what the server carried out, by name; what scripts call is counted too."""
    counts: Counter[str] = Counter()
    await admin.config_resetstat()
    yield counts
    for name, stats in (await admin.info("commandstats")).items():
        counts[name.removeprefix("cmdstat_").upper()] = stats["calls"]
    for looking_on in ("CONFIG|RESETSTAT", "CONFIG", "INFO"):  # 6.2 does not tell subcommands
        del counts[looking_on]


async def test_a_lone_pair_is_two_script_calls_of_few_commands(
    semaphore: AnySemaphore, admin: Redis
) -> None:
    """One trip to acquire, one to release, and on the quick path."""
    async with commands(admin) as counts:
        await pairs(semaphore, PAIRS - 1)
        await (await semaphore.acquire()).release()  # awaited, so that all was carried out
    assert counts["EVALSHA"] == 2 * PAIRS
    assert counts.total() - counts["EVALSHA"] <= 15 * PAIRS, counts


async def test_fifty_tasks_share_their_script_calls(semaphore: AnySemaphore, admin: Redis) -> None:
    """Group commit: what is asked for in one turn travels in one command."""
    async with commands(admin) as counts:
        await together(semaphore, 10)
    assert counts["EVALSHA"] <= 2 * 10 + 2
    assert counts.total() <= 14 * counts["EVALSHA"], counts


async def test_contended_pairs_share_their_script_calls(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Full, a pair is asked for, granted with another's release, and given back."""
    semaphore = kind(client_a, "jobs", 5)
    await together(semaphore, 2)
    async with commands(admin) as counts:
        await together(semaphore, 10)
    assert counts["EVALSHA"] <= 250
    assert counts["PUBLISH"] == 0  # who waits in the same process is told by the reply


async def test_a_lone_pair_is_two_trips_on_the_wire(semaphore: AnySemaphore, admin: Redis) -> None:
    """Few bytes each: the scripts travel once, by digest ever after."""
    start, idle = await traffic(admin), await traffic(admin)
    await pairs(semaphore)
    busy = await traffic(admin)
    looking_on = idle - start
    used = busy - idle - looking_on
    print(f"bytes a pair: {used['in'] / PAIRS:.0f} asked, {used['out'] / PAIRS:.0f} answered")
    assert 0 < used["in"] <= 800 * PAIRS
    assert 0 < used["out"] <= 60 * PAIRS


async def traffic(admin: Redis) -> Counter[str]:
    """Bytes that the server has read and written so far."""
    stats = await admin.info("stats")
    return Counter({"in": stats["total_net_input_bytes"], "out": stats["total_net_output_bytes"]})


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of its event loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


def test_a_lone_pair_takes_three_turns_of_the_loop(kind: Kind, server: EmbeddedRedis) -> None:
    """A write is one turn, the replies the next; then the task leaves its block and asks again."""
    selector = CountingSelector()

    async def main() -> int:
        async with Redis.from_url(server.url) as client:
            semaphore = kind(client, "jobs", 10)
            await pairs(semaphore, 2)
            before = selector.turns
            await pairs(semaphore)
            return selector.turns - before

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        # Before 7.0, a server may send the replies to one write in two.
        turns = 3 if server.version >= (7,) else 4
        assert runner.run(main()) <= turns * PAIRS + 5


@types.coroutine
def suspensions(work: Coroutine[Any, Any, None]) -> Generator[Any, Any, int]:
    """How often *work* is suspended."""
    count = 0
    for waits_for in work.__await__():
        count += 1
        yield waits_for
    return count


async def test_a_pair_suspends_its_task_once(semaphore: AnySemaphore) -> None:
    """For the reply to the acquire: leaving the block waits for nothing."""
    assert await suspensions(pairs(semaphore)) == PAIRS


async def calls(work: Awaitable[None]) -> int:
    """How many of our own functions *work* calls."""
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(profile)
    try:
        await work
    finally:
        sys.setprofile(None)
    return count


async def test_a_lone_pair_calls_few_functions(semaphore: AnySemaphore) -> None:
    """What a lone pair costs is mostly this and the two trips."""
    assert await calls(pairs(semaphore)) <= 125 * PAIRS


async def test_fifty_tasks_call_fewer_functions_each(semaphore: AnySemaphore) -> None:
    """What is done once for a batch is not done for each of it."""
    assert await calls(together(semaphore, 10)) <= 50 * 500


async def test_a_pair_leaves_nothing_to_the_collector(semaphore: AnySemaphore) -> None:
    """No reference cycles: what a pair was made of is gone when it ends."""
    gc.collect()
    gc.disable()
    try:
        await pairs(semaphore)
        assert gc.collect() < PAIRS / 10
    finally:
        gc.enable()


async def test_what_a_held_permit_weighs(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """Bytes for each of 1,000, here and in Redis."""
    semaphore = kind(client_a, "jobs", 2000, lease=60.0)  # no refresh begins, however slow it is
    await pairs(semaphore, 2)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [await semaphore.acquire() for _ in range(1000)]
        weight = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    keys = await admin.keys("*jobs*")
    there = sum([await admin.memory_usage(key, samples=0) or 0 for key in keys])
    await asyncio.gather(*(permit.release() for permit in held))
    assert weight <= 1000 * 1000
    assert there <= 1000 * 400
