"""Ways to get a permit, and how long they take."""

# ruff: noqa: PT031 - the block is what is tested, as users write it

import asyncio
import gc
import io
import types
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    Mutex,
    Permit,
)
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make, MakePair
from tests.harness.wait import (
    all_free,
    cancelled,
    give_back,
    in_background,
    queue_up,
    until,
    waiting,
)
from tests.worlds.simulated_time import simulated

# -- forms


async def in_a_task_group(sem: AnySemaphore) -> Permit:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sem.acquire())
    return task.result()


async def gathered(sem: AnySemaphore) -> Permit:
    [permit] = await asyncio.gather(sem.acquire())
    return permit


FORMS: dict[str, Callable[[AnySemaphore], Awaitable[Permit | None]]] = {
    "await": lambda sem: sem.acquire(),
    "task": lambda sem: asyncio.create_task(sem.acquire()),
    "task group": in_a_task_group,
    "gather": gathered,
    "wait_for": lambda sem: asyncio.wait_for(sem.acquire(), 60),
    "shield": lambda sem: asyncio.shield(sem.acquire()),
    "try": lambda sem: sem.try_acquire(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_every_form_gives_a_permit(
    make: Make, form: Callable[[AnySemaphore], Awaitable[Permit | None]]
) -> None:
    """People write it as they write other coroutines."""
    sem = make(1)
    permit = await form(sem)
    assert permit is not None
    async with permit:
        assert await sem.available() == 0
    assert await sem.available() == 1


async def test_a_permit_carries_its_facts(make: Make) -> None:
    sem = make(3, lease=10.0)
    async with sem.acquire(permits=2) as permit:
        assert isinstance(permit.id, str)
        assert permit.id
        assert permit.name == sem.name
        assert permit.permits == 2
        assert isinstance(permit.fencing_token, int)
        assert 0 <= permit.waited < 2.0
        assert 5.0 < permit.expires_in <= 10.0
        assert permit.lost is False
        permit.check()
        assert permit.id not in repr(permit)  # the id is enough to release it
    assert permit.expires_in <= 0
    assert permit.lost is False  # a release is no loss


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


async def test_an_acquire_has_what_a_coroutine_has(make: Make) -> None:
    """asyncio, debuggers and frameworks read these attributes; closing it takes nothing."""
    sem = make(1)
    acquisition: Any = sem.acquire()
    whatever: object = acquisition
    assert asyncio.iscoroutine(whatever)
    assert isinstance(acquisition.cr_code, types.CodeType)
    assert isinstance(acquisition.cr_frame, types.FrameType)
    for unset in ("cr_running", "cr_suspended", "cr_await", "cr_origin"):
        assert not getattr(acquisition, unset)
    assert "acquire" in acquisition.__qualname__
    with pytest.raises(AttributeError):
        _ = acquisition.nonsense
    acquisition.close()
    assert acquisition.cr_frame is None
    async with sem:
        waiter = await queue_up(sem)
        waiter.print_stack(file=(printed := io.StringIO()))
        assert "acquire" in printed.getvalue()
        await cancelled(waiter)


def test_semaphores_need_no_loop_to_be_made(kind: Kind) -> None:
    """They stand at module level, where no loop runs yet, and connect to nothing."""
    made = kind(Redis(port=1), "at module level", 3, lease=7)
    assert (made.name, made.limit, made.lease) == ("at module level", 3, 7)


# -- blocks


async def test_many_tasks_share_one_object(make: Make) -> None:
    """Nested blocks are a stack, and tasks that interleave leave with their own permits."""
    sem = make(15)

    async def work(steps: int) -> None:
        async with sem as outer:
            async with sem as inner:
                for _ in range(steps):
                    await asyncio.sleep(0)
                held = {holder.id for holder in (await sem.status()).holders}
                assert held >= {outer.id, inner.id}
                assert len(held) <= 15
            assert inner.expires_in <= 0 < outer.expires_in
        assert outer.expires_in <= 0

    await asyncio.gather(*(work(number % 7) for number in range(14)))
    await all_free(sem)


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


async def test_waiting_for_oneself_is_logged_after_the_lease_of_that_request(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Although one with a longer lease has waited for longer."""
    sem, longer = make(1, lease=0.5), make(1, lease=8.0)
    async with sem:
        waiters = [await queue_up(each) for each in (longer, sem)]
        await until(lambda: caplog.records, "it is logged")
        assert [getattr(record, "redsem_event", "") for record in caplog.records] == ["nested"]
        await cancelled(*waiters)


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
async def test_a_timeout_is_kept(make: Make) -> None:
    """The caller has a deadline of its own."""
    sem, loop = make(1), asyncio.get_running_loop()
    async with sem:
        start = loop.time()
        with pytest.raises(AcquireTimeout) as caught:
            await sem.acquire(timeout=0.3)
        assert loop.time() - start == pytest.approx(caught.value.waited) == pytest.approx(0.3)
        assert isinstance(caught.value, TimeoutError)
        await waiting(sem, 0)


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


@pytest.mark.parametrize(("timeout", "takes"), [(0.4, 0.4), (None, 10.0)])
@simulated
async def test_an_outage_is_waited_out_until_the_deadline_or_for_one_lease(
    make: Make, client: MemoryBackend, timeout: float | None, takes: float
) -> None:
    client.down()
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(BackendUnavailable):
        await make(1, lease=10.0).acquire(timeout=timeout)
    assert loop.time() - start == pytest.approx(takes, abs=0.01)


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
