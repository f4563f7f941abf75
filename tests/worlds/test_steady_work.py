"""Tasks that acquire and release on and on, in simulated time: shares, and `retry_after`."""

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, QueueFull, Semaphore
from redsem_async._api.awaitables import Acquisition
from redsem_async.testing import MemoryBackend
from tests.harness.wait import cancelled
from tests.worlds.simulated_time import in_simulated_time

pytestmark = pytest.mark.timeout(300)  # no time is measured, and a busy machine computes slowly

TASKS = 22
Hold = Callable[[random.Random], float]
HOLDS: dict[str, Hold] = {
    "constant": lambda _: 0.05,
    "exponential": lambda source: source.expovariate(20.0),
    "short": lambda _: 0.002,
}


@pytest.mark.parametrize(
    ("hold", "seconds"),
    [
        pytest.param(HOLDS["short"], 1.5, id="short"),
        pytest.param(HOLDS["exponential"], 15.0, id="exponential"),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 8])
@pytest.mark.parametrize("kind", [FairSemaphore, Semaphore], ids=["fair", "zset"])
def test_processes_get_equal_shares(
    kind: type[AnySemaphore], limit: int, hold: Hold, seconds: float
) -> None:
    """Also where what they send arrives in an order that always favours the same one."""
    source = random.Random(0)
    memory = MemoryBackend()
    uses: Counter[int] = Counter()

    async def work(process: int, semaphore: AnySemaphore) -> None:
        while True:
            async with semaphore:
                uses[process] += 1
                await asyncio.sleep(hold(source))

    async def measure() -> None:
        tasks: list[asyncio.Task[None]] = []
        for process, client in enumerate([memory, memory.peer(), memory.peer()]):
            semaphore = kind(client, "jobs", limit)
            tasks += [asyncio.create_task(work(process, semaphore)) for _ in range(TASKS)]
        await asyncio.sleep(seconds)
        await cancelled(*tasks)

    in_simulated_time(measure)
    assert max(uses.values()) < 1.5 * min(uses.values()), uses


@pytest.mark.parametrize(("hold", "processes"), [("constant", 1), ("exponential", 2)])
@pytest.mark.parametrize(("limit", "set_to"), [(2, None), (8, None), (8, 2)])
@pytest.mark.parametrize("kind", [FairSemaphore, Semaphore], ids=["fair", "zset"])
def test_on_steady_work_it_is_what_the_next_request_waits(
    kind: type[AnySemaphore], limit: int, set_to: int | None, hold: str, processes: int
) -> None:
    """Of `timeout=0`, of a full line and of `status()` alike: within a factor of two."""
    make = partial(kind, name="jobs", limit=limit)
    _compare(make, None, hold, {None: TASKS}, processes, set_to)


@pytest.mark.parametrize(
    ("limit", "key_limit", "share", "processes"),
    [
        *((limit, None, True, 1) for limit in (1, 2, 8)),
        *((3, of_key, share, 2) for of_key in (None, 2) for share in (False, True)),
    ],
)
@pytest.mark.parametrize("key", ["greedy", "new"])
def test_with_keys_it_is_what_the_next_request_of_the_key_waits(
    key: str, limit: int, key_limit: int | None, share: bool, processes: int
) -> None:
    """With equal weights: the estimate does not know them."""

    def of_key(_: str) -> int | None:
        return key_limit

    make = partial(FairSemaphore, name="jobs", limit=limit, key_limit=of_key, share=share)
    _compare(make, key, "exponential", processes=processes)


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        pytest.param(100, {"key": 4}, id="its key alone"),
        pytest.param(5, {"key": 6} | dict.fromkeys("abcdefghi", 6), id="both"),
        pytest.param(8, {"key": 2, "hog": 60}, id="beside a long queue"),
    ],
)
@pytest.mark.parametrize("share", [False, True], ids=["in turn", "share"])
def test_behind_the_limit_of_its_key_it_goes_by_the_queue_of_the_key(
    share: bool, limit: int, sizes: dict[str | None, int]
) -> None:
    """A client that comes back after 0.1 s of 3 s is refused thirty times."""
    make = partial(FairSemaphore, name="jobs", limit=limit, key_limit=1, share=share)
    _compare(make, "key", "exponential", sizes)


def _compare(
    make: Callable[..., AnySemaphore],
    key: str | None,
    hold: str,
    sizes: Mapping[str | None, int] = MappingProxyType({"greedy": TASKS, "small": 4, "other": 2}),
    processes: int = 1,
    set_to: int | None = None,
) -> None:
    """Compare estimates for *key* with what its next request waits, on steady work.

    *sizes* says how many tasks each key has.
    """
    source = random.Random(0)
    memory = MemoryBackend()
    semaphores = [make(client) for client in [memory, memory.peer()][:processes]]
    sem, bounded = semaphores[0], [make(memory, max_waiters=0)]
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
                await asyncio.sleep(HOLDS[hold](source))

    async def measure() -> None:
        await sem.set_limit(set_to)
        tasks = [
            asyncio.create_task(work(semaphores[n % processes], key))
            for key, size in sizes.items()
            for n in range(size)
        ]
        await asyncio.sleep(1.0)
        for _ in range(15 if key is None else 20):
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
