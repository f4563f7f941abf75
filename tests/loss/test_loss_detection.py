"""How a holder learns that its permit is lost, and what keeps it from being lost."""

import asyncio
import gc
import logging
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from redsem_async import AnySemaphore, Permit, PermitLost
from redsem_async._core.clock import now
from redsem_async.observer import observe
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Make, MakePair, key_of
from tests.harness.holder import Holder, forever, nothing_is_left
from tests.harness.inside import lease_of, remote_of
from tests.harness.wait import all_free, cancelled, queue_up, soon, until
from tests.status.test_observer import Recorder
from tests.worlds.simulated_time import TimedLoop, simulated


def stand_still(seconds: float) -> None:
    """Block the loop."""
    cast("TimedLoop", asyncio.get_running_loop()).now += seconds


def blocked_for(reason: str) -> float:
    """The seconds that *reason* names."""
    named = re.fullmatch(r"the event loop was blocked for ([\d.]+) s", reason)
    assert named is not None, reason
    return float(named[1])


# -- a permit outside of a block


async def test_wait_lost_serves_many_and_can_be_cancelled(pair: MakePair) -> None:
    """It does not wake for a release."""
    here, there = pair(2, lease=60.0)
    permit = await here.acquire()
    watchers = [asyncio.create_task(permit.wait_lost()) for _ in range(3)]
    async with here as released:
        idle = asyncio.create_task(released.wait_lost())
        await asyncio.sleep(0)
    await cancelled(watchers[0])
    permit.check()
    assert await there.release(permit.id)
    for watching in (*watchers[1:], permit.wait_lost()):
        assert (await soon(watching)).permit_id == permit.id
    assert not idle.done()
    assert not released.lost
    await cancelled(idle)


# -- the server says so


@pytest.mark.fault(30)
@pytest.mark.parametrize("state", ["expired", "removed"])
async def test_refresh_finds_it_out_now(make: Make, client: MemoryBackend, state: str) -> None:
    """Before a step that matters. One that has expired may be held by another process by now."""
    sem, redis = make(1, lease=60.0), client._store.redis
    permit = await sem.acquire()
    await permit.refresh()
    holders = key_of(sem, "holders")
    if state == "expired":
        redis.command("ZADD", holders, 1, permit.id)
    else:
        assert redis.command("ZREM", holders, permit.id) == 1
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert permit.lost
    await all_free(sem)


@simulated
async def test_a_held_permit_outlives_its_lease(pair: MakePair) -> None:
    """Also in the clean-up of a cancelled body, which still works on what the permit guards."""
    sem, rival = pair(1, lease=2.0)
    clean = asyncio.Event()

    async def work() -> None:
        async with sem as permit:
            try:
                await forever()
            finally:
                await clean.wait()
                permit.check()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    waiter = await queue_up(rival)
    for _ in range(2):
        await asyncio.sleep(2.2)
        assert not waiter.done()
        assert [each.get_name() for each in asyncio.all_tasks()].count("redsem-refresh") == 1
        task.cancel()
    clean.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await (await waiter).release()


# -- the lease runs out while the loop stands still


@pytest.mark.parametrize("ask", ["lost", "check", None])
@simulated
async def test_loss_that_the_body_finds_itself(make: Make, ask: str | None) -> None:
    """It never awaits, so it cannot be cancelled: no cancellation may come later instead."""
    sem = make(1, lease=1.0)
    with observe(recorder := Recorder(sem.name)), pytest.raises(PermitLost) as lost:
        async with sem as permit:
            stand_still(1.5)
            if ask == "lost":
                assert permit.lost is True
            elif ask == "check":
                with pytest.raises(PermitLost):
                    permit.check()
    assert blocked_for(lost.value.reason) == pytest.approx(1.5, abs=0.1)
    assert recorder.last("lost").reason == lost.value.reason
    await nothing_is_left()
    await all_free(sem)


