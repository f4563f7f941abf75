"""Ways to come by a permit, and how long they take."""

# ruff: noqa: PT031 - the block is what is tested, as users write it

import asyncio
import gc
import inspect
import io
import os
import signal
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendUnavailable,
    Permit,
    QueueFull,
)
from tests.harness.clients import Make
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, cancelled, queue_up, soon, until, waiting

# -- forms


async def _awaited(sem: AnySemaphore) -> None:
    permit = await sem.acquire()
    assert await sem.available() == 0
    assert await permit.release() is True


async def _entered(sem: AnySemaphore) -> None:
    async with sem.acquire(timeout=2.0) as permit:
        assert not permit.lost
        assert await sem.available() == 0


async def _bare(sem: AnySemaphore) -> None:
    async with sem as permit:
        assert not permit.lost
        assert await sem.available() == 0


async def _task(sem: AnySemaphore) -> None:
    async with await asyncio.create_task(sem.acquire()):
        assert await sem.available() == 0


async def _task_group(sem: AnySemaphore) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sem.acquire())
    async with task.result():
        assert await sem.available() == 0


async def _gathered(sem: AnySemaphore) -> None:
    [permit] = await asyncio.gather(sem.acquire())
    async with permit:
        assert await sem.available() == 0


async def _with_wait_for(sem: AnySemaphore) -> None:
    async with await asyncio.wait_for(sem.acquire(), 2.0):
        assert await sem.available() == 0


async def _shielded(sem: AnySemaphore) -> None:
    async with await asyncio.shield(sem.acquire()):
        assert await sem.available() == 0


async def _under_timeout(sem: AnySemaphore) -> None:
    async with asyncio.timeout(2.0):
        permit = await sem.acquire()
    async with permit:
        assert await sem.available() == 0


async def _tried(sem: AnySemaphore) -> None:
    permit = await sem.try_acquire()
    assert permit is not None
    async with permit:
        assert await sem.available() == 0


@pytest.mark.parametrize(
    "form",
    [
        _awaited,
        _entered,
        _bare,
        _task,
        _task_group,
        _gathered,
        _with_wait_for,
        _shielded,
        _under_timeout,
        _tried,
    ],
)
async def test_every_form_gives_a_permit_and_gives_it_back(
    make: Make, form: Callable[[AnySemaphore], Awaitable[None]]
) -> None:
    """People write it as they write other coroutines and locks: all of them have to work."""
    sem = make(1)
    await form(sem)
    assert await sem.available() == 1


async def test_a_permit_carries_its_facts(make: Make) -> None:
    """What a permit says of itself is what users log and hand on."""
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
        assert permit.id not in repr(permit)  # whoever knows it can release it
    assert permit.expires_in <= 0
    assert permit.lost is False  # a release is no loss


async def test_waited_is_how_long_it_took(make: Make) -> None:
    """A service that watches its queues reads it from there."""
    sem = make(1)
    first = await sem.acquire()
    waiter = await queue_up(sem)
    await asyncio.sleep(0.1)
    await first.release()
    permit = await soon(waiter)
    assert 0.1 <= permit.waited < 2.0
    await permit.release()


@pytest.mark.parametrize("second_use", ["await", "enter"])
@pytest.mark.parametrize("first_use", ["await", "enter"])
async def test_an_acquire_is_good_for_one_use(make: Make, first_use: str, second_use: str) -> None:
    """A second use must not quietly take a second permit, or hand out the first one twice."""
    sem = make(2)
    acquisition = sem.acquire()
    if first_use == "await":
        await (await acquisition).release()
    else:
        async with acquisition:
            pass
    with pytest.raises(RuntimeError, match="already awaited"):
        if second_use == "await":
            await acquisition
        else:
            async with acquisition:
                pytest.fail("entered twice")
    await all_free(sem)


async def test_an_acquire_that_is_never_awaited_warns_by_its_name(make: Make) -> None:
    """`sem.acquire()` without `await` takes nothing: Python's own warning has to say so."""
    sem = make(1)
    with pytest.warns(RuntimeWarning, match=r"acquire.* was never awaited"):
        del_me = sem.acquire()
        del del_me
        gc.collect()
    assert await sem.available() == 1


async def test_an_acquire_has_what_a_coroutine_has(make: Make) -> None:
    """asyncio, debuggers and frameworks look at these."""
    acquisition = make(1).acquire()
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


