"""taskiq tasks hold a permit while they run, here in memory."""

import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from taskiq import InMemoryBroker, TaskiqDepends, TaskiqMessage, TaskiqResult

import redsem_async.taskiq
from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, SemaphoreGroup
from redsem_async.taskiq import SemaphoreMiddleware
from redsem_async.testing import MemoryBackend
from tests.harness.wait import in_background, until
from tests.integrations.background.load import Load

pytestmark = [pytest.mark.release, pytest.mark.usefixtures("nothing_is_left")]


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    """A broker whose tasks run here."""
    made = InMemoryBroker()
    await made.startup()
    yield made
    await made.shutdown()


@pytest.fixture
def limited(broker: InMemoryBroker, sem: FairSemaphore) -> InMemoryBroker:
    """One whose tasks need permits."""
    broker.add_middlewares(SemaphoreMiddleware(sem))
    return broker


def function(method: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """What taskiq can make a task of."""

    async def job() -> Any:
        return await method()

    return job


async def outcome(task: Any, **labels: str) -> TaskiqResult[Any]:
    """Have *task* run."""
    sent = await task.kicker().with_labels(**labels).kiq()
    result: TaskiqResult[Any] = await sent.wait_result(check_interval=0.005, timeout=5)
    return result


async def test_a_task_without_a_permit_has_that_as_its_error(
    sem: FairSemaphore, broker: InMemoryBroker, load: Load
) -> None:
    """And is cancelled, once it runs."""
    broker.add_middlewares(SemaphoreMiddleware(sem, timeout=0))
    async with sem, sem:
        assert isinstance((await outcome(broker.task(function(load.job)))).error, AcquireTimeout)
    assert load.began == 0
    running = in_background(outcome(broker.task(function(load.stays))))
    await until(lambda: load.now)
    assert await sem.release((await sem.status()).holders[0].id)
    assert isinstance((await running).error, PermitLost)
    assert load.now == 0


async def test_the_message_chooses_from_a_group(broker: InMemoryBroker) -> None:
    """By a label, say; a task without one needs no permit."""
    models = SemaphoreGroup(MemoryBackend(), "model", 1)

    def model(message: TaskiqMessage) -> str | None:
        return message.labels.get("model")

    broker.add_middlewares(SemaphoreMiddleware(models, key=model))

    @broker.task
    async def ask() -> tuple[int, int]:
        return await models["large"].available(), await models["small"].available()

    assert (await outcome(ask, model="large")).return_value == (0, 1)
    assert (await outcome(ask, model="small")).return_value == (1, 0)
    assert (await outcome(ask)).return_value == (1, 1)


def no_text(_: TaskiqMessage) -> Any:
    return 5


def label(message: TaskiqMessage) -> str:
    found: str = message.labels["model"]
    return found


@pytest.mark.parametrize(("key", "error"), [(no_text, TypeError), (label, KeyError)])
async def test_a_key_that_fails_is_the_tasks_error(
    key: Any, error: type[Exception], broker: InMemoryBroker, load: Load
) -> None:
    jobs = FairSemaphore(MemoryBackend(), "jobs", 5, key_limit=1)
    broker.add_middlewares(SemaphoreMiddleware(jobs, key=key))
    assert isinstance((await outcome(broker.task(function(load.job)))).error, error)
    assert load.began == 0


async def test_a_task_called_by_another_is_a_part_of_it(broker: InMemoryBroker) -> None:
    """It would wait for the permit that its caller holds."""
    broker.add_middlewares(SemaphoreMiddleware(FairSemaphore(MemoryBackend(), "one", 1)))

    @broker.task
    async def inner() -> str:
        return "done"

    @broker.task
    async def outer() -> str:
        return await inner()

    assert (await outcome(inner)).return_value == "done"
    assert (await outcome(outer)).return_value == "done"
    assert await inner() == "done"


async def test_a_dependency_that_calls_a_task_leaves_the_permit_to_its_own(
    sem: FairSemaphore, limited: InMemoryBroker
) -> None:
    """Dependencies run before the function does, and without its permit."""

    @limited.task
    async def inner() -> int:
        return await sem.available()

    async def needed() -> int:
        return await inner()

    @limited.task
    async def outer(before: int = TaskiqDepends(needed)) -> list[int]:
        return [before, await sem.available()]

    assert (await outcome(inner)).return_value == 1
    assert (await outcome(outer)).return_value == [2, 1]


async def test_a_function_that_is_not_async_is_refused(limited: InMemoryBroker) -> None:
    """As the task's error; called directly it is what it was."""

    @limited.task
    def job() -> str:
        return "done"

    result = await outcome(job)
    assert isinstance(result.error, TypeError)
    assert "asyncio.to_thread" in str(result.error)
    assert job() == "done"


async def test_a_task_may_need_several_permits(
    sem: FairSemaphore, limited: InMemoryBroker
) -> None:
    """One of all and one of its tenant, say; and each run is like the first."""
    tenants = SemaphoreGroup(MemoryBackend(), "tenant", 1)
    limited.add_middlewares(SemaphoreMiddleware(tenants, key=lambda task: task.labels["tenant"]))

    @limited.task
    async def job() -> tuple[int, int, int]:
        depth = len(traceback.extract_stack())
        return await sem.available(), await tenants["acme"].available(), depth

    results = [(await outcome(job, tenant="acme")).return_value for _ in range(3)]
    assert {result[:2] for result in results} == {(1, 0)}
    assert len({depth for _, _, depth in results}) == 1, "one more guard with each run"


def test_a_taskiq_that_cannot_keep_the_promise_is_refused() -> None:
    """In 0.11 a function that is not async would have run without a permit."""
    with pytest.raises(ImportError, match=r"0\.12 or newer, not 0\.11\.20: until then"):
        redsem_async.taskiq._check_taskiq_version("0.11.20")
    for fine in ("0.12.0", "0.13.0", "1.0.0"):
        redsem_async.taskiq._check_taskiq_version(fine)
