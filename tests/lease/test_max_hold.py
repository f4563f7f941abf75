"""A permit with ``max_hold`` is lost after so many seconds, by whomever it is refreshed."""

import asyncio

import pytest

from redsem_async import FairSemaphore, PermitLost
from tests.harness.clients import MakePair
from tests.harness.memory import Distant
from tests.harness.wait import give_back, queue_up
from tests.worlds.simulated_time import simulated

OPTIONS = {"lease": 0.6, "max_hold": 1.2}
REASON = "it was held for its max_hold of 1.2 s"


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_it_ends_a_block_and_frees_the_permit(pair: MakePair) -> None:
    """However healthy its process is; and the next waiter gets the permit."""
    here, there = pair(1, **OPTIONS)
    with pytest.raises(PermitLost) as lost:
        async with here:
            await asyncio.sleep(60)
    assert lost.value.reason == REASON
    assert loop_time() == pytest.approx(1.2, abs=0.05)
    await give_back(await there.acquire(timeout=0))


@simulated
async def test_it_ends_at_the_server_too(pair: MakePair) -> None:
    """Without a block to be cancelled it is not given back: it expires."""
    here, there = pair(1, **OPTIONS)
    permit = await here.acquire()
    waiter = await queue_up(there)
    assert (await permit.wait_lost()).reason == REASON
    assert loop_time() == pytest.approx(1.2, abs=0.05)
    await give_back(await waiter)
    assert loop_time() == pytest.approx(1.2, abs=0.1)
    assert not await permit.release()


@simulated
async def test_a_refresh_asks_for_no_more_than_is_left(pair: MakePair) -> None:
    """So the permit of a process that is killed meanwhile is free by then, too."""
    here, there = pair(1, lease=10.0, max_hold=10.2)
    permit = await here.acquire()
    await asyncio.sleep(0.4)
    await permit.refresh()
    [holder] = (await there.status()).holders
    assert holder.expires_in <= 10.2 + 0.11 - 0.4  # a margin of lease / 100
    await give_back(permit)


@simulated
async def test_max_hold_counts_from_the_grant_that_a_blocked_loop_reads_late() -> None:
    far = Distant()
    here, there = (
        FairSemaphore(each, "jobs", 1, lease=3.0, max_hold=4.0) for each in (far, far.peer())
    )
    first = await there.acquire()
    waiter = await queue_up(here)
    far.delay = 0.3
    await give_back(first)
    permit = await waiter
    await permit.wait_lost()
    assert 3.0 < loop_time() <= 4.0


@simulated
async def test_a_detached_permit_expires_by_then(pair: MakePair) -> None:
    here, there = pair(1, **OPTIONS)
    await (await here.acquire()).detach(expires_in=60)
    await give_back(await there.acquire())
    assert loop_time() == pytest.approx(1.2, abs=0.05)


@simulated
async def test_an_adopter_has_what_is_left(pair: MakePair) -> None:
    """Adopting again and again does not make it longer."""
    both = pair(1, **OPTIONS)
    permit = await both[0].acquire()
    with pytest.raises(PermitLost):
        for turn in range(100):
            permit_id = await permit.detach(expires_in=0.6)
            await asyncio.sleep(0.1)
            permit = await both[turn % 2].adopt(permit_id)
            assert permit.expires_in <= 1.2 - loop_time()
    assert loop_time() == pytest.approx(1.2, abs=0.11)
    await give_back(await both[0].acquire(timeout=0.1))