async def test_the_stack_of_a_waiting_task_names_acquire(make: Make) -> None:
    """Who asks a stuck program where it hangs has to find the semaphore there."""
    sem = make(1)
    async with sem:
        waiter = await queue_up(sem)
        assert waiter.get_stack()
        printed = io.StringIO()
        waiter.print_stack(file=printed)
        assert "acquire" in printed.getvalue()
        await cancelled(waiter)


async def test_closing_an_unused_acquire_takes_nothing(make: Make) -> None:
    """A framework that drops a coroutine closes it; nothing may have been asked for yet."""
    sem = make(1)
    sem.acquire().close()
    assert await sem.available() == 1


async def test_semaphores_need_no_loop_to_be_made(kind: type[AnySemaphore]) -> None:
    """They stand at module level, where nothing runs yet, and connect to nothing."""
    made = await asyncio.to_thread(lambda: kind(Redis(port=1), "at module level", 3, lease=7))
    assert made.name == "at module level"
    assert made.limit == 3
    assert made.lease == 7


# -- bare `async with sem`


async def test_nested_blocks_of_one_task_are_a_stack(make: Make) -> None:
    """Each block leaves with the permit that it entered with."""
    sem = make(3)
    async with sem as outer:
        async with sem as middle:
            async with sem as inner:
                assert len({outer.id, middle.id, inner.id}) == 3
                assert await sem.available() == 0
            assert inner.expires_in <= 0 < middle.expires_in
        assert middle.expires_in <= 0 < outer.expires_in
        assert await sem.available() == 2
    assert await sem.available() == 3


async def test_many_tasks_share_one_object(make: Make) -> None:
    """State lives on the permits: tasks that interleave must not leave with each other's."""
    sem = make(4)
    inside = most = 0

    async def work(steps: int) -> None:
        nonlocal inside, most
        async with sem as permit:
            inside += 1
            most = max(most, inside)
            for _ in range(steps):
                await asyncio.sleep(0)
            permit.check()
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(40):
            group.create_task(work(number % 7))
    assert 0 < most <= 4
    await all_free(sem)


async def test_a_block_left_in_another_task_releases(make: Make) -> None:
    """Fixtures of pytest and some frameworks enter and leave in different tasks."""
    sem = make(1)
    permit = await asyncio.create_task(sem.__aenter__())
    assert not permit.lost
    await asyncio.create_task(sem.__aexit__(None, None, None))
    await all_free(sem)


async def test_a_generator_finished_elsewhere_releases(make: Make) -> None:
    """The same, as it is written."""
    sem = make(1)

    @asynccontextmanager
    async def guarded() -> AsyncGenerator[Permit]:
        async with sem as permit:
            yield permit

    context = guarded()
    await asyncio.create_task(context.__aenter__())
    assert await sem.available() == 0
    await asyncio.create_task(context.__aexit__(None, None, None))
    await all_free(sem)


# -- not waiting


async def test_try_acquire_gives_none_when_full(make: Make) -> None:
    """None means full, and leaves no trace."""
    sem = make(1)
    async with sem:
        assert await soon(sem.try_acquire(), 0.5) is None
        assert (await sem.status()).waiting == 0
    permit = await sem.try_acquire()
    assert permit is not None
    await permit.release()


async def test_try_acquire_never_waits_in_line(make: Make) -> None:
    """Whatever `timeout` and `max_waiters` say."""
    sem = make(1, timeout=30.0, max_waiters=0)
    async with sem.acquire(timeout=0):
        assert await soon(sem.try_acquire(), 0.5) is None
        with pytest.raises(AcquireTimeout):
            await soon(sem.acquire(timeout=0), 0.5)


async def test_try_acquire_says_unreachable_rather_than_none(
    kind: type[AnySemaphore], nowhere: Redis
) -> None:
    """A caller that takes None for full would shed load, or go ahead, for the wrong reason."""
    sem = kind(nowhere, "unreachable", 1)
    port = nowhere.connection_pool.connection_kwargs["port"]
    with pytest.raises(BackendUnavailable, match=str(port)) as caught:
        await soon(sem.try_acquire(), 1.0)
    assert isinstance(caught.value.__cause__, Exception)
    with pytest.raises(BackendUnavailable):
        await soon(sem.acquire(timeout=0), 1.0)


# -- timeouts


