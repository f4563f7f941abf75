"""taskiq tasks hold a permit while they run, in memory and in real workers."""

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis
from taskiq import (
    InMemoryBroker,
    SimpleRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqResult,
)
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

import redsem_async.taskiq
from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, SemaphoreGroup
from redsem_async.taskiq import SemaphoreMiddleware
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, until, waiting
from tests.integrations.background.load import Load

pytestmark = pytest.mark.release

APP = "tests.integrations.background.taskiq_app:broker"


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    """A broker whose tasks run here."""
    made = InMemoryBroker()
    await made.startup()
    yield made
    await made.shutdown()


async def held_by(sem: FairSemaphore) -> int:
    return (await sem.status()).held


async def result_of(kicked: Any) -> TaskiqResult[Any]:
    result: TaskiqResult[Any] = await kicked.wait_result(check_interval=0.005, timeout=5)
    return result


async def test_tasks_stay_within_the_limit(
    sem: FairSemaphore, broker: InMemoryBroker, load: Load
) -> None:
    broker.add_middlewares(SemaphoreMiddleware(sem))

    @broker.task
    async def visit() -> int:
        await load.job()
        return await sem.available()

    kicked = [await visit.kiq() for _ in range(10)]
    results = [await result_of(task) for task in kicked]
    assert {result.is_err for result in results} == {False}
    assert load.most == 2
    assert max(result.return_value for result in results) < 2, "each held a permit"
    await all_free(sem)


async def test_a_task_that_gets_no_permit_has_that_as_its_error(
    sem: FairSemaphore, broker: InMemoryBroker, load: Load
) -> None:
    broker.add_middlewares(SemaphoreMiddleware(sem, timeout=0))

    @broker.task
    async def job() -> None:
        await load.job()

    async with sem, sem:
        result = await result_of(await job.kiq())
    assert isinstance(result.error, AcquireTimeout)
    assert load.began == 0


async def test_a_retry_middleware_tries_again(sem: FairSemaphore, broker: InMemoryBroker) -> None:
    """It acts on errors of tasks, and a full semaphore is one."""
    broker.add_middlewares(SimpleRetryMiddleware(50), SemaphoreMiddleware(sem, timeout=0.01))

    @broker.task(retry_on_error=True)
    async def job() -> str:
        return "done"

    async with sem, sem:
        kicked = await job.kiq()
        await asyncio.sleep(0.03)
    assert (await result_of(kicked)).return_value == "done"


