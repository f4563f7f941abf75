"""Ways to get a permit, and how long they take."""

# ruff: noqa: PT031 - the block is what is tested, as users write it

import asyncio
import gc
import inspect
import io
import types
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import fields
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
from tests.harness.clients import Client, Kind, Make, MakePair, key_of
from tests.harness.inside import lease_of
from tests.harness.wait import (
    EPSILON,
    NOISE,
    all_free,
    cancelled,
    give_back,
    in_background,
    queue_up,
    soon,
    until,
    waiting,
)

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
    "wait_for": lambda sem: asyncio.wait_for(sem.acquire(), 2.0),
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


async def test_showing_a_permit_changes_nothing(make: Make) -> None:
    """A debugger shows what it likes, and the program behaves the same."""

    def facts(permit: Permit) -> list[object]:
        of_permit: list[object] = [getattr(permit, each.name) for each in fields(permit)]
        lease = lease_of(permit)
        return of_permit + [getattr(lease, each.name) for each in fields(lease)]

    async with make(1) as permit:
        before = facts(permit)
        assert str(permit.name) in repr(permit)
        assert facts(permit) == before


@pytest.mark.parametrize("second_use", ["await", "enter"])
@pytest.mark.parametrize("first_use", ["await", "enter"])
async def test_an_acquire_is_good_for_one_use(make: Make, first_use: str, second_use: str) -> None:
    """A second use must not quietly take a second permit, or give the first one twice."""
    sem = make(2)
    acquisition = sem.acquire()

    async def use(how: str) -> None:
        if how == "await":
            await (await acquisition).release()
        else:
            async with acquisition:
                pass

    await use(first_use)
    with pytest.raises(RuntimeError, match="already awaited: call it again"):
        await use(second_use)
    await all_free(sem)


async def test_an_acquire_that_is_never_awaited_warns_by_its_name(make: Make) -> None:
    sem = make(1)
    with pytest.warns(RuntimeWarning, match=r"acquire.* was never awaited"):
        del_me = sem.acquire()
        del del_me
        gc.collect()
    assert await sem.available() == 1


async def test_an_acquire_has_what_a_coroutine_has(make: Make) -> None:
    """asyncio, debuggers and frameworks read these attributes; closing it takes nothing."""
    sem = make(1)
    acquisition = sem.acquire()
    assert isinstance(acquisition, Coroutine)
    assert asyncio.iscoroutine(acquisition)
    assert inspect.isawaitable(acquisition)
    seen: Any = acquisition
    assert isinstance(seen.cr_code, types.CodeType)
    assert isinstance(seen.cr_frame, types.FrameType)
    assert seen.cr_running is False
    assert seen.cr_suspended is False
    assert seen.cr_await is None
    assert seen.cr_origin is None
    assert "acquire" in seen.__qualname__
    with pytest.raises(AttributeError):
        _ = seen.nonsense
    acquisition.close()
    assert seen.cr_frame is None
    assert await sem.available() == 1


async def test_the_stack_of_a_waiting_task_names_acquire(make: Make) -> None:
    sem = make(1)
    async with sem:
        waiter = await queue_up(sem)
        assert waiter.get_stack()
        printed = io.StringIO()
        waiter.print_stack(file=printed)
        assert "acquire" in printed.getvalue()
        await cancelled(waiter)


async def test_semaphores_need_no_loop_to_be_made(kind: Kind) -> None:
    """They stand at module level, where no loop runs yet, and connect to nothing."""
    made = await asyncio.to_thread(lambda: kind(Redis(port=1), "at module level", 3, lease=7))
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
                inner.check()
                held = {holder.id for holder in (await sem.status()).holders}
                assert held >= {outer.id, inner.id}
                assert len(held) <= 15
            assert inner.expires_in <= 0
            outer.check()
        assert outer.expires_in <= 0

    async with asyncio.TaskGroup() as group:
        for number in range(14):
            group.create_task(work(number % 7))
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
            permit = await own.enter_async_context(here)
            inside.append(permit)
            await may_leave.wait()
            permit.check()

    stays = asyncio.create_task(stay())
    stack = AsyncExitStack()

    async def enter() -> Permit:
        permit = await stack.enter_async_context(here)
        inside.append(permit)
        if not ended:
            await may_leave.wait()
        return permit

    other = asyncio.create_task(enter())
    await until(lambda: len(inside) == 2 and other.done() is ended)
    with pytest.raises(RuntimeError, match=r"async with sem\.acquire\(\)"):
        await asyncio.create_task(stack.aclose())
    assert await there.try_acquire() is None  # nothing was released
    may_leave.set()
    await stays
    permit = await other
    assert not permit.lost
    await here.__aexit__(None, None, None)  # the only block that is left
    await all_free(here)


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
    await all_free(sem)


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
    assert (record.levelname, getattr(record, "event", "")) == ("WARNING", "nested")
    assert ("the task that created it" in record.getMessage()) is child
    await cancelled(*parents)
    await all_free(sem)


