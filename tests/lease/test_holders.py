"""Holders under faults: bodies that do not behave, blocks left elsewhere, limits that move."""

import asyncio
import runpy
import sys
import threading
import time

import pytest
from redis.asyncio import Redis

from redsem_async import PermitLost
from redsem_async._core import clock
from tests.harness.clients import Kind, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, all_free, takes_at_most


@pytest.mark.fault(6)
async def test_a_body_in_a_thread(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """The block is left as lost; the thread itself cannot be stopped, and runs on."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.2)
    stop, ran_on = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait(10)
        ran_on.set()

    with takes_at_most(0.2 + EPSILON), pytest.raises(PermitLost):
        async with semaphore:
            await admin.delete(key_of(semaphore, "holders"))
            await asyncio.to_thread(work)
    assert not ran_on.is_set()
    stop.set()
    assert await asyncio.to_thread(ran_on.wait, 5)


@pytest.mark.fault(7)
async def test_a_suspended_host(
    kind: Kind, client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile; the leases go on.

    No test can suspend its host: the clock is made anew here, of one as it is after a night.
    """
    clock_boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if clock_boottime is None:
        pytest.skip("this system has no clock that goes on while it is suspended")
    permit = await kind(client_a, "jobs", 1, lease=10.0).acquire()
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


@pytest.mark.fault(42)
async def test_different_leases_and_limits_leave_one_another_alone(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Each request goes by its own client's limit, and no key dies before the longest lease."""
    narrow, wide = kind(client_a, "jobs", 2, lease=2.0), kind(client_b, "jobs", 3, lease=60.0)
    permit = await wide.acquire()
    for _ in range(2):
        async with narrow.acquire(timeout=1):
            assert await narrow.try_acquire() is None
            assert await (await wide.acquire(timeout=0)).release()
            await asyncio.sleep(2.1)  # past its lease: refreshed
    assert not permit.lost
    assert (await narrow.status()).holders[0].id == permit.id
    for key in ("holders", "facts", "meta"):
        assert await admin.pttl(key_of(wide, key)) > 55_000, key
    assert await permit.release()
    await all_free(wide)


@pytest.mark.parametrize("how", ["release", "adopt", "delete"])
async def test_a_holder_that_is_cut_off_learns_late_of_what_was_taken_from_it(
    kind: Kind, proxy: Proxy, proxied: Redis, client_b: Redis, how: str
) -> None:
    """No message reaches it, and the permit has another holder at once: for a lease at most."""
    lease = 4.0
    here, there = kind(proxied, "jobs", 1, lease=lease), kind(client_b, "jobs", 1, lease=lease)
    permit = await here.acquire()
    proxy.lead_to(1)  # where nothing listens
    proxy.drop()
    if how == "adopt":
        successor = await there.adopt(permit.id)
    else:
        await (there.delete() if how == "delete" else there.release(permit.id))
        successor = await there.acquire(timeout=5)
    permit.check()  # two hold what is for one
    with takes_at_most(lease):
        await asyncio.wait_for(permit.wait_lost(), 30)
    assert not successor.lost
    assert await successor.release()
