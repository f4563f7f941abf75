"""Background work under a cap: no more at a time than the limit, and nothing is left behind."""

import asyncio
import gc
import inspect
import itertools
import random
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, cast

import pytest
from fastapi import BackgroundTasks, FastAPI
from httpx import ASGITransport, AsyncClient
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    PermitLost,
    QueueFull,
    Semaphore,
    SemaphoreGroup,
)
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import ThrottledTaskGroup, throttled, throttled_map
from tests.harness.wait import all_free, soon, until, waiting

pytestmark = pytest.mark.one_mode

MiB = 1024 * 1024


class Load:
    """Counts how many are inside, and the most that ever were."""

    def __init__(self) -> None:
        self.now = self.most = self.began = 0

    async def __aenter__(self) -> None:
        self.now += 1
        self.began += 1
        self.most = max(self.most, self.now)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1


@pytest.fixture
def backend() -> MemoryBackend:
    """Where the semaphores of a test are kept."""
    return MemoryBackend()


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    """Two at a time."""
    return FairSemaphore(backend, "jobs", 2)


@pytest.fixture
def load() -> Load:
    """What goes on at a time."""
    return Load()


@pytest.fixture(autouse=True)
async def nothing_is_left(sem: FairSemaphore) -> AsyncIterator[None]:
    """Whatever happens in a test: no task runs on, and every permit is back."""
    before = asyncio.all_tasks()
    yield
    gc.collect()
    left = {task for task in asyncio.all_tasks() - before if not _of_the_library(task)}
    assert left == set()
    await all_free(sem)


def _of_the_library(task: "asyncio.Task[Any]") -> bool:
    return task is asyncio.current_task() or task.get_name().startswith("redsem")


# -- throttled


async def test_calls_of_a_throttled_function_stay_within_the_limit(
    sem: FairSemaphore, load: Load
) -> None:
    """Whoever calls it, and however often."""

    @throttled(sem)
    async def double(number: int, /, *, by: int = 2) -> int:
        """Twice as much."""
        async with load:
            await asyncio.sleep(0.001)
            return by * number

    assert await asyncio.gather(*(double(n) for n in range(20))) == [2 * n for n in range(20)]
    assert await double(2, by=5) == 10
    assert load.most == 2
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert str(inspect.signature(double)) == "(number: int, /, *, by: int = 2) -> int"
    assert inspect.iscoroutinefunction(double)


async def test_methods_may_be_throttled(backend: MemoryBackend) -> None:
    """And the key may come from the object."""
    group = SemaphoreGroup(backend, "tenant", 1)

    def tenant_of(account: "Account", _other: str) -> str:
        return account.tenant

    def name_of(cls: type) -> str:
        return cls.__name__

    class Account:
        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

        @throttled(group, key=tenant_of)
        async def held(self, other: str) -> tuple[int, int]:
            return await group[self.tenant].available(), await group[other].available()

        @classmethod
        @throttled(group, key=name_of)
        async def of_the_class(cls) -> int:
            return await group["Account"].available()

        @staticmethod
        @throttled(group, key=lambda: "nobody")
        async def of_nobody() -> int:
            return await group["nobody"].available()

    assert await Account("acme").held("umbrella") == (0, 1)
    assert await Account.of_the_class() == 0
    assert await Account.of_nobody() == 0


async def test_a_call_that_gets_no_permit_never_begins(sem: FairSemaphore, load: Load) -> None:
    @throttled(sem, timeout=0)
    async def job() -> None:
        async with load:
            pass

    async with sem, sem:
        with pytest.raises(AcquireTimeout):
            await job()
    assert load.began == 0


async def test_a_call_that_loses_its_permit_is_cancelled(
    backend: MemoryBackend, sem: FairSemaphore
) -> None:
    """And cleans up first."""
    cleaned = False

    @throttled(sem)
    async def job() -> None:
        nonlocal cleaned
        [holder] = (await sem.status()).holders
        try:
            assert await sem.release(holder.id)
            await asyncio.sleep(5)
        finally:
            cleaned = True

    with pytest.raises(PermitLost):
        await job()
    assert cleaned


async def test_an_error_of_the_function_is_the_callers(sem: FairSemaphore) -> None:
    @throttled(sem)
    async def job() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await job()


