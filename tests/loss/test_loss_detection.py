"""How a holder learns that its permit is lost, and what keeps it from being lost."""

import asyncio
import gc
import logging
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit, PermitLost
from redsem_async._core.clock import now
from redsem_async.observer import observe
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Client, Kind, Make, key_of
from tests.harness.holder import Holder, forever, nothing_is_left
from tests.harness.inside import remote_of
from tests.harness.servers import stopped
from tests.harness.wait import NOISE, all_free, cancelled, queue_up, soon, until
from tests.status.test_observer import Recorder

pytestmark = pytest.mark.one_mode


def blocked_for(reason: str) -> float:
    """The seconds that *reason* names."""
    named = re.fullmatch(r"the event loop was blocked for ([\d.]+) s", reason)
    assert named is not None, reason
    return float(named[1])


# -- a permit outside of a block


async def test_the_loss_of_a_permit_outside_of_a_block_cancels_nothing(
    make: Make, other: Client
) -> None:
    """`await sem.acquire()` arms nothing: there is no block to leave."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    assert await make(client=other).release(permit.id)
    lost = await soon(permit.wait_lost())
    assert isinstance(lost, PermitLost)
    assert lost.permit_id == permit.id
    assert permit.lost
    assert permit.expires_in <= 0
    with pytest.raises(PermitLost):
        permit.check()
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert await permit.release() is False
    await nothing_is_left()
    await all_free(sem)


async def test_wait_lost_serves_many_and_can_be_cancelled(make: Make, other: Client) -> None:
    permit = await make(1, lease=60.0).acquire()
    watchers = [asyncio.create_task(permit.wait_lost()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancelled(watchers[0])
    permit.check()
    assert await make(client=other).release(permit.id)
    for watching in (*watchers[1:], permit.wait_lost()):
        assert (await soon(watching)).permit_id == permit.id


async def test_wait_lost_does_not_wake_for_a_release(make: Make) -> None:
    async with make(1) as permit:
        watcher = asyncio.create_task(permit.wait_lost())
        await asyncio.sleep(0)
    assert permit.lost is False
    assert not watcher.done()
    await cancelled(watcher)


# -- the server says so


@pytest.mark.fault(30)
@pytest.mark.parametrize("state", ["expired", "removed"])
async def test_refresh_finds_it_out_now(make_on_redis: Make, redis: Redis, state: str) -> None:
    """Before a step that matters. One that has expired may be held by another process by now."""
    sem = make_on_redis(1, lease=60.0)
    permit = await sem.acquire()
    await permit.refresh()
    holders = key_of(sem, "holders")
    if state == "expired":
        assert await redis.zadd(holders, {permit.id: 1.0}, xx=True, ch=True) == 1
    else:
        assert await redis.zrem(holders, permit.id) == 1
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert permit.lost
    await all_free(sem)


async def test_refresh_renews(make: Make) -> None:
    async with make(1, lease=2.0, refresh_interval=1.9) as permit:
        await until(lambda: permit.expires_in < 1.9)
        await permit.refresh()
        assert permit.expires_in > 1.9


async def test_a_held_permit_outlives_its_lease(make: Make, other: Client) -> None:
    sem, rival = make(1, lease=2.0), make(1, client=other)
    async with sem as permit:
        waiter = await queue_up(rival)
        await asyncio.sleep(2.2)
        permit.check()
        assert not waiter.done()
    await (await soon(waiter)).release()


async def test_refreshing_goes_on_during_the_clean_up(make: Make, other: Client) -> None:
    """The clean-up of a cancelled body still works on what the permit guards."""
    sem, rival = make(1, lease=2.0), make(1, client=other, lease=2.0)
    entered, cleaning, clean = (asyncio.Event() for _ in range(3))

    async def work() -> None:
        async with sem as permit:
            try:
                entered.set()
                await forever()
            finally:
                cleaning.set()
                await clean.wait()
                permit.check()

    task = asyncio.create_task(work())
    await soon(entered.wait())
    task.cancel()
    await soon(cleaning.wait())
    end = time.monotonic() + 2.2  # more than a lease
    while time.monotonic() < end:
        assert await rival.try_acquire() is None
        await asyncio.sleep(0.05)
    clean.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    await all_free(sem)


# -- the lease runs out while the loop stands still


@pytest.mark.parametrize("ask", ["lost", "check", None])
async def test_loss_that_the_body_finds_itself(
    make: Make, ask: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It never awaits, so it cannot be cancelled: no cancellation may come later instead."""
    sem = make(1, lease=0.1)
    caplog.set_level(logging.INFO, "redsem_async")
    with observe(recorder := Recorder(sem.name)), pytest.raises(PermitLost) as lost:
        async with sem as permit:
            time.sleep(0.15)  # noqa: ASYNC251 the loop stands still
            if ask == "lost":
                assert permit.lost is True
            elif ask == "check":
                with pytest.raises(PermitLost):
                    permit.check()
    assert 0.15 <= blocked_for(lost.value.reason) < 0.2 + NOISE
    told = [record for record in caplog.records if getattr(record, "event", "") == "lost"]
    assert [getattr(record, "reason", "") for record in told] == [lost.value.reason]
    assert recorder.last("lost").reason == lost.value.reason
    await nothing_is_left()
    await all_free(sem)


