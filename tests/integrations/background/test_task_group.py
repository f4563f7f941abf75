"""`ThrottledTaskGroup`: asyncio's task group, with a permit for each task."""

import asyncio
import gc
import itertools
from typing import Any, cast

import pytest

from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, QueueFull, SemaphoreGroup
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import ThrottledTaskGroup
from tests.harness.wait import all_free, soon, until, waiting
from tests.integrations.background.load import Load

pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def test_tasks_stay_within_the_limit_and_in_order(sem: FairSemaphore, load: Load) -> None:
    began: list[int] = []

    async def job(number: int) -> int:
        began.append(number)
        return await load.job(number)

    async with ThrottledTaskGroup(sem) as group:
        tasks = [group.create_task(job(n), name=f"job {n}") for n in range(12)]
    assert [task.result() for task in tasks] == began == list(range(12))
    assert tasks[3].get_name() == "job 3"
    assert load.most == 2


async def test_a_failing_task_ends_the_group_like_asyncio(sem: FairSemaphore, load: Load) -> None:
    """Running tasks are cancelled, waiting ones leave the queue, and no coroutine warns."""

    async def fail() -> None:
        await until(lambda: load.now)
        await waiting(sem, 3)
        raise ZeroDivisionError

    tasks: list[asyncio.Task[None]] = []
    with pytest.RaisesGroup(ZeroDivisionError):
        async with ThrottledTaskGroup(sem) as group:
            _ = group.create_task(fail())
            tasks += [group.create_task(load.stays()) for _ in range(4)]
    assert all(task.cancelled() for task in tasks)
    assert load.now == 0
    assert load.began <= 2, "one had a permit, and one may have got that of the failing task"


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "is cancelled"])
async def test_a_body_ends_early(sem: FairSemaphore, load: Load, turns: int, raises: bool) -> None:
    """At whatever point: before the tasks have begun, in the queue, or with a permit."""

    async def run() -> None:
        async with ThrottledTaskGroup(sem) as group:
            for _ in range(6):
                _ = group.create_task(load.stays())
            for _ in range(turns):
                await asyncio.sleep(0)
            if raises:
                raise KeyError
            task.cancel()

    task = asyncio.create_task(run())
    with pytest.RaisesGroup(KeyError) if raises else pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert load.now == 0


async def test_a_lost_permit_and_a_full_queue_end_the_group(
    backend: MemoryBackend, sem: FairSemaphore, load: Load
) -> None:
    """They are errors of their tasks, like any other."""
    narrow = FairSemaphore(backend, "narrow", 1, max_waiters=1)
    for source, error in ((sem, PermitLost), (narrow, QueueFull)):
        with pytest.RaisesGroup(error):
            async with ThrottledTaskGroup(source) as group:
                for _ in range(3):
                    _ = group.create_task(load.stays())
                await waiting(source, 1)
                assert await source.release((await source.status()).holders[0].id)
    await all_free(narrow)


async def test_the_timeout_is_for_the_queue_alone(sem: FairSemaphore, load: Load) -> None:
    async with ThrottledTaskGroup(sem, timeout=0.05) as group:
        _ = group.create_task(asyncio.sleep(0.2))
    async with sem, sem:
        with pytest.RaisesGroup(AcquireTimeout):
            async with ThrottledTaskGroup(sem, timeout=0.01) as group:
                _ = group.create_task(load.stays())


async def test_tasks_may_choose_from_a_group_of_semaphores(backend: MemoryBackend) -> None:
    group = SemaphoreGroup(backend, "domain", 1)
    inside = {"a": Load(), "b": Load()}
    async with ThrottledTaskGroup(group) as tasks:
        for _, key in itertools.product(range(4), "ab"):
            _ = tasks.create_task(inside[key].job(), key=key)
    assert (inside["a"].most, inside["b"].most) == (1, 1)
    done = asyncio.Event()
    async with ThrottledTaskGroup(group, key=lambda coro: coro.__name__) as tasks:
        _ = tasks.create_task(done.wait())
        await until(group["wait"].locked)
        _ = tasks.create_task(inside["a"].job(), key="a")
        done.set()
    assert inside["a"].began == 5


async def test_tasks_have_no_key_only_where_that_is_said(backend: MemoryBackend) -> None:
    """They may have it one by one, so a task without one is refused, and not the group."""
    sem = FairSemaphore(backend, "keyed", 9, key_limit=1)
    load = Load()
    async with ThrottledTaskGroup(sem) as tasks:
        for _ in range(3):
            _ = tasks.create_task(load.job(), key="a")
        with pytest.raises(TypeError, match=r"create_task\(\) needs key="):
            _ = tasks.create_task(asyncio.sleep(0))
    assert (load.began, load.most) == (3, 1)
    async with ThrottledTaskGroup(sem, key=None) as tasks:
        for _ in range(3):
            _ = tasks.create_task(load.job())
    assert (load.began, load.most) == (6, 3)


async def test_what_is_refused_is_closed(backend: MemoryBackend, sem: FairSemaphore) -> None:
    """No `coroutine was never awaited` beside the error that says why."""
    group, keyed = ThrottledTaskGroup(sem), ThrottledTaskGroup(SemaphoreGroup(backend, "g", 1))
    with pytest.raises(RuntimeError, match="has not been entered"):
        _ = group.create_task(asyncio.sleep(0))
    async with group, keyed:
        with pytest.raises(TypeError, match="key="):
            _ = keyed.create_task(asyncio.sleep(0))
        with pytest.raises(TypeError, match="key="):
            _ = group.create_task(asyncio.sleep(0), key="a")
        with pytest.raises(TypeError, match="a coroutine was expected"):
            _ = group.create_task(cast("Any", asyncio.sleep))
    with pytest.raises(RuntimeError, match="is finished"):
        _ = group.create_task(asyncio.sleep(0))
    gc.collect()