def plain(_: object = None) -> int:
    return 1


async def generator() -> AsyncIterator[int]:
    yield 1


NO_ASYNC_FUNCTIONS: list[tuple[object, str]] = [
    (plain, "plain is not: make it `async def`, .* asyncio.to_thread"),
    (generator, "generator is an async generator"),
    (classmethod(plain), "below @classmethod"),
    (staticmethod(generator), "below @classmethod or @staticmethod"),
    (Load, "Load is not"),
]


@pytest.mark.parametrize(("function", "says"), NO_ASYNC_FUNCTIONS)
async def test_what_is_not_an_async_function_is_refused(
    sem: FairSemaphore, function: Any, says: str
) -> None:
    """Where it is decorated, not where it is called the first time."""
    with pytest.raises(TypeError, match=says):
        throttled(sem)(function)


async def _anything(*_: Any) -> None: ...


def map_nothing(sem: Any, **options: Any) -> object:
    return throttled_map(sem, _anything, list[int](), **options)


MAKERS: list[Any] = [throttled, ThrottledTaskGroup, map_nothing]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("grouped", "options", "error", "says"),
    [
        (None, {}, TypeError, "a semaphore or a SemaphoreGroup is needed"),
        (False, {"key": str}, TypeError, "this is a single semaphore"),
        (True, {"key": "acme"}, TypeError, "needs key=, a function"),
        (False, {"permits": 3}, ValueError, "limit of 2"),
        (False, {"permits": 0}, ValueError, "permits"),
        (True, {"key": str, "permits": 0}, ValueError, "permits"),
        (False, {"timeout": -1}, ValueError, "timeout"),
        (True, {"key": str, "timeout": -1}, ValueError, "timeout"),
    ],
)
async def test_bad_arguments_are_told_at_once(
    backend: MemoryBackend,
    sem: FairSemaphore,
    make: Callable[..., Any],
    grouped: bool | None,
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    """Not by the first job, at night."""
    source: Any = _anything  # as if the brackets of the decorator had been forgotten
    if grouped is not None:
        source = SemaphoreGroup(backend, "g", 2) if grouped else sem
    with pytest.raises(error, match=says):
        make(source, **options)


async def test_background_tasks_of_fastapi_are_throttled(sem: FairSemaphore, load: Load) -> None:
    """The response does not wait for them; the fleet's limit counts them."""
    sent = asyncio.Event()

    @throttled(sem)
    async def index(document: int) -> None:
        async with load:
            await asyncio.sleep(0.002)

    app = FastAPI()

    @app.post("/documents/{document}", status_code=202)
    async def upload(document: int, background: BackgroundTasks) -> dict[str, int]:
        background.add_task(index, document)
        sent.set()
        return {"document": document}

    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        answers = await asyncio.gather(*(client.post(f"/documents/{n}") for n in range(12)))
    assert sent.is_set()
    assert {answer.status_code for answer in answers} == {202}
    assert (load.began, load.most) == (12, 2)


# -- ThrottledTaskGroup


async def test_tasks_of_a_group_stay_within_the_limit_and_in_order(
    sem: FairSemaphore, load: Load
) -> None:
    began: list[int] = []

    async def job(number: int) -> int:
        began.append(number)
        async with load:
            await asyncio.sleep(0.001)
        return number

    async with ThrottledTaskGroup(sem) as group:
        tasks = [group.create_task(job(n), name=f"job {n}") for n in range(12)]
    assert [task.result() for task in tasks] == began == list(range(12))
    assert tasks[3].get_name() == "job 3"
    assert load.most == 2


async def test_a_failing_task_ends_the_group_as_asyncio_does(
    sem: FairSemaphore, load: Load
) -> None:
    """One that runs is cancelled, those in line leave it, and none of their coroutines warns."""

    async def fail() -> None:
        await until(lambda: load.now)
        await waiting(sem, 3)
        raise ZeroDivisionError

    async def job() -> None:
        async with load:
            await asyncio.sleep(5)

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with ThrottledTaskGroup(sem) as group:
            _ = group.create_task(fail())
            tasks += [group.create_task(job()) for _ in range(4)]
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
    assert all(task.cancelled() for task in tasks)
    assert load.now == 0
    assert load.began <= 2, "one had a permit, and one may have got that of the failing task"


@pytest.mark.parametrize("turns", range(6))
async def test_a_body_that_raises_leaves_nothing_in_line(
    sem: FairSemaphore, load: Load, turns: int
) -> None:
    """At whatever point: before the tasks have begun, in line, or with a permit."""

    async def job() -> None:
        async with load:
            await asyncio.sleep(5)

    with pytest.raises(ExceptionGroup) as caught:
        async with ThrottledTaskGroup(sem) as group:
            for _ in range(6):
                _ = group.create_task(job())
            for _ in range(turns):
                await asyncio.sleep(0)
            raise KeyError
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert load.now == 0


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_group_is_cancelled_and_no_more(sem: FairSemaphore, turns: int) -> None:
    async def run() -> None:
        async with ThrottledTaskGroup(sem) as group:
            for _ in range(6):
                _ = group.create_task(asyncio.sleep(5))

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert task.cancelled()


async def test_a_lost_permit_ends_the_group(backend: MemoryBackend, sem: FairSemaphore) -> None:
    """It is an error of that task, like any other."""
    with pytest.raises(ExceptionGroup) as caught:
        async with ThrottledTaskGroup(sem) as group:
            for _ in range(3):
                _ = group.create_task(asyncio.sleep(5))
            await waiting(sem, 1)
            assert await sem.release((await sem.status()).holders[0].id)
    assert [type(error) for error in caught.value.exceptions] == [PermitLost]


async def test_a_full_line_ends_the_group(backend: MemoryBackend) -> None:
    """As many waiters were meant as were allowed."""
    narrow = FairSemaphore(backend, "narrow", 1, max_waiters=1)
    with pytest.raises(ExceptionGroup) as caught:
        async with ThrottledTaskGroup(narrow) as group:
            for _ in range(3):
                _ = group.create_task(asyncio.sleep(5))
    assert [type(error) for error in caught.value.exceptions] == [QueueFull]
    await all_free(narrow)


async def test_the_timeout_is_for_the_line_alone(sem: FairSemaphore) -> None:
    async with ThrottledTaskGroup(sem, timeout=0.05) as group:
        _ = group.create_task(asyncio.sleep(0.2))
    async with sem, sem:
        with pytest.raises(ExceptionGroup) as caught:
            async with ThrottledTaskGroup(sem, timeout=0.01) as group:
                _ = group.create_task(asyncio.sleep(5))
    assert [type(error) for error in caught.value.exceptions] == [AcquireTimeout]


async def test_tasks_may_choose_from_a_group_of_semaphores(backend: MemoryBackend) -> None:
    group = SemaphoreGroup(backend, "domain", 1)
    inside: dict[str, Load] = {"a": Load(), "b": Load()}

    async def job(key: str) -> None:
        async with inside[key]:
            await asyncio.sleep(0.005)

    async with ThrottledTaskGroup(group) as tasks:
        for _, key in itertools.product(range(4), "ab"):
            _ = tasks.create_task(job(key), key=key)
    assert (inside["a"].most, inside["b"].most) == (1, 1)
    done = asyncio.Event()
    async with ThrottledTaskGroup(group, key=lambda coro: coro.__name__) as tasks:
        _ = tasks.create_task(done.wait())
        await until(group["wait"].locked)
        _ = tasks.create_task(job("a"), key="a")
        done.set()
    assert inside["a"].began == 5


async def test_what_create_task_refuses_is_closed(
    backend: MemoryBackend, sem: FairSemaphore
) -> None:
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


# -- throttled_map


async def echo(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def endless() -> AsyncIterator[int]:
    for number in itertools.count():
        await asyncio.sleep(0)
        yield number


async def test_a_map_gives_each_result_once(sem: FairSemaphore, load: Load) -> None:
    async def double(number: int) -> int:
        async with load:
            await asyncio.sleep(random.random() / 1000)
            return 2 * number

    async with throttled_map(sem, double, range(50)) as results:
        found = [result async for result in results]
    assert sorted(found) == [2 * n for n in range(50)]
    assert load.most == 2


async def test_results_come_as_they_are_ready(sem: FairSemaphore) -> None:
    """A slow item holds up nobody who waits for another."""
    slow = asyncio.Event()

    async def wait_for_it(number: int) -> int:
        if number == 0:
            await slow.wait()
        return number

    async with throttled_map(sem, wait_for_it, range(4)) as results:
        found = [await anext(results) for _ in range(3)]
        slow.set()
        found += [result async for result in results]
    assert found == [1, 2, 3, 0]


@pytest.mark.parametrize("items", [(), iter(()), range(0)], ids=["tuple", "iterator", "range"])
async def test_a_map_over_nothing_is_over(sem: FairSemaphore, items: Any) -> None:
    async with throttled_map(sem, echo, items) as results:
        assert [result async for result in results] == []
        assert [result async for result in results] == []


async def test_progress_counts_what_is_done(sem: FairSemaphore) -> None:
    """With a total where there is one; before the result is given."""
    told: list[tuple[int, int | None]] = []

    def on_progress(done: int, total: int | None) -> None:
        told.append((done, total))

    async with throttled_map(sem, echo, range(5), on_progress=on_progress) as results:
        seen = [(len(told), result) async for result in results]
    assert told == [(done, 5) for done in range(1, 6)]
    assert all(done >= number for number, (done, _) in enumerate(seen, 1))
    told.clear()
    async with throttled_map(sem, echo, iter([1, 2]), on_progress=on_progress) as results:
        _ = [result async for result in results]
    assert told == [(1, None), (2, None)]


@pytest.mark.parametrize("taken", range(8))
async def test_a_break_leaves_no_task_behind(sem: FairSemaphore, load: Load, taken: int) -> None:
    """At once, too; and the generator of the items has cleaned up when the block is left."""
    closed = False

    async def items() -> AsyncIterator[int]:
        nonlocal closed
        try:
            async for number in endless():
                yield number
        finally:
            await asyncio.sleep(0)
            closed = True

    async def job(number: int) -> int:
        async with load:
            await asyncio.sleep(0.001)
            return number

    async with throttled_map(sem, job, items()) as results:
        for _ in range(taken):
            await anext(results)
        if taken % 2:
            await asyncio.sleep(0.005)  # until everything stands still for want of a consumer
    assert closed or taken == 0
    assert load.now == 0
    assert [result async for result in results] == []


async def test_a_slow_consumer_holds_up_the_map_without_a_permit(
    sem: FairSemaphore, load: Load
) -> None:
    """Results that nobody takes are few, and the fleet's permits are not theirs."""
    pulled = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    async with throttled_map(sem, echo, items()) as results:
        await until(lambda: pulled == 4)  # twice the limit
        await all_free(sem)
        assert pulled == 4
        await anext(results)
        await until(lambda: pulled == 5)
        await all_free(sem)
        assert pulled == 5


async def test_no_more_items_are_taken_than_calls_may_run(sem: FairSemaphore) -> None:
    """Who waits in line holds one item each, and the rest is left for others."""
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            pulled.append(number)
            yield number

    async with sem, sem:  # nobody gets in
        async with throttled_map(sem, echo, items()):
            await waiting(sem, 2)
            assert pulled == [0, 1]
        pulled.clear()
        async with throttled_map(sem, echo, items(), max_tasks=5):
            await waiting(sem, 5)
            assert len(pulled) == 5
        pulled.clear()
        async with throttled_map(sem, echo, items(), permits=2):
            await waiting(sem, 1)
            assert len(pulled) == 1


@pytest.mark.release
@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore])
async def test_ten_thousand_of_endless_items_fit_into_little_memory(
    backend: MemoryBackend, kind: type[AnySemaphore]
) -> None:
    """Each item is large: whatever is kept for every one of them would show."""
    wide = kind(backend, "wide", 20)
    size = 10_000

    async def items() -> AsyncIterator[bytes]:
        while True:
            yield bytes(size)

    async def echo(item: bytes) -> bytes:
        await asyncio.sleep(0)
        return item

    grown: list[int] = []
    tracemalloc.start()
    try:
        async with throttled_map(wide, echo, items()) as results:
            async for count in _counted(results):
                if count % 2500 == 0:
                    tracemalloc.reset_peak() if count == 2500 else None
                    grown.append(tracemalloc.get_traced_memory()[0])
                if count == 10_000:
                    break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MiB, "10,000 items have 100 MB"
    assert grown[-1] - grown[0] < MiB / 2
    await all_free(wide)