@pytest.mark.parametrize("still", [False, True], ids=["the loop runs", "the loop stands still"])
async def test_check_from_a_thread(make: Make, other: Client, still: bool) -> None:
    """A thread that is the first to find the loss does not reach into the loop from there."""
    holder = Holder(make(1, lease=0.2 if still else 60.0), elsewhere=make(1, client=other))
    found = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_debug(True)  # in which asyncio refuses calls from the wrong thread

    def compute(permit: Permit) -> None:
        loop.call_soon_threadsafe(holder.entered.set_result, permit)
        deadline = time.monotonic() + 5
        with pytest.raises(PermitLost) as lost:
            while time.monotonic() < deadline:
                permit.check()
                time.sleep(0.001)
        assert ("the event loop was blocked" in lost.value.reason) == still
        found.set()

    async def work() -> None:
        async with holder.sem as permit:
            await asyncio.to_thread(compute, permit)

    async def lost(permit: Permit) -> None:
        if still:
            assert found.wait(2)
        else:
            await holder.take(permit)

    with pytest.raises(PermitLost):
        await holder.lose_during(work, lost)
    loop.set_debug(False)
    assert await asyncio.to_thread(found.wait, 2)


async def test_all_permits_that_a_blocked_loop_loses_say_so(make: Make) -> None:
    """Their timers run one after the other when it goes on: only the first finds it blocked."""
    sem = make(3, lease=1.5)
    permits = [await sem.acquire(cancel_on_loss=False)]
    for _ in range(2):
        await asyncio.sleep(0.04)  # so that their refreshes are due at another time
        permits.append(await sem.acquire(cancel_on_loss=False))
    time.sleep(2.0)  # noqa: ASYNC251 on purpose
    for permit in permits:
        assert 2.0 <= blocked_for((await soon(permit.wait_lost())).reason) < 2.1 + NOISE
        await permit.release()


async def test_a_reply_that_lay_in_the_socket_of_a_blocked_loop(make_on_redis: Make) -> None:
    """A refresh was on its way when the loop stood still: its reply is read before all else."""
    sem = make_on_redis(1, lease=0.3)
    async with sem.acquire(cancel_on_loss=False) as permit:
        refreshing = asyncio.create_task(permit.refresh())
        writer: Any = remote_of(sem).writer
        while not writer._in_flight:  # noqa: ASYNC110 the very turn of the loop
            await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 on purpose
        with pytest.raises(PermitLost) as lost:
            await refreshing
    assert blocked_for(lost.value.reason) >= 0.6


