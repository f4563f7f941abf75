"""What a permit costs, counted: a regression guard that no clock can fool.

Each bound is what was counted when it was written, with a little room for another Python; a
change that needs more has to say why. What it comes to in time is the benchmarks' to measure.
"""

import asyncio
import contextlib
import gc
import math
import selectors
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore
from redsem_async.testing import EmbeddedRedis

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
async def semaphore(client_a: Redis) -> AnySemaphore:
    """A semaphore with room for all, after its first uses."""
    made = FairSemaphore(client_a, "jobs", 100)
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


async def test_a_lone_pair_is_two_script_calls(semaphore: AnySemaphore, admin: Redis) -> None:
    """One trip to acquire, one to release, and on the quick path."""
    async with commands(admin) as counts:
        await pairs(semaphore, PAIRS - 1)
        await (await semaphore.acquire()).release()  # awaited, so that all was carried out
    assert counts["EVALSHA"] == 2 * PAIRS
    assert counts.total() - counts["EVALSHA"] <= 15 * PAIRS, counts


async def test_tasks_share_script_calls(
    semaphore: AnySemaphore, client_a: Redis, admin: Redis
) -> None:
    """Group commit; full, a pair is asked for, granted with another's release, and given back."""
    async with commands(admin) as counts:
        await together(semaphore, 10)
    assert counts["EVALSHA"] <= 2 * 10 + 2
    assert counts.total() <= 14 * counts["EVALSHA"], counts
    contended = FairSemaphore(client_a, "contended", 5)
    await together(contended, 2)
    async with commands(admin) as counts:
        await together(contended, 10)
    assert counts["EVALSHA"] <= 250
    assert counts["PUBLISH"] == 0  # who waits in the same process is told by the reply


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of its event loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


def test_a_lone_pair_takes_three_turns_of_the_loop(server: EmbeddedRedis) -> None:
    """A write is one turn, the replies the next; then the task leaves its block and asks again."""
    selector = CountingSelector()

    async def main() -> int:
        async with Redis.from_url(server.url) as client:
            semaphore = FairSemaphore(client, "jobs", 10)
            await pairs(semaphore, 2)
            before = selector.turns
            await pairs(semaphore)
            return selector.turns - before

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        # Before 7.0, a server may send the replies to one write in two.
        turns = 3 if server.version >= (7,) else 4
        assert runner.run(main()) <= turns * PAIRS + 5


async def test_a_pair_leaves_nothing_to_the_collector(semaphore: AnySemaphore) -> None:
    """No reference cycles: what a pair was made of is gone when it ends."""
    gc.collect()
    gc.disable()
    try:
        await pairs(semaphore)
        assert gc.collect() < PAIRS / 10
    finally:
        gc.enable()
