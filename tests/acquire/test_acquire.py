"""Ways to get a permit, and how long they take."""

# ruff: noqa: PT031 - the block is what is tested, as users write it

import asyncio
import gc
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    BackendUnavailable,
    FairSemaphore,
    Mutex,
    Permit,
)
from tests.harness.clients import Client, Make, MakePair
from tests.harness.memory import Distant
from tests.harness.wait import (
    all_free,
    cancelled,
    give_back,
    in_background,
    queue_up,
    until,
)
from tests.worlds.simulated_time import simulated

# -- forms


@pytest.mark.parametrize("second_use", ["await", "enter"])
@pytest.mark.parametrize("first_use", ["await", "enter"])
async def test_an_acquire_is_good_for_one_use(make: Make, first_use: str, second_use: str) -> None:
    """A second use must not quietly take a second permit, or give the first one twice."""
    sem = make(2)
    acquisition = sem.acquire()
    uses = {"await": lambda: acquisition, "enter": acquisition.__aenter__}
    await (await uses[first_use]()).release()
    with pytest.raises(RuntimeError, match="already awaited: call it again"):
        await uses[second_use]()
    await all_free(sem)


async def test_an_acquire_that_is_never_awaited_warns_by_its_name(make: Make) -> None:
    with pytest.warns(RuntimeWarning, match=r"acquire.* was never awaited"):
        _ = make(1).acquire()
        del _
        gc.collect()


# -- blocks


@pytest.mark.fault(11)
@pytest.mark.parametrize("ended", [False, True], ids=["both run", "one has ended"])
async def test_a_block_left_by_a_third_task_gives_no_permit_away(
    pair: MakePair, ended: bool
) -> None:
    """It is not known which of two blocks an exit stack leaves, and both may still be used."""
    here, there = pair(2)
    may_leave = asyncio.Event()
    inside: list[Permit] = []

    async def stay() -> None:
        async with AsyncExitStack() as own:
            inside.append(await own.enter_async_context(here))
            await may_leave.wait()
            inside[0].check()

    stays = asyncio.create_task(stay())
    stack = AsyncExitStack()

    async def enter() -> None:
        inside.append(await stack.enter_async_context(here))
        if not ended:
            await may_leave.wait()

    other = asyncio.create_task(enter())
    await until(lambda: len(inside) == 2 and other.done() is ended)
    with pytest.raises(RuntimeError, match=r"async with sem\.acquire\(\)"):
        await asyncio.create_task(stack.aclose())
    assert await there.try_acquire() is None  # nothing was released
    may_leave.set()
    await asyncio.gather(stays, other)
    assert not inside[1].lost
    await here.__aexit__(None, None, None)  # the only block that is left
    await all_free(here)


@simulated
async def test_a_nested_acquire_says_that_its_task_holds_a_permit(make: Make) -> None:
    """Such a task waits for itself, and only its own process can tell it so."""
    sem = make(1)
    async with sem.acquire():
        for attempt in (sem.acquire(timeout=0.05), asyncio.create_task(sem.acquire(timeout=0.05))):
            with pytest.raises(AcquireTimeout) as caught:
                await attempt
            nested = not isinstance(attempt, asyncio.Task)
            assert caught.value.nested is nested
            assert ("this task already holds one" in str(caught.value)) is nested
    async with sem.acquire() as own:
        await own.release()
        other = await asyncio.create_task(sem.acquire())
        with pytest.raises(AcquireTimeout) as caught:
            await sem.acquire(timeout=0.05)
        assert not caught.value.nested  # it was given back in the block
        await other.release()


@pytest.mark.parametrize("child", [False, True], ids=["the task itself", "a child of it"])
async def test_waiting_for_oneself_without_a_timeout_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture, child: bool
) -> None:
    """Such a wait never ends, so nothing else would tell its programmer."""
    sem = make(2, lease=0.3)

    async def parent() -> None:
        async with sem:
            await (asyncio.create_task(sem.acquire()) if child else sem.acquire())

    parents = [in_background(parent()) for _ in range(2)]
    await until(lambda: caplog.records, "it is logged")
    [record] = caplog.records
    assert (record.levelname, getattr(record, "redsem_event", "")) == ("WARNING", "nested")
    assert ("the task that created it" in record.getMessage()) is child
    await cancelled(*parents)
    await all_free(sem)


