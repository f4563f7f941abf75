"""For how long a permit is trusted at the moment its caller gets it."""

import asyncio
import runpy
import sys
import threading
import time
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, Permit, PermitLost
from redsem_async._core import clock
from redsem_async.testing import MemoryBackend
from tests.harness.clients import MakePair
from tests.harness.memory import Distant
from tests.harness.wait import give_back, queue_up, soon
from tests.worlds.simulated_time import simulated

SLACK = 0.05  # seconds, for the margin of the clocks


async def grant(way: str, held: Permit, there: AnySemaphore) -> None:
    """Let the waiter have a permit, where another process holds one."""
    if way == "expiry":
        await held.detach(0.2)
    elif way == "a raised limit":
        await there.set_limit(2)
    else:
        await held.release()


@pytest.mark.parametrize("lease", [3.0, 0.6])
@pytest.mark.parametrize(
    "way", ["a release", "its own release", "expiry", "a raised limit", "a key", "a slot"]
)
@simulated
async def test_a_caller_gets_a_lease_less_a_refresh_interval(
    pair: MakePair, way: str, lease: float
) -> None:
    """A stall or an outage of that length must not lose what was just granted."""
    options: dict[str, Any] = {"lease": lease, "refresh_interval": 0.05}
    asks: dict[str, Any] = {"key": "a"} if way == "a key" else {}
    if way == "a key":
        options |= {"limit": 5, "key_limit": 1}
    elif way == "a slot":
        options |= {"limit": None, "slots": ["one"]}
    here, there = pair(**options)
    held = await (here if way == "its own release" else there).acquire(**asks)
    waiter = await queue_up(here, **asks)
    await asyncio.sleep(0.15)  # less than between two heartbeats
    await grant(way, held, there)
    permit = await waiter
    assert permit.expires_in >= lease - 0.05 - SLACK
    await give_back(permit, *([held] if way == "a raised limit" else []))


# -- under faults


@pytest.mark.fault(6)
async def test_a_body_in_a_thread(pair: MakePair) -> None:
    """The block is left as lost; the thread itself cannot be stopped, and runs on."""
    here, there = pair(1)
    started, stop, ran_on = (threading.Event() for _ in range(3))

    def work() -> None:
        started.set()
        stop.wait(10)
        ran_on.set()

    async def block() -> None:
        async with here:
            await asyncio.to_thread(work)

    holding = asyncio.create_task(block())
    await asyncio.to_thread(started.wait, 10)
    await there.delete()
    with pytest.raises(PermitLost):
        await soon(holding)
    assert not ran_on.is_set()
    stop.set()
    assert await asyncio.to_thread(ran_on.wait, 10)


@pytest.mark.fault(7)
async def test_a_suspended_host(client: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile; the leases go on.

    No test can suspend its host: the clock is made anew here, of one as it is after a night.
    """
    clock_boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if clock_boottime is None:
        pytest.skip("this system has no clock that goes on while it is suspended")
    permit = await FairSemaphore(client, "jobs", 1, lease=10.0).acquire()
    assert not permit.lost
    real = time.clock_gettime

    def after_a_night(clock: int) -> float:
        return real(clock) + (10.0 if clock == clock_boottime else 0.0)

    of_today = clock.now
    with monkeypatch.context() as patch:
        patch.setattr(time, "clock_gettime", after_a_night)
        later = runpy.run_path(clock.__file__)["now"]
    for name, module in list(sys.modules.items()):
        if name.startswith("redsem_async"):
            for key, value in list(vars(module).items()):
                if value is of_today:
                    monkeypatch.setattr(module, key, later)
    assert permit.expires_in <= 0
    with pytest.raises(PermitLost):
        permit.check()
    assert permit.lost
    monkeypatch.undo()
    assert not await permit.release()


@pytest.mark.parametrize("how", ["release", "adopt", "delete"])
@simulated
async def test_a_holder_that_is_cut_off_learns_late_of_what_was_taken_from_it(how: str) -> None:
    """No message reaches it, and the permit has another holder at once: for a lease at most."""
    far = Distant()
    here, there = (FairSemaphore(each, "jobs", 1, lease=4.0) for each in (far, far.peer()))
    permit = await here.acquire()
    far.cut_off()
    if how == "adopt":
        successor = await there.adopt(permit.id)
    else:
        await (there.delete() if how == "delete" else there.release(permit.id))
        successor = await there.acquire()
    permit.check()  # two hold what is for one
    async with asyncio.timeout(4.0):
        await permit.wait_lost()
    assert not successor.lost
    await give_back(successor)


# -- max_hold


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
async def test_all_refreshes_that_a_lost_connection_makes_one_are_answered() -> None:
    far = Distant()
    permit = await FairSemaphore(far, "jobs", 1, lease=60.0).acquire()
    far.delay, refreshes = 0.1, list[asyncio.Task[None]]()
    for _ in range(2):
        refreshes.append(asyncio.create_task(permit.refresh()))
        await asyncio.sleep(0.01)
    far.drop()
    await asyncio.wait_for(asyncio.gather(*refreshes), 5.0)
    await permit.release()


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