async def test_timeout_zero_takes_what_is_free(make: Make) -> None:
    """Zero is no refusal."""
    sem = make(1)
    async with sem.acquire(timeout=0):
        pass


async def test_timeout_zero_does_not_wait(make: Make) -> None:
    """Not even for a moment, and the error says what is true."""
    sem = make(1)
    async with sem:
        with pytest.raises(AcquireTimeout) as caught:
            await soon(sem.acquire(timeout=0), 0.5)
        assert caught.value.name == sem.name
        assert caught.value.waited < 0.5
        assert caught.value.retry_after >= 0
        assert (await sem.status()).waiting == 0


@pytest.mark.parametrize("timeout", [0.05, 0.3])
async def test_timeouts_are_kept(make: Make, timeout: float) -> None:
    """Within 100 ms: the caller has a deadline of its own."""
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


async def test_many_timeouts_at_once_are_kept(make: Make) -> None:
    """Hundreds of waiters that give up together must not hold each other up."""
    sem = make(1)
    async with sem:
        start = asyncio.get_running_loop().time()
        results = await asyncio.gather(
            *(sem.acquire(timeout=0.3) for _ in range(300)), return_exceptions=True
        )
        assert asyncio.get_running_loop().time() - start < 1.0
        assert {AcquireTimeout} == {type(result) for result in results}
        await waiting(sem, 0)
    await all_free(sem)


@pytest.mark.parametrize("timeout", [None, float("inf")])
async def test_no_timeout_waits_for_as_long_as_it_takes(make: Make, timeout: float | None) -> None:
    """None wins over the constructor's timeout; infinity is as good."""
    sem = make(1, timeout=0.05)
    first = await sem.acquire()
    patient = await queue_up(sem, timeout=timeout)
    with pytest.raises(AcquireTimeout):
        await sem.acquire()  # the constructor's
    assert not patient.done()
    await first.release()
    await (await soon(patient)).release()


async def test_the_constructors_timeout_rules_bare_blocks(make: Make) -> None:
    """There is no other place to give one."""
    sem = make(1, timeout=0.05)
    async with sem:
        with pytest.raises(AcquireTimeout):
            async with sem:
                pytest.fail("entered")
    await all_free(sem)


async def test_an_outer_timeout_leaves_nothing(make: Make) -> None:
    """`asyncio.timeout` around it is as common as `timeout=`."""
    sem = make(1)
    async with sem:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await sem.acquire()
        await waiting(sem, 0)
    await all_free(sem)


async def test_who_is_behind_one_that_was_served_is_told_of_no_outage(
    make_on_redis: Make, redis: Redis, other_redis: Redis
) -> None:
    """The server did answer: to the first in line here, who asked for all of them."""
    sem, there = make_on_redis(1), make_on_redis(1, client=other_redis)
    held = await there.acquire()
    first = await queue_up(sem)
    await redis.zrem(f"redsem:{{{sem.name}}}:holders", held.id)  # free, and nobody is told
    with pytest.raises(AcquireTimeout):
        await sem.acquire(timeout=0.1)
    await (await soon(first)).release()
    await held.release()


async def test_an_unreachable_server_is_waited_for_until_the_deadline(
    kind: type[AnySemaphore], nowhere: Redis
) -> None:
    """An outage is ridden out, but no longer than the caller said."""
    sem = kind(nowhere, "unreachable", 1)
    start = asyncio.get_running_loop().time()
    with pytest.raises(BackendUnavailable):
        await sem.acquire(timeout=0.4)
    assert 0.39 <= asyncio.get_running_loop().time() - start < 0.5


async def test_without_a_deadline_an_outage_is_borne_for_one_lease(
    kind: type[AnySemaphore], nowhere: Redis
) -> None:
    """Nobody waits for ever for a server that is gone."""
    sem = kind(nowhere, "unreachable", 1, lease=0.5)
    start = asyncio.get_running_loop().time()
    with pytest.raises(BackendUnavailable):
        await soon(sem.acquire(), 3.0)
    assert 0.49 <= asyncio.get_running_loop().time() - start < 1.0