async def test_tasks_that_wait_for_each_other_are_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Each holds what the other waits for, and nothing else would tell their programmer."""
    one, two = (FairSemaphore(client, name, 1, lease=0.2) for name in ("one", "two"))

    async def both(
        first: FairSemaphore, second: FairSemaphore, both_hold: asyncio.Barrier
    ) -> None:
        async with first:
            await both_hold.wait()
            async with second:
                pass

    barrier = asyncio.Barrier(2)
    tasks = [in_background(both(*order, barrier)) for order in ((one, two), (two, one))]
    await until(lambda: caplog.records, "it is logged")
    [record] = caplog.records
    assert (record.levelname, getattr(record, "redsem_event", "")) == ("WARNING", "nested")
    assert vars(record)["redsem_waited"] >= 3 * one.lease, "until then it may be a long job"
    assert all(name in record.getMessage() for name in ("'one'", "'two'", "opposite order"))
    await cancelled(*tasks)


async def test_tasks_that_acquire_in_one_order_are_not_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the other one works. It does not wait for anybody."""
    one, two = (FairSemaphore(client, name, 1, lease=0.2) for name in ("one", "two"))

    async def in_order() -> None:
        async with one, two:
            pass

    await in_order()
    async with two.acquire():
        waiter = asyncio.create_task(in_order(), context=Context())
        await asyncio.sleep(5 * two.lease)
    await waiter
    assert not caplog.records
    await all_free(two)


@simulated
async def test_a_task_that_holds_another_key_does_not_wait_for_itself(make: Make) -> None:
    """Its own release would not help."""
    sem: Any = make(5, key_limit=1)
    other = await sem.acquire(key="b")
    async with sem.acquire(key="a"):
        for key in ("a", "b"):
            with pytest.raises(AcquireTimeout) as caught:
                await sem.acquire(key=key, timeout=0.05)
            assert caught.value.blocked_by == "key"
            assert caught.value.nested is (key == "a")
    await other.release()


async def test_a_mutex_refuses_a_limit_above_one(client: Client, name: str) -> None:
    """Two holders at once are what it is there to prevent."""
    mutex = Mutex(client, name, lease=5.0, label="here")
    assert isinstance(mutex, FairSemaphore)
    assert (mutex.limit, mutex.lease) == (1, 5.0)
    with pytest.raises(ValueError, match="the limit of a Mutex is at most 1, not 2"):
        await mutex.set_limit(2)
    assert not await mutex.exists(), "nothing was sent"
    for limit in (0, 1, None):
        await mutex.set_limit(limit)
        assert (await mutex.status()).set_limit == limit


# -- not waiting


@simulated
async def test_what_does_not_wait_leaves_no_trace(make: Make) -> None:
    """Whatever `timeout` and `max_waiters` of the semaphore say."""
    sem = make(1, timeout=30.0, max_waiters=0)
    async with sem.acquire(timeout=0):
        assert await sem.try_acquire() is None
        with pytest.raises(AcquireTimeout) as caught:
            await sem.acquire(timeout=0)
        assert (caught.value.name, caught.value.waited) == (sem.name, 0)
        text = f"no permit of {sem.name!r} is free; this task already holds one"
        assert str(caught.value) == text, "it does not wait, not even for itself"
        assert caught.value.retry_after >= 0
        assert (await sem.status()).waiting == 0
    await give_back(await sem.acquire(timeout=0))


async def test_try_acquire_says_unreachable_rather_than_none(nowhere: Redis) -> None:
    """A caller that takes None for full would shed load, or go ahead, for the wrong reason."""
    sem = FairSemaphore(nowhere, "unreachable", 1)
    port = nowhere.connection_pool.connection_kwargs["port"]
    for attempt in (sem.try_acquire(), sem.acquire(timeout=0)):
        with pytest.raises(BackendUnavailable, match=str(port)) as caught:
            await attempt
        assert isinstance(caught.value.__cause__, Exception)


# -- timeouts


@simulated
async def test_no_timeout_waits_for_as_long_as_it_takes(make: Make) -> None:
    """None wins over the constructor's timeout, which is that of a bare block."""
    sem = make(1, timeout=0.05)
    first = await sem.acquire()
    patient = [await queue_up(sem, timeout=timeout) for timeout in (None, float("inf"))]
    with pytest.raises(AcquireTimeout):
        async with sem:
            pytest.fail("entered")
    await asyncio.sleep(60)
    await give_back(first, *patient)


@simulated
async def test_who_does_not_wait_gets_what_has_expired_however_much_that_is() -> None:
    """A call removes a part of it: one that is refused meanwhile asks again."""
    far = Distant()
    many, few = FairSemaphore(far, "jobs", 700, lease=1.0), FairSemaphore(far.peer(), "jobs", 100)
    held = await asyncio.gather(*(many.acquire() for _ in range(700)))
    far.cut_off()
    await asyncio.sleep(1.5)
    await give_back(await few.acquire(timeout=0))
    assert all(permit.lost for permit in held)


# -- weights


async def test_weights_are_counted(make: Make) -> None:
    """One permit may stand for several, and is given back as one."""
    sem = make(5)
    async with sem.acquire(permits=3):
        assert await sem.available() == 2
        assert await sem.try_acquire(permits=3) is None
        async with sem.acquire(permits=2):
            assert await sem.available() == 0
            assert await sem.try_acquire() is None
    assert await sem.available() == 5
