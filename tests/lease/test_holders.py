"""Holders under faults: bodies that do not behave, blocks left elsewhere, limits that move."""

import asyncio
import runpy
import sys
import threading
import time

import pytest

from redsem_async import FairSemaphore, PermitLost
from redsem_async._core import clock
from redsem_async.testing import MemoryBackend
from tests.harness.clients import MakePair
from tests.harness.memory import Distant
from tests.harness.wait import give_back, soon
from tests.worlds.simulated_time import simulated


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