async def test_a_deadline_is_kept_while_the_server_stalls(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """The socket may be open and say nothing: the deadline is the caller's all the same."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "stalled", 1)
        await (await sem.acquire()).release()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start = asyncio.get_running_loop().time()
            with pytest.raises(BackendUnavailable):
                await sem.acquire(timeout=0.3)
            assert 0.29 <= asyncio.get_running_loop().time() - start < 0.45
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await all_free(sem)


async def test_a_server_that_comes_back_serves_who_waited(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """A passing outage is ridden out."""
    server = embedded()
    server.kill()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "restarted", 1)
        waiter = asyncio.create_task(sem.acquire(timeout=10.0))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(server.restart)
        await (await soon(waiter, 3.0)).release()


# -- weights


async def test_weights_are_counted(make: Make) -> None:
    """One permit may stand for several, and is given back as one."""
    sem = make(5)
    async with sem.acquire(permits=3) as permit:
        assert permit.permits == 3
        assert await sem.available() == 2
        assert await sem.try_acquire(permits=3) is None
        async with sem.acquire(permits=2):
            assert await sem.available() == 0
            assert await sem.try_acquire() is None
    assert await sem.available() == 5


async def test_a_heavy_request_waits_until_it_fits(make: Make) -> None:
    """It is given all at once, never in parts."""
    sem = make(4)
    held = [await sem.acquire() for _ in range(4)]
    heavy = await queue_up(sem, permits=3)
    for permit in held[:2]:
        await permit.release()
    await asyncio.sleep(0.05)
    assert not heavy.done()
    await held[2].release()
    async with await soon(heavy):
        assert await sem.available() == 0
    assert await sem.available() == 3
    await held[3].release()


async def test_weights_above_the_effective_limit_wait(make: Make) -> None:
    """The set limit may be raised again: that is not the caller's mistake."""
    sem = make(5)
    await sem.set_limit(2)
    heavy = await queue_up(sem, permits=4)
    async with sem.acquire(timeout=1.0):  # and is not in the way of those that fit
        pass
    assert not heavy.done()
    await sem.set_limit(4)
    await (await soon(heavy)).release()


async def test_one_request_for_thousands_of_permits(make: Make) -> None:
    """More than 4,000 in one request: no script may need an argument for each."""
    sem = make(20_000)
    async with sem.acquire(permits=15_000) as permit:
        assert await sem.available() == 5_000
        await permit.refresh()
    assert await sem.available() == 20_000


@pytest.mark.release
async def test_thousands_of_permits_at_once(make: Make) -> None:
    """More than 4,000 requests in one turn of the loop: no batch may become too large."""
    sem = make(4_500)
    permits = await asyncio.gather(*(sem.acquire() for _ in range(4_500)))
    assert await sem.available() == 0
    assert len({permit.id for permit in permits}) == 4_500
    assert len({permit.fencing_token for permit in permits}) == 4_500
    assert all(await asyncio.gather(*(permit.release() for permit in permits)))
    assert await sem.available() == 4_500


# -- max_waiters


async def test_the_queue_is_bounded(make: Make) -> None:
    """Beyond the bound an error comes at once, with an estimate of when to come back."""
    sem = make(1, max_waiters=2)
    first = await sem.acquire()
    waiters = [await queue_up(sem), await queue_up(sem)]
    with pytest.raises(QueueFull) as caught:
        await soon(sem.acquire(timeout=30.0), 0.5)
    assert caught.value.name == sem.name
    assert caught.value.max_waiters == 2
    assert caught.value.retry_after >= 0
    await cancelled(waiters.pop())
    await sem.status()  # its leaving has arrived
    waiters.append(await queue_up(sem))  # there is a place again
    await first.release()
    for waiter in waiters:
        await (await soon(waiter)).release()
    await all_free(sem)


async def test_the_bound_holds_for_requests_made_together(make: Make) -> None:
    """A burst is when it matters."""
    sem = make(1, max_waiters=3)
    async with sem:
        tasks = [asyncio.create_task(sem.acquire()) for _ in range(10)]
        await until(lambda: sum(task.done() for task in tasks) == 7)
        await sem.status()
        assert sum(task.done() for task in tasks) == 7
        for task in tasks:
            if task.done():
                assert isinstance(task.exception(), QueueFull)
        await cancelled(*tasks)
    await all_free(sem)


async def test_no_waiters_at_all(make: Make) -> None:
    """Zero waiters is a bound too."""
    sem = make(1, max_waiters=0)
    async with sem:
        with pytest.raises(QueueFull):
            await soon(sem.acquire(), 0.5)
    async with sem:
        pass
