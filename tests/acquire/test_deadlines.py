"""What a deadline gives: a permit, or *full* as the server lately replied, or unreachable."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from redsem_async import AcquireTimeout, BackendUnavailable, FairSemaphore, Permit
from redsem_async._hub.route import OVERTIME
from tests.harness.memory import Distant
from tests.harness.wait import give_back, in_background, queue_up
from tests.worlds.simulated_time import simulated

TIMEOUT = 2.0
SOME = 1e-3  # seconds, of nothing but steps of a clock


@pytest.fixture
def backend() -> Distant:
    """The client of the process whose requests have a deadline."""
    return Distant()


@pytest.fixture
def here(backend: Distant) -> FairSemaphore:
    return FairSemaphore(backend, "jobs", 1, lease=30.0)


@pytest.fixture
def there(backend: Distant) -> FairSemaphore:
    """The same semaphore in another process."""
    return FairSemaphore(backend.peer(), "jobs", 1, lease=30.0)


async def outcome(waiter: Awaitable[Permit]) -> tuple[Any, float]:
    """What came of *waiter*, and how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    [result] = await asyncio.gather(waiter, return_exceptions=True)
    return result, loop.time() - began


@pytest.mark.parametrize("silence", ["half_open", "muted"])
@pytest.mark.parametrize("queued", [True, False])
@simulated
async def test_a_waiter_that_is_cut_off_is_not_told_that_it_is_full(
    backend: Distant, here: FairSemaphore, there: FairSemaphore, silence: str, queued: bool
) -> None:
    """It was full at the last reply, if any; a permit has been free since, and is not lost."""
    holder = await there.acquire()
    await here.reap()  # it is connected
    waiter = in_background(here.acquire(timeout=TIMEOUT))
    if queued:
        await asyncio.sleep(SOME)
    setattr(backend, silence, True)
    await give_back(holder)
    result, took = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    assert "no answer in " in str(result)
    assert took == pytest.approx(TIMEOUT + OVERTIME, abs=2 * SOME)
    assert backend.asked("heartbeat") == queued, "the server was asked"


@pytest.mark.parametrize("young", [False, True], ids=["old", "young"])
@simulated
async def test_waiters_with_one_deadline_ask_the_server_together(
    backend: Distant, here: FairSemaphore, there: FairSemaphore, young: bool
) -> None:
    """No reply came for long, so the server is asked once; a young reply will do for all."""
    async with there:
        waiters = [await queue_up(here, timeout=TIMEOUT) for _ in range(5)]
        last = await queue_up(here)
        await asyncio.sleep(TIMEOUT - 0.04 if young else 1.0)
        await here.reap()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert {type(result) for result in results} == {AcquireTimeout}
        assert backend.asked("heartbeat") == (not young)
    await give_back(last)


@simulated
async def test_a_far_server_is_asked_before_the_deadline(
    backend: Distant, here: FairSemaphore, there: FairSemaphore
) -> None:
    """Its answer takes longer than the grace: it comes in time all the same, and not too early."""
    async with there:
        for timeout, at_last in ((0.2, 0.08), (0.3, 0.08), (1.0, 0.08), (1.0, 0.01)):
            backend.delay = 0.08
            waiter = in_background(here.acquire(timeout=timeout))
            await asyncio.sleep(0.17)
            backend.delay = at_last
            result, took = await outcome(waiter)
            assert isinstance(result, AcquireTimeout), repr(result)
            assert 0.17 + took == pytest.approx(timeout, abs=OVERTIME)
            backend.drop()
        waiter = in_background(here.acquire(timeout=TIMEOUT))
        await asyncio.sleep(1.0)
        backend.half_open = True
        result, _ = await outcome(waiter)
        assert isinstance(result, BackendUnavailable), repr(result)
