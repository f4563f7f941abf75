"""What a permit costs, counted: a regression guard that no clock can fool.

Each bound is what was counted when it was written, with a little room for another Python; a
change that needs more has to say why. What it comes to in time is the benchmarks' to measure.
"""

import asyncio
import contextlib
import gc
import math
from collections import Counter
from collections.abc import AsyncGenerator
from unittest.mock import patch

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore
from redsem_async._hub.state import SemaphoreState

PAIRS = 100


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


async def test_a_lone_pair_is_settled_once(semaphore: AnySemaphore) -> None:
    """Behind the caller that a reply woke, with what it asks for, and not for the reply alone."""
    todo = SemaphoreState.todo
    with patch.object(SemaphoreState, "todo", autospec=True, side_effect=todo) as settled:
        await pairs(semaphore)
    assert settled.call_count <= 1.1 * PAIRS


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


async def test_a_pair_leaves_nothing_to_the_collector(semaphore: AnySemaphore) -> None:
    """No reference cycles: what a pair was made of is gone when it ends."""
    gc.collect()
    gc.disable()
    try:
        await pairs(semaphore)
        assert gc.collect() < PAIRS / 10
    finally:
        gc.enable()
