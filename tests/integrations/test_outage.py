"""`on_outage`, and the loss of a permit, in whatever takes one. Services are in `web`."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from redsem_async import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    ModeMismatch,
    Semaphore,
)
from redsem_async._integrations import outage
from redsem_async._integrations.selector import Selector
from redsem_async.httpx import SemaphoreTransport
from redsem_async.opentelemetry import instrument
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import ThrottledTaskGroup, throttled, throttled_map
from tests.harness.wait import cancelled, in_background, soon, until, waiting
from tests.integrations.background.load import Load

Job = Callable[[], Awaitable[None]]
Run = Callable[[Job], Awaitable[None]]
Make = Callable[..., Run]


def decorated(sem: FairSemaphore, **options: Any) -> Run:
    async def call(job: Job) -> None:
        await job()

    return throttled(sem, **options)(call)


def mapped(sem: FairSemaphore, **options: Any) -> Run:
    async def run(job: Job) -> None:
        async def call(_: int) -> None:
            await job()

        async with throttled_map(sem, call, [0], **options) as results:
            assert [result async for result in results] == [None]

    return run


def in_a_task_group(sem: FairSemaphore, **options: Any) -> Run:
    async def run(job: Job) -> None:
        async def call() -> None:
            await job()

        async with ThrottledTaskGroup(sem, **options) as group:
            _ = group.create_task(call())

    return run


def sent(sem: FairSemaphore, **options: Any) -> Run:
    jobs: dict[str, Job] = {}

    async def answer(request: httpx.Request) -> httpx.Response:
        await jobs[request.url.path]()
        return httpx.Response(200)

    transport = SemaphoreTransport(sem, httpx.MockTransport(answer), **options)

    async def run(job: Job) -> None:
        path = f"/{len(jobs)}"
        jobs[path] = job
        _ = await httpx.AsyncClient(transport=transport).get(f"http://upstream{path}")

    return run


FORMS = [decorated, mapped, in_a_task_group, sent]
# These are made anew for each run, and so know of no outage before theirs.
KEPT = [decorated, sent]


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    return FairSemaphore(backend, "jobs", 1)


async def outcome(run: Run, job: Job) -> None:
    """The run's, with the only error of a group."""
    try:
        await soon(run(job), within=10)
    except ExceptionGroup as group:
        [error] = group.exceptions
        raise error from None


@pytest.mark.parametrize("form", FORMS)
async def test_open_goes_without_one(
    form: Make, sem: FairSemaphore, backend: MemoryBackend
) -> None:
    """And with one as soon as there are any."""
    held: list[int] = []
    up = True

    async def holds() -> None:
        held.append((await sem.status()).held if up else 0)

    run = form(sem, timeout=0.05, on_outage="open")
    await outcome(run, holds)
    backend.down()
    up = False
    for _ in range(3):
        await outcome(run, holds)
    assert held == [1, 0, 0, 0]
    backend.up()
    up = True

    async def is_held() -> bool:
        await outcome(run, holds)
        return held[-1] == 1

    await until(is_held)


@pytest.mark.parametrize("form", [*KEPT, mapped, in_a_task_group])
async def test_a_number_run_at_once_and_the_others_after_them(
    form: Make, sem: FairSemaphore, backend: MemoryBackend
) -> None:
    """Of one group or map too: none fails because others were first."""
    load = Load()
    backend.down()
    if form in KEPT:
        run = form(sem, timeout=0.5, on_outage=2)
        async with asyncio.TaskGroup() as runs:
            for _ in range(9):
                runs.create_task(outcome(run, cast("Job", load.job)))
    elif form is mapped:
        options: dict[str, Any] = {"timeout": 0.3, "on_outage": 2, "max_tasks": 9}
        async with throttled_map(sem, load.job, range(9), **options) as results:
            assert sorted([result async for result in results]) == [*range(9)]
    else:
        async with ThrottledTaskGroup(sem, timeout=0.3, on_outage=2) as group:
            tasks = [group.create_task(load.job(n)) for n in range(9)]
        assert [task.result() for task in tasks] == [*range(9)]
    assert (load.began, load.most) == (9, 2)