@pytest.mark.parametrize("still", [False, True], ids=["the loop runs", "the loop stands still"])
async def test_check_from_a_thread(pair: MakePair, still: bool) -> None:
    """A thread that is the first to find the loss does not reach into the loop from there."""
    holder = Holder(*pair(1, lease=1.0 if still else 60.0))
    found = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_debug(True)  # in which asyncio refuses calls from the wrong thread

    def compute(permit: Permit) -> None:
        loop.call_soon_threadsafe(holder.entered.set_result, permit)
        with pytest.raises(PermitLost) as lost:
            while True:
                permit.check()
                time.sleep(0.001)
        assert ("the event loop was blocked" in lost.value.reason) == still
        found.set()

    async def work() -> None:
        async with holder.sem as permit:
            await asyncio.to_thread(compute, permit)

    async def lost(permit: Permit) -> None:
        if still:
            assert found.wait(10)
        else:
            await holder.take(permit)

    with pytest.raises(PermitLost):
        await holder.lose_during(work, lost)
    loop.set_debug(False)
    assert await asyncio.to_thread(found.wait, 10)


@simulated
async def test_all_permits_that_a_blocked_loop_loses_say_so(make: Make) -> None:
    """Their timers run one after the other when it goes on: only the first finds it blocked."""
    sem = make(3, lease=1.5)
    permits = [await sem.acquire(cancel_on_loss=False)]
    for _ in range(2):
        await asyncio.sleep(0.04)  # so that their refreshes are due at another time
        permits.append(await sem.acquire(cancel_on_loss=False))
    stand_still(2.0)
    for permit in permits:
        assert blocked_for((await permit.wait_lost()).reason) == pytest.approx(2.0, abs=0.1)
        await permit.release()


@simulated
async def test_entering_what_is_lost_says_so_when_it_cannot_be_given_back(
    make: Make, client: MemoryBackend
) -> None:
    permit = await make(1, lease=6.0).acquire()
    client.down()
    lost = await permit.wait_lost()
    assert lost.reason == "it could not be refreshed in time", "the loop was not blocked"
    with pytest.raises(PermitLost):
        async with permit:
            pytest.fail("the body runs")


async def test_what_is_lost_when_it_is_entered_is_given_back(make: Make) -> None:
    sem = make(1)
    permit = await sem.acquire()
    remote_of(sem).lose(lease_of(permit), "it was not trusted any more")
    with pytest.raises(PermitLost):
        async with permit:
            pytest.fail("the body runs")
    assert await sem.available() == 1


# -- dropped

Drop = Callable[[AnySemaphore], Awaitable[None]]


async def _at_once(sem: AnySemaphore) -> None:
    await sem.acquire()
    gc.collect()


async def _in_a_thread(sem: AnySemaphore) -> None:
    box = [await sem.acquire()]

    def drop() -> None:
        box.clear()
        gc.collect()

    await asyncio.to_thread(drop)


async def _with_the_task_that_waited(sem: AnySemaphore) -> None:
    task = asyncio.create_task(sem.acquire())
    await until(task.done)
    del task
    gc.collect()


@pytest.mark.parametrize("drop", [_at_once, _in_a_thread, _with_the_task_that_waited])
async def test_a_dropped_permit_warns_and_is_released(make: Make, drop: Drop) -> None:
    """Refreshes do not keep it: it would stay held for ever."""
    sem = make(1, lease=60.0)
    with pytest.warns(ResourceWarning, match=sem.name):
        await drop(sem)
    await all_free(sem)


@pytest.mark.filterwarnings("error::ResourceWarning")
async def test_a_dropped_permit_is_released_where_the_warning_is_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning is raised in `__del__`, and ends it. Of what is lost or released, none is."""
    raised: list[object] = []

    def note(unraisable: "sys.UnraisableHookArgs") -> None:
        raised.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", note)
    sem = make(3)
    released, lost = await sem.acquire(), await sem.acquire()
    await released.release()
    await sem.release(lost.id)
    del released, lost
    await _at_once(sem)
    await all_free(sem)
    assert raised == [ResourceWarning]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("debug", [False, True])
async def test_dropped_permits_are_logged_once_a_minute(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    """`await sem.acquire()` limits nothing, and Python hides resource warnings."""
    asyncio.get_running_loop().set_debug(debug)
    sem, other = make(3), make(3, name="another")
    for dropping in (sem, other, sem):
        await dropping.acquire()
        await all_free(dropping)
    monkeypatch.setattr("redsem_async._api.remarks.clock", lambda: now() + 61)
    await sem.acquire()
    await all_free(sem)
    logged: list[Any] = [
        each for each in caplog.records if getattr(each, "event", "") == "dropped"
    ]
    assert [record.semaphore for record in logged] == [sem.name, other.name, sem.name]
    assert all(record.levelno == logging.WARNING for record in logged)
    assert ("test_loss_detection.py:" in logged[0].getMessage()) is debug