async def _counted(results: AsyncIterator[object]) -> AsyncIterator[int]:
    count = 0
    async for _ in results:
        count += 1
        yield count


async def test_a_failing_call_ends_the_map_as_a_task_group_does(
    sem: FairSemaphore, load: Load
) -> None:
    """The other calls and the consumer are cancelled, and one flat group tells why."""

    async def job(number: int) -> int:
        async with load:
            if number == 7:
                raise ZeroDivisionError
            await asyncio.sleep(0.001)
            return number

    taken: list[int] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with throttled_map(sem, job, endless()) as results:
            async for result in results:
                taken += [result]
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
    assert len(taken) >= 5
    assert load.now == 0


async def test_a_failing_call_interrupts_a_consumer_that_does_something_else(
    sem: FairSemaphore,
) -> None:
    async def job(number: int) -> int:
        return 1 // number

    with pytest.raises(ExceptionGroup):
        async with throttled_map(sem, job, [0]), asyncio.timeout(2):
            await asyncio.sleep(5)


def broken(at: int) -> Iterator[int]:
    yield from range(at)
    raise ZeroDivisionError


async def broken_async(at: int) -> AsyncIterator[int]:
    for number in broken(at):
        yield number


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("items", [broken, broken_async])
async def test_items_that_fail_end_the_map(
    sem: FairSemaphore, items: Callable[[int], Any], at: int
) -> None:
    """Rather than to look like the end of the items."""
    with pytest.raises(ExceptionGroup) as caught:
        async with throttled_map(sem, echo, items(at)) as results:
            async for _ in results:
                pass
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


