"""What a deadline gives: a permit, or *full* as the server lately replied, or unreachable."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from redsem_async import AcquireTimeout, BackendUnavailable, FairSemaphore, Permit
from redsem_async._hub.deadlines import GRACE
from tests.harness.memory import Distant
from tests.harness.wait import cancelled, give_back, in_background, queue_up
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
    assert took == pytest.approx(TIMEOUT + GRACE, abs=2 * SOME)
    assert backend.asked("heartbeat") == queued, "the server was asked"


@simulated
async def test_waiters_with_one_deadline_ask_the_server_together(
    backend: Distant, here: FairSemaphore, there: FairSemaphore
) -> None:
    """No reply came for long, so the server is asked once."""
    async with there:
        waiters = [await queue_up(here, timeout=TIMEOUT) for _ in range(5)]
        last = await queue_up(here)
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert {type(result) for result in results} == {AcquireTimeout}
        assert backend.asked("heartbeat") == 1
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
            assert 0.17 + took == pytest.approx(timeout, abs=GRACE)
            backend.drop()
        waiter = in_background(here.acquire(timeout=TIMEOUT))
        await asyncio.sleep(1.0)
        backend.half_open = True
        result, _ = await outcome(waiter)
        assert isinstance(result, BackendUnavailable), repr(result)


@simulated
async def test_a_reply_about_another_key_decides_nothing(backend: Distant) -> None:
    """While the process asks other things all the time, whose replies say that Redis is there."""
    backend.delay = 0.01
    here = FairSemaphore(backend, "jobs", 2, key_limit=1)
    held = await here.acquire(key="a")

    async def asks_on() -> None:
        while True:
            _ = in_background(here.try_acquire(key="b"))
            await asyncio.sleep(0.005)

    asking = in_background(asks_on())
    waiters = [in_background(here.acquire(key="a", timeout=TIMEOUT)) for _ in range(3)]
    await asyncio.sleep(TIMEOUT + 0.005)
    await give_back(held)  # one gets it, after its deadline and before the answer
    ended = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(each) for each in ended} <= {Permit, AcquireTimeout}
    await give_back(*(each for each in ended if isinstance(each, Permit)))
    held = await here.acquire(key="a")
    waiter = in_background(here.acquire(key="a", timeout=TIMEOUT))
    await asyncio.sleep(1.0)
    await here.set_limit(1)
    await here.set_limit(5, key="a")
    with pytest.raises(AcquireTimeout) as late:
        await waiter
    assert late.value.blocked_by == "limit", "it says what is full within the last second"
    await cancelled(asking)
    await give_back(held)


@pytest.mark.parametrize("early", [0.12, 0.08, 0.03, -0.03, -0.07])
@simulated
async def test_far_away_the_server_is_not_unavailable_because_a_permit_became_free(
    backend: Distant, here: FairSemaphore, there: FairSemaphore, early: float
) -> None:
    """Released so much before the deadline: a permit, or *full*."""
    backend.delay = 0.04
    holder = await there.acquire()
    await here.reap()
    waiter = in_background(here.acquire(timeout=TIMEOUT))
    await asyncio.sleep(TIMEOUT - early - backend.delay)
    await give_back(holder)
    result, _ = await outcome(waiter)
    assert isinstance(result, Permit | AcquireTimeout), repr(result)
    if isinstance(result, Permit):
        await give_back(result)


@simulated
async def test_a_grant_that_nothing_confirms_by_the_deadline_comes_too_late(
    backend: Distant, there: FairSemaphore
) -> None:
    """Far away, its refresh takes as long as any command. The server is not unavailable then."""
    here = FairSemaphore(backend, "jobs", 1, lease=30.0, refresh_interval=0.05)
    holder = await there.acquire()
    waiter = await queue_up(here, timeout=1.0)
    backend.delay = 0.6
    await give_back(holder)
    result, _ = await outcome(waiter)
    assert backend.asked("refresh")
    assert isinstance(result, AcquireTimeout)
    await asyncio.sleep(2.0)
    assert (await there.status()).held == 0