async def test_a_task_that_loses_its_permit_is_cancelled(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    broker.add_middlewares(SemaphoreMiddleware(sem))

    @broker.task
    async def job() -> None:
        await asyncio.sleep(5)

    kicked = await job.kiq()
    await until(lambda: held_by(sem))
    assert await sem.release((await sem.status()).holders[0].id)
    result = await result_of(kicked)
    assert isinstance(result.error, PermitLost)


async def test_the_timeout_of_a_task_ends_its_waiting_too(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    broker.add_middlewares(SemaphoreMiddleware(sem))

    @broker.task(timeout=0.02)
    async def job() -> None: ...

    async with sem, sem:
        result = await result_of(await job.kiq())
        assert isinstance(result.error, TimeoutError)
        await waiting(sem, 0)
    await all_free(sem)


async def test_the_message_chooses_from_a_group(broker: InMemoryBroker) -> None:
    """By a label, say; a task without one needs no permit."""
    models = SemaphoreGroup(MemoryBackend(), "model", 1)

    def model(message: TaskiqMessage) -> str | None:
        return message.labels.get("model")

    broker.add_middlewares(SemaphoreMiddleware(models, key=model))

    @broker.task(model="large")
    async def ask() -> tuple[int, int]:
        return await models["large"].available(), await models["small"].available()

    @broker.task
    async def other() -> int:
        return await models["large"].available()

    assert (await result_of(await ask.kiq())).return_value == (0, 1)
    assert (await result_of(await ask.kicker().with_labels(model="small").kiq())).return_value == (
        1,
        0,
    )
    assert (await result_of(await other.kiq())).return_value == 1


async def test_a_key_that_fails_is_the_tasks_error(broker: InMemoryBroker) -> None:
    models = SemaphoreGroup(MemoryBackend(), "model", 1)

    def model(message: TaskiqMessage) -> str:
        label: str = message.labels["model"]
        return label

    broker.add_middlewares(SemaphoreMiddleware(models, key=model))

    @broker.task
    async def ask() -> None: ...

    assert isinstance((await result_of(await ask.kiq())).error, KeyError)


async def test_a_task_called_by_another_is_a_part_of_it(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    """It would wait for the permit that its caller holds."""
    broker.add_middlewares(SemaphoreMiddleware(FairSemaphore(MemoryBackend(), "one", 1)))

    @broker.task
    async def inner() -> str:
        return "done"

    @broker.task
    async def outer() -> str:
        return await inner()

    assert (await result_of(await inner.kiq())).return_value == "done"
    assert (await result_of(await outer.kiq())).return_value == "done"
    assert await inner() == "done"


async def test_a_dependency_that_calls_a_task_leaves_the_permit_to_its_own(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    """Dependencies run before the function does: what they call is not what is due."""
    broker.add_middlewares(SemaphoreMiddleware(sem))

    @broker.task
    async def inner() -> int:
        return await sem.available()

    async def needed() -> int:
        return await inner()

    @broker.task
    async def outer(before: int = TaskiqDepends(needed)) -> list[int]:
        return [before, await sem.available()]

    assert (await result_of(await inner.kiq())).return_value == 1
    assert (await result_of(await outer.kiq())).return_value == [2, 1]


async def test_a_function_that_is_not_async_is_refused(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    """As the task's error; called directly it is what it was."""
    broker.add_middlewares(SemaphoreMiddleware(sem))

    @broker.task
    def job() -> str:
        return "done"

    result = await result_of(await job.kiq())
    assert isinstance(result.error, TypeError)
    assert "asyncio.to_thread" in str(result.error)
    assert job() == "done"
    await all_free(sem)


async def test_a_task_may_need_permits_of_several(
    sem: FairSemaphore, broker: InMemoryBroker
) -> None:
    """One of the fleet's and one of its tenant's, say; and the hundredth run is like the first."""
    tenants = SemaphoreGroup(MemoryBackend(), "tenant", 1)
    by_tenant = SemaphoreMiddleware(tenants, key=lambda message: message.labels["tenant"])
    broker.add_middlewares(by_tenant, SemaphoreMiddleware(sem))

    @broker.task(tenant="acme")
    async def job() -> tuple[int, int, int]:
        return (
            await sem.available(),
            await tenants["acme"].available(),
            len(traceback.extract_stack()),
        )

    depths: set[int] = set()
    for _ in range(3):
        result = (await result_of(await job.kiq())).return_value
        assert result[:2] == (1, 0)
        depths.add(result[2])
    assert len(depths) == 1, "one more guard with each run"
    await all_free(sem)


def test_bad_arguments_are_told_at_once(sem: FairSemaphore) -> None:
    """When the worker starts, not by its first task."""
    with pytest.raises(TypeError, match="single semaphore"):
        SemaphoreMiddleware(sem, key=lambda _: "a")
    with pytest.raises(TypeError, match="needs key="):
        SemaphoreMiddleware(SemaphoreGroup(MemoryBackend(), "g", 1))
    with pytest.raises(ValueError, match="limit of 2"):
        SemaphoreMiddleware(sem, permits=3)


def test_a_taskiq_that_cannot_keep_the_promise_is_refused() -> None:
    """In 0.11 a function that is not async would have run without a permit."""
    with pytest.raises(ImportError, match=r"0\.12 or newer, not 0\.11\.20: until then"):
        redsem_async.taskiq._see_that_contexts_are_kept("0.11.20")
    for fine in ("0.12.0", "0.13.0", "1.0.0"):
        redsem_async.taskiq._see_that_contexts_are_kept(fine)


# -- real workers


class StartWorkers(Protocol):
    """Starts taskiq's own command."""

    def __call__(
        self, workers: int, *arguments: str, lease: float = 1.0
    ) -> "subprocess.Popen[bytes]": ...


@pytest.fixture
def start_workers(server_url: str, name: str) -> Iterator[StartWorkers]:
    """With so many worker processes; they are stopped after the test."""
    with ExitStack() as stack:

        def start(workers: int, *arguments: str, lease: float = 1.0) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "taskiq", "worker", APP, "--workers", str(workers)]
            process = subprocess.Popen(
                [*command, "--max-async-tasks", "4", *arguments],
                env=os.environ | {"REDIS_URL": server_url, "NAME": name, "LEASE": str(lease)},
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            return process

        yield start


@pytest.fixture
async def queue(server_url: str, name: str) -> AsyncIterator[ListQueueBroker]:
    """The client's side of the workers' broker."""
    made = ListQueueBroker(server_url, queue_name=f"{name}-queue", socket_timeout=None)
    results: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(server_url)
    made.with_result_backend(results)
    made.register_task(_visit, task_name="visit")
    await made.startup()
    yield made
    await made.shutdown()


async def _visit(seconds: float) -> tuple[int, int]:
    raise AssertionError("this is for the workers")


async def visits(queue: ListQueueBroker, count: int) -> list[tuple[int, int]]:
    """Have so many visits done: how many were inside, and in which process."""
    visit = queue.find_task("visit")
    assert visit is not None
    kicked = [await visit.kiq(0.03) for _ in range(count)]
    results = [await task.wait_result(check_interval=0.03, timeout=30) for task in kicked]
    assert [result.error for result in results] == [None] * count
    return [result.return_value for result in results]


async def test_the_cap_holds_for_all_worker_processes(
    queue: ListQueueBroker, start_workers: StartWorkers, redis: Redis, name: str
) -> None:
    """Two processes of many tasks each, and two permits; SIGTERM ends them with nothing held."""
    workers = start_workers(2)
    async with asyncio.timeout(30):
        pids: set[int] = set()
        while len(pids) < 2:  # until both have started
            pids |= {pid for _, pid in await visits(queue, 8)}
    seen = await visits(queue, 30)
    assert max(inside for inside, _ in seen) == 2
    assert {pid for _, pid in seen} == pids, "only one of them worked"
    workers.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(workers.wait, 20) == 0
    sem = FairSemaphore(redis, name, 2)
    assert (await sem.status()).held == 0


async def test_a_worker_that_is_killed_gives_way(
    queue: ListQueueBroker, start_workers: StartWorkers, redis: Redis, name: str
) -> None:
    """Its task is lost, as taskiq has it; its permit comes back when the lease ends."""
    start_workers(2)
    visit = queue.find_task("visit")
    assert visit is not None
    sem = FairSemaphore(redis, name, 2)
    for _ in range(2):
        await visit.kiq(60.0)
    await until(sem.locked, within=20)
    victims = {holder.client.pid for holder in (await sem.status()).holders}
    assert victims
    for pid in victims:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    await all_free(sem, within=10)
    assert not victims & {pid for _, pid in await visits(queue, 4)}


@pytest.mark.parametrize("seconds", [1.0, 60.0], ids=["finishes", "does not finish"])
async def test_a_worker_that_is_stopped_gives_its_permits_back(
    queue: ListQueueBroker, start_workers: StartWorkers, redis: Redis, name: str, seconds: float
) -> None:
    """Once its tasks have ended, or when it has waited long enough: not a lease later."""
    workers = start_workers(1, "--wait-tasks-timeout", "3", lease=60.0)
    visit = queue.find_task("visit")
    assert visit is not None
    kicked = await visit.kiq(seconds)
    sem = FairSemaphore(redis, name, 2)
    await until(lambda: held_by(sem), within=20)
    workers.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(workers.wait, 20) == 0
    assert (await sem.status()).held == 0
    if seconds == 1.0:
        assert (await result_of(kicked)).return_value[0] == 1