async def test_a_grant_that_was_lost_while_the_loop_stood_still_is_not_handed_out(
    make_on_redis: Make,
) -> None:
    """The answer lay in the socket for longer than the lease: it is asked again."""
    sem = make_on_redis(1, lease=0.15)
    first = await sem.acquire()
    await first.release()
    acquiring = asyncio.create_task(sem.acquire(timeout=5.0))
    while not remote_of(sem).acquires_in_flight:  # noqa: ASYNC110 the very turn of the loop
        await asyncio.sleep(0)
    time.sleep(0.25)  # noqa: ASYNC251 on purpose
    permit = await soon(acquiring)
    assert not permit.lost
    numbers = [int(p.id.partition(".")[2]) for p in (first, permit)]
    assert numbers[1] - numbers[0] > 1, "the first grant was not lost: nothing is shown"
    await permit.release()


# -- the server does not answer


async def test_entering_what_is_lost_says_so_when_it_cannot_be_given_back(
    kind: Kind, server: EmbeddedRedis, client_a: Redis
) -> None:
    permit = await kind(client_a, "stalled", 1, lease=0.6).acquire()
    with stopped(server):
        lost = await soon(permit.wait_lost())
        assert lost.reason == "it could not be refreshed in time", "the loop was not blocked"
        with pytest.raises(PermitLost):
            async with permit:
                pytest.fail("the body runs")


# -- dropped

Drop = Callable[[AnySemaphore], Awaitable[None]]


async def _at_once(sem: AnySemaphore) -> None:
    await sem.acquire()
    gc.collect()


async def _after_refreshes(sem: AnySemaphore) -> None:
    permit = await sem.acquire()
    await asyncio.sleep(0.75)
    permit.check()
    del permit
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


@pytest.mark.parametrize(
    "drop", [_at_once, _after_refreshes, _in_a_thread, _with_the_task_that_waited]
)
async def test_a_dropped_permit_warns_and_is_released(make: Make, drop: Drop) -> None:
    """Refreshes do not keep it: it would stay held for ever."""
    sem = make(1, lease=1.0 if drop is _after_refreshes else 60.0)
    with pytest.warns(ResourceWarning, match=sem.name):
        await drop(sem)
    await all_free(sem)


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("drop", [_at_once, _after_refreshes, _in_a_thread])
async def test_a_dropped_permit_is_released_where_the_warning_is_an_error(
    make: Make, drop: Drop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning is raised in `__del__`, and ends it."""
    raised: list[type[BaseException]] = []

    def note(unraisable: "sys.UnraisableHookArgs") -> None:
        raised.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", note)
    sem = make(1, lease=1.0 if drop is _after_refreshes else 60.0)
    await drop(sem)
    await all_free(sem)
    assert raised == [ResourceWarning]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("debug", [False, True])
async def test_dropped_permits_are_logged_once_a_minute(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    """`await sem.acquire()` limits nothing, and Python hides resource warnings."""
    asyncio.get_running_loop().set_debug(debug)
    sem = make(3)
    other = make(3, name=f"{sem.name} too")

    def logged() -> list[logging.LogRecord]:
        return [each for each in caplog.records if getattr(each, "event", "") == "dropped"]

    for dropping in (sem, other, sem):
        await dropping.acquire()
        await all_free(dropping)
    assert [getattr(record, "semaphore", "") for record in logged()] == [sem.name, other.name]
    assert all(record.levelno == logging.WARNING for record in logged())
    assert ("test_loss_detection.py:" in logged()[0].getMessage()) is debug
    monkeypatch.setattr("redsem_async._api.remarks.clock", lambda: now() + 61)
    await sem.acquire()
    await all_free(sem)
    assert len(logged()) == 3


async def test_a_permit_that_is_lost_or_released_is_dropped_in_silence(
    make: Make, other: Client
) -> None:
    """A warning would fail this test."""
    sem = make(2, lease=60.0)
    released, taken = await sem.acquire(), await sem.acquire()
    await released.release()
    assert await make(client=other).release(taken.id)
    await soon(taken.wait_lost())
    del released, taken
    gc.collect()