async def test_on_progress_that_fails_ends_the_map(sem: FairSemaphore) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with throttled_map(
            sem, echo, endless(), on_progress=lambda done, _: 1 // (3 - done)
        ) as results:
            async for _ in results:
                pass
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]


async def test_a_consumer_that_fails_ends_the_map(sem: FairSemaphore, load: Load) -> None:
    async def job(number: int) -> int:
        async with load:
            await asyncio.sleep(0.001)
            return number

    with pytest.raises(ExceptionGroup) as caught:
        async with throttled_map(sem, job, endless()) as results:
            await anext(results)
            raise KeyError
    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    assert load.now == 0


async def test_a_lost_permit_ends_the_map(sem: FairSemaphore) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with throttled_map(sem, asyncio.sleep, [5, 5, 5]):
            await until(sem.locked)
            assert await sem.release((await sem.status()).holders[0].id)
            await asyncio.sleep(5)
    assert [type(error) for error in caught.value.exceptions] == [PermitLost]


async def test_a_full_line_ends_the_map(backend: MemoryBackend) -> None:
    """Somebody else's waiters are there first."""
    narrow = FairSemaphore(backend, "narrow", 1, max_waiters=0)
    async with narrow:
        with pytest.raises(ExceptionGroup) as caught:
            async with throttled_map(narrow, echo, range(3)) as results:
                await anext(results)
    assert [type(error) for error in caught.value.exceptions] == [QueueFull]