async def test_a_task_that_holds_another_key_does_not_wait_for_itself(make_fair: Make) -> None:
    """Its own release would not help."""
    sem: Any = make_fair(5, key_limit=1)
    other = await sem.acquire(key="b")
    async with sem.acquire(key="a"):
        for key in ("a", "b"):
            with pytest.raises(AcquireTimeout) as caught:
                await sem.acquire(key=key, timeout=0.05)
            assert caught.value.blocked_by == "key"
            assert caught.value.nested is (key == "a")
    await other.release()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_task_that_is_dropped_in_a_block_does_not_keep_its_permit(make: Make) -> None:
    """Nothing holds it but what it awaits; the permit comes back."""
    sem = make(1, cancel_on_loss=False)

    async def body() -> None:
        async with sem.acquire():
            entered.set()
            await asyncio.get_running_loop().create_future()

    entered = asyncio.Event()
    task = asyncio.create_task(body())
    await entered.wait()
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)  # pending, and destroyed
    del task
    await asyncio.sleep(0)
    gc.collect()
    await all_free(sem)


async def test_a_mutex_lets_one_in(client: Client, other: Client, name: str) -> None:
    here, there = Mutex(client, name), Mutex(other, name, lease=5.0, label="there")
    assert isinstance(here, FairSemaphore)
    assert here.limit == 1
    assert there.lease == 5.0
    async with here:
        assert await there.try_acquire() is None
        waiter = await queue_up(there)
    await give_back(waiter)


async def test_a_mutex_refuses_a_limit_above_one(redis: Redis, name: str) -> None:
    """Two holders at once are what it is there to prevent."""
    mutex = Mutex(redis, name)
    with pytest.raises(ValueError, match="the limit of a Mutex is at most 1, not 2"):
        await mutex.set_limit(2)
    assert await redis.keys(f"*{name}*") == [], "nothing was sent"
    for limit in (0, 1, None):
        await mutex.set_limit(limit)
        assert (await mutex.status()).set_limit == limit


# -- not waiting


async def test_what_does_not_wait_leaves_no_trace(make: Make) -> None:
    """Whatever `timeout` and `max_waiters` of the semaphore say."""
    sem = make(1, timeout=30.0, max_waiters=0)
    async with sem.acquire(timeout=0):
        assert await soon(sem.try_acquire(), 0.5) is None
        with pytest.raises(AcquireTimeout) as caught:
            await soon(sem.acquire(timeout=0), 0.5)
        assert caught.value.name == sem.name
        assert caught.value.waited < 0.5
        assert caught.value.retry_after >= 0
        assert (await sem.status()).waiting == 0
    permit = await sem.try_acquire()
    assert permit is not None
    await permit.release()


async def test_try_acquire_says_unreachable_rather_than_none(kind: Kind, nowhere: Redis) -> None:
    """A caller that takes None for full would shed load, or go ahead, for the wrong reason."""
    sem = kind(nowhere, "unreachable", 1)
    port = nowhere.connection_pool.connection_kwargs["port"]
    with pytest.raises(BackendUnavailable, match=str(port)) as caught:
        await soon(sem.try_acquire(), 1.0)
    assert isinstance(caught.value.__cause__, Exception)
    with pytest.raises(BackendUnavailable):
        await soon(sem.acquire(timeout=0), 1.0)


# -- timeouts


@pytest.mark.parametrize("timeout", [0.05, 0.3])
async def test_acquire_timeout_is_kept_within_100_ms(make: Make, timeout: float) -> None:
    """Within 100 ms, because the caller has a deadline of its own."""
    sem = make(1)
    async with sem:
        took: list[float] = []
        for _ in range(3):  # other programs run here too: the best one counts
            start = asyncio.get_running_loop().time()
            with pytest.raises(AcquireTimeout) as caught:
                await sem.acquire(timeout=timeout)
            took.append(asyncio.get_running_loop().time() - start)
            assert caught.value.waited == pytest.approx(took[-1], abs=0.05)
            assert isinstance(caught.value, TimeoutError)
        assert min(took) >= timeout - 0.001
        assert min(took) < timeout + 0.1
        await waiting(sem, 0)


@pytest.mark.parametrize("timeout", [None, float("inf")])
async def test_no_timeout_waits_for_as_long_as_it_takes(make: Make, timeout: float | None) -> None:
    """None wins over the constructor's timeout, which is that of a bare block."""
    sem = make(1, timeout=0.05)
    first = await sem.acquire()
    patient = await queue_up(sem, timeout=timeout)
    with pytest.raises(AcquireTimeout):
        async with sem:
            pytest.fail("entered")
    assert not patient.done()
    await give_back(first, patient)


async def test_a_waiter_behind_one_that_was_served_gets_no_outage_error(
    make_on_redis: Make, redis: Redis, other_redis: Redis
) -> None:
    """The server did reply: to the first waiter of the process, which asked for all of them."""
    sem, there = make_on_redis(1), make_on_redis(1, client=other_redis)
    held = await there.acquire()
    first = await queue_up(sem)
    assert await redis.zrem(key_of(sem, "holders"), held.id) == 1  # free, without a message
    with pytest.raises(AcquireTimeout):
        await sem.acquire(timeout=0.1)
    await give_back(first)
    assert not await held.release()


@pytest.mark.parametrize(("timeout", "lease", "takes"), [(0.4, 10.0, 0.4), (None, 0.5, 0.5)])
async def test_an_outage_is_waited_out_until_the_deadline_or_for_one_lease(
    kind: Kind, nowhere: Redis, timeout: float | None, lease: float, takes: float
) -> None:
    sem = kind(nowhere, "unreachable", 1, lease=lease)
    start = asyncio.get_running_loop().time()
    with pytest.raises(BackendUnavailable):
        await soon(sem.acquire(timeout=timeout), 3.0)
    assert takes - 0.01 <= asyncio.get_running_loop().time() - start < takes + EPSILON + NOISE


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
