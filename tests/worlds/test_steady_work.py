"""Tasks that acquire and release on and on, in simulated time: shares, and `retry_after`."""

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, QueueFull, Semaphore
from redsem_async._api.awaitables import Acquisition
from redsem_async.testing import MemoryBackend
from tests.harness.wait import cancelled
from tests.worlds.simulated_time import in_simulated_time

pytestmark = pytest.mark.timeout(300)  # no time is measured, and a busy machine computes slowly

TASKS = 22
THREE_KEYS: Mapping[str | None, int] = {"greedy": TASKS, "small": 4, "other": 2}
TEN_KEYS: Mapping[str | None, int] = dict.fromkeys(("key", *"abcdefghi"), 6)


@pytest.mark.parametrize(("limit", "set_to"), [(2, None), (8, None), (8, 2)])
@pytest.mark.parametrize("kind", [FairSemaphore, Semaphore], ids=["fair", "zset"])
def test_on_steady_work_it_is_what_the_next_request_waits(
    kind: type[AnySemaphore], limit: int, set_to: int | None
) -> None:
    """Of `timeout=0`, of a full line and of `status()` alike: within a factor of two."""
    _compare(partial(kind, name="jobs", limit=limit), None, {None: TASKS}, set_to)


@pytest.mark.parametrize(
    ("key", "limit", "key_limit", "sizes"),
    [
        ("greedy", 1, None, THREE_KEYS),
        ("new", 8, None, THREE_KEYS),
        ("greedy", 3, 2, THREE_KEYS),
        ("new", 3, 2, THREE_KEYS),
        pytest.param("key", 100, 1, {"key": 4}, id="its key alone"),
        pytest.param("key", 5, 1, TEN_KEYS, id="both limits"),
        pytest.param("key", 8, 1, {"key": 2, "hog": 60}, id="beside a long queue"),
    ],
)
@pytest.mark.parametrize("share", [False, True], ids=["in turn", "share"])
def test_with_keys_it_is_what_the_next_request_of_the_key_waits(
    share: bool, key: str, limit: int, key_limit: int | None, sizes: Mapping[str | None, int]
) -> None:
    """With equal weights: the estimate does not know them."""

    def of_key(_: str) -> int | None:
        return key_limit

    make = partial(FairSemaphore, name="jobs", limit=limit, key_limit=of_key, share=share)
    _compare(make, key, sizes)


def _compare(
    make: Callable[..., AnySemaphore],
    key: str | None,
    sizes: Mapping[str | None, int],
    set_to: int | None = None,
) -> None:
    """Compare estimates for *key* with what its next request waits, on steady work.

    *sizes* says how many tasks each key has, in two processes.
    """
    source = random.Random(0)
    memory = MemoryBackend()
    semaphores = sem, _ = [make(client) for client in (memory, memory.peer())]
    bounded = [make(memory, max_waiters=0)]
    if key is not None:
        bounded.append(make(memory, max_waiters_per_key=0))
    waits: list[float] = []
    estimates: list[float] = []

    def ask(of: Any, key: str | None, **more: Any) -> Acquisition:
        asked: Acquisition = of.acquire(**({} if key is None else {"key": key}), **more)
        return asked

    async def work(semaphore: AnySemaphore, key: str | None) -> None:
        while True:
            async with ask(semaphore, key):
                await asyncio.sleep(source.expovariate(20.0))

    async def measure() -> None:
        await sem.set_limit(set_to)
        all_keys = [key for key, size in sizes.items() for _ in range(size)]
        tasks = [asyncio.create_task(work(semaphores[n % 2], k)) for n, k in enumerate(all_keys)]
        await asyncio.sleep(1.0)
        for _ in range(20):
            with pytest.raises(AcquireTimeout) as late:
                await ask(sem, key, timeout=0)
            estimates.append(told := late.value.retry_after)
            for each in bounded:
                with pytest.raises(QueueFull) as full:
                    await ask(each, key)
                assert full.value.retry_after == pytest.approx(told, rel=0.5)
            if key is None:
                assert (await sem.status()).retry_after == pytest.approx(told, rel=0.5)
            async with ask(sem, key) as permit:
                waits.append(permit.waited)
            await asyncio.sleep(source.uniform(0.1, 0.3))
        await cancelled(*tasks)

    in_simulated_time(measure)
    ratio = statistics.mean(estimates) / statistics.mean(waits)
    assert 0.5 < ratio < 2, f"{statistics.mean(estimates)} s for {statistics.mean(waits)} s"