async def test_a_call_that_ends_as_cancelled_has_no_result(sem: FairSemaphore) -> None:
    """And takes no room for ever: as in a task group, the others go on."""

    async def job(number: int) -> int:
        if number % 2:
            raise asyncio.CancelledError
        return number

    async with throttled_map(sem, job, range(40)) as results:
        assert [result async for result in results] == list(range(0, 40, 2))


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_cancelled_map_is_cancelled_and_no_more(sem: FairSemaphore, turns: int) -> None:
    """At whatever point."""

    async def run() -> None:
        async with throttled_map(sem, echo, endless()) as results:
            async for _ in results:
                await asyncio.sleep(0)

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert task.cancelled()


async def test_an_outer_deadline_reaches_the_consumer(sem: FairSemaphore) -> None:
    async with sem, sem:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                async with throttled_map(sem, echo, endless()) as results:
                    await anext(results)


async def test_a_generator_that_swallows_its_cancellation_starts_nothing_more(
    sem: FairSemaphore,
) -> None:
    """It is wrong to, and must not keep the map for ever."""
    began: list[int] = []

    async def stubborn() -> AsyncIterator[int]:
        for number in itertools.count():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5 if number == 3 else 0)
            yield number

    async def job(number: int) -> int:
        began.append(number)
        return number

    async with asyncio.timeout(2), throttled_map(sem, job, stubborn()) as results:
        for _ in range(3):
            await anext(results)
    assert began == [0, 1, 2]