@pytest.mark.parametrize("form", KEPT)
async def test_who_gets_no_place_in_time_gets_the_error(
    form: Make, sem: FairSemaphore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of Redis, which is why. Places come back; and so do permits, although nothing asks."""
    monkeypatch.setattr(outage, "ASK_AGAIN", 0.05)
    load = Load()
    run = form(sem, timeout=0.2, on_outage=1)
    backend.down()
    for _ in range(2):
        running = asyncio.create_task(outcome(run, load.stays))
        await until(lambda: load.now)
        with pytest.raises(BackendUnavailable):
            await outcome(run, load.stays)
        await cancelled(running)
        assert load.now == 0
    assert load.began == 2
    patient = form(sem, timeout=5.0, on_outage=1)
    first, second = (asyncio.create_task(outcome(patient, load.stays)) for _ in range(2))
    await until(lambda: load.now == 1, within=10)
    backend.up()
    await until(lambda: load.now == 2, within=10)
    assert (await sem.status()).held == 1
    await cancelled(first, second)


async def test_a_full_semaphore_ends_an_outage(
    sem: FairSemaphore, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an answer. Who waits then has no permit yet."""
    closed, opened = outage.Outage("closed"), outage.Outage("open")
    choice = Selector(sem, None, timeout=0.05, permits=1, cancel_on_loss=None, cost=None)()
    async with sem:
        backend.down()
        await asyncio.wait([in_background(each.acquire(choice)) for each in (closed, opened)])
        backend.up()
        await sem.status()  # it is connected
        with pytest.raises(AcquireTimeout):
            await closed.acquire(choice)
        waiter = in_background(opened.acquire(choice, 30.0))
        await waiting(sem, 1)
        assert [getattr(r, "redsem_event", "") for r in caplog.records].count(
            "on_outage over"
        ) == 2
        await cancelled(waiter)


@pytest.mark.parametrize("form", KEPT)
async def test_it_covers_whatever_redis_refuses(
    form: Make, sem: FairSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with full memory. But a name in another mode is a mistake of the program."""
    errors: list[Exception] = [BackendError("jobs", "OOM"), ModeMismatch("jobs", "zset", "fair")]

    async def refused(**_: object) -> None:
        raise errors[0]

    monkeypatch.setattr(sem, "acquire", refused)
    load = Load()

    async def job() -> None:
        async with load:
            pass

    run = form(sem, on_outage="open")
    await outcome(run, job)
    assert load.began == 1
    del errors[0]
    with pytest.raises(ModeMismatch):
        await outcome(run, job)
    monkeypatch.undo()
    async with sem:
        with pytest.raises(AcquireTimeout):
            await outcome(form(sem, timeout=0.01, on_outage="open"), job)


@pytest.mark.parametrize("rule", ["closed", "open", 3])
async def test_each_transition_is_logged_and_counted_once(
    backend: MemoryBackend, rule: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And an observer that fails changes nothing."""
    sem = Semaphore(backend, "jobs", 1)
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    run: Any = decorated(sem, timeout=0.05, on_outage=rule)  # type: ignore[arg-type]

    async def nothing() -> None: ...

    async def works() -> bool:
        try:
            await run(nothing)
        except BackendUnavailable:
            return False
        return True

    async def over(turns: int) -> bool:
        return await works() and events().count("on_outage over") == turns

    def events() -> list[str]:
        known = [getattr(record, "redsem_event", "") for record in caplog.records]
        return [event for event in known if event.startswith("on_outage")]

    def failing(_: str) -> str:
        raise ZeroDivisionError

    with instrument(meter_provider=meters), instrument(metric_name=failing):
        for turn in range(1, 3):
            backend.down()
            assert [await works() for _ in range(3)] == [rule != "closed"] * 3
            backend.up()
            await until(partial(over, turn))
    backend.down()
    assert await works() is (rule != "closed")
    assert events() == ["on_outage", "on_outage over"] * 2 + ["on_outage"]
    points: dict[Any, Any] = {}
    data: Any = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == "redsem.outages":
            points |= {tuple(p.attributes.values()): p.value for p in metric.data.data_points}
    assert points == {("jobs", str(rule), "began"): 2, ("jobs", str(rule), "ended"): 2}
    meters.shutdown()


def test_a_gate_may_be_used_in_one_event_loop_after_another() -> None:
    """As a decorated function of a module is in tests."""
    backend = MemoryBackend()
    load = Load()
    run = decorated(FairSemaphore(backend, "jobs", 1), timeout=0.2, on_outage=1)

    async def job() -> None:
        await load.job()

    async def main() -> None:
        await asyncio.gather(*(run(job) for _ in range(3)))

    backend.down()
    for _ in range(2):
        asyncio.run(main())
    assert (load.began, load.most) == (6, 1)


@pytest.mark.parametrize("form", FORMS)
async def test_work_goes_on_where_the_limit_caps_load(form: Make, sem: FairSemaphore) -> None:
    """It is chosen where the cap is, and not where the semaphore is made."""
    done: list[bool] = []

    async def job() -> None:
        [holder] = (await sem.status()).holders
        assert await sem.release(holder.id)
        await asyncio.sleep(0.01)
        done.append(True)

    await outcome(form(sem, cancel_on_loss=False), job)
    assert done
    with pytest.raises(TypeError, match="cancel_on_loss"):
        decorated(sem, cancel_on_loss=1)