async def test_several_consumers_share_the_results(sem: FairSemaphore) -> None:
    found: list[list[int]] = [[], [], []]

    async def consume(mine: list[int], results: AsyncIterator[int]) -> None:
        async for result in results:
            mine.append(result)
            await asyncio.sleep(0)

    async with throttled_map(sem, echo, range(30)) as results, asyncio.TaskGroup() as consumers:
        for mine in found:
            consumers.create_task(consume(mine, results))
    assert sorted(itertools.chain(*found)) == list(range(30))


async def test_a_consumer_in_another_task_learns_that_the_map_is_over(sem: FairSemaphore) -> None:
    async def wait_for_ever(_: int) -> int:
        await asyncio.Event().wait()
        return 1

    async def consume(results: AsyncIterator[int]) -> list[int]:
        return [result async for result in results]

    async with throttled_map(sem, wait_for_ever, [1]) as results:
        consumer = asyncio.create_task(consume(results))
        await asyncio.sleep(0)
    assert await soon(consumer) == []


async def test_a_generator_around_a_map_may_be_closed(sem: FairSemaphore) -> None:
    """As when whoever reads a streamed response has enough: that is no error."""

    async def load(item: int) -> int:
        await asyncio.sleep(0.001)
        return item

    async def stream() -> AsyncGenerator[int]:
        async with throttled_map(sem, load, itertools.count()) as results:
            async for result in results:
                yield result

    async with aclosing(stream()) as results:
        async for result in results:
            if result > 5:
                break
    assert await sem.available() == sem.limit


async def test_consumers_learn_of_a_failure_before_the_block_is_left(sem: FairSemaphore) -> None:
    """Its clean-up may wait for them, and they for results that will not come."""

    async def fail(item: int) -> int:
        raise ValueError(item)

    async def consume(results: AsyncIterator[int]) -> list[int]:
        return [result async for result in results]

    taken: list[list[int]] = []
    with pytest.raises(ExceptionGroup):
        async with asyncio.timeout(5), throttled_map(sem, fail, range(5)) as results:
            consumers = [asyncio.create_task(consume(results)) for _ in range(2)]
            try:
                await asyncio.sleep(60)
            finally:
                taken = await asyncio.gather(*consumers)
    assert taken == [[], []]


async def test_a_map_may_choose_from_a_group_of_semaphores(backend: MemoryBackend) -> None:
    """A busy key does not hold up the others."""
    group = SemaphoreGroup(backend, "domain", 1)
    inside = {"a": Load(), "b": Load()}

    async def job(item: tuple[str, int]) -> str:
        async with inside[item[0]]:
            await asyncio.sleep(0.002)
        return item[0]

    items = [("a", n) for n in range(10)] + [("b", n) for n in range(2)]
    async with throttled_map(group, job, items, key=lambda item: item[0]) as results:
        order = [result async for result in results]
    assert (inside["a"].most, inside["b"].most) == (1, 1)
    assert order[-1] == "a" != order[1]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"items": 3}, TypeError, "iterable or async iterable"),
        ({"on_progress": _anything}, TypeError, "plain function"),
        ({"max_tasks": 0}, ValueError, "max_tasks must be at least 1"),
        ({"max_tasks": True}, TypeError, "max_tasks must be an int"),
    ],
)
async def test_a_map_checks_its_arguments(
    sem: FairSemaphore, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        cast("Any", throttled_map)(sem, echo, **{"items": [], **arguments})


async def test_the_cap_holds_for_all_processes(redis: Redis, server_url: str, name: str) -> None:
    """Each of these clients is a process to the server."""
    load = Load()

    async def job(number: int) -> int:
        async with load:
            await asyncio.sleep(0.001)
        return number

    async def process() -> list[int]:
        async with (
            Redis.from_url(server_url) as own,
            throttled_map(FairSemaphore(own, name, 3), job, range(40)) as results,
        ):
            return [result async for result in results]

    found = await asyncio.gather(process(), process())
    assert [sorted(results) for results in found] == [list(range(40))] * 2
    assert load.most == 3
    await all_free(FairSemaphore(redis, name, 3))
