"""Metrics and spans, as an SDK receives them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    ModeMismatch,
    PermitLost,
    Rate,
    Semaphore,
)
from redsem_async.observer import Observation
from redsem_async.opentelemetry import instrument, report_status
from redsem_async.testing import MemoryBackend
from tests.harness.wait import cancelled, in_background, queue_up, until

Points = dict[tuple[str, ...], float]


class Collected:
    """A meter and a tracer, and what they were given."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))

    def instrument(self, **options: Any) -> Observation:
        """Have the library report here."""
        return instrument(meter_provider=self.meters, tracer_provider=self.tracers, **options)

    @asynccontextmanager
    async def reporting(self, *sems: AnySemaphore, **options: Any) -> AsyncGenerator[None]:
        """Have the status of *sems* reported here, until the block is left."""
        options = {"interval": 60, "meter_provider": self.meters, **options}
        task = in_background(report_status(sems, **options))
        yield
        await cancelled(task)

    def points(self, name: str) -> Points:
        """Counts or sums of the metric *name*, by the values of its attributes."""
        data = self._reader.get_metrics_data()
        found: Points = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "redsem_async"
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            facts: Any = point.attributes
                            key = tuple(facts[name] for name in sorted(facts))
                            if isinstance(point, NumberDataPoint):
                                found[key] = point.value
                            else:
                                found[key] = point.count
        return found

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    with made.instrument():
        yield made
    made.meters.shutdown()
    made.tracers.shutdown()


async def test_what_is_held_and_waits_is_counted_up_and_down(collected: Collected) -> None:
    """The two that a dashboard shows: they come back to nothing."""
    sem = FairSemaphore(MemoryBackend(), "jobs", 3)
    where = ("fair", "jobs")
    async with sem.acquire(permits=3):
        waiters = [asyncio.create_task(sem.acquire()) for _ in range(2)]
        await until(lambda: collected.points("redsem.requests.waiting") == {where: 2})
        assert collected.points("redsem.permits.held") == {where: 3}
    for waiter in waiters:
        await (await waiter).release()
    assert collected.points("redsem.permits.held") == {where: 0}
    assert collected.points("redsem.requests.waiting") == {where: 0}


async def test_durations_say_what_it_came_to_and_why(collected: Collected) -> None:
    """Granted and refused requests, released and lost permits; a trace shows at which step."""
    backend = MemoryBackend()
    sem = Semaphore(backend, "jobs", 1)
    async with sem:
        with pytest.raises(AcquireTimeout):
            await sem.acquire(timeout=0)
        await cancelled(await queue_up(sem))
        with pytest.raises(ModeMismatch):
            await FairSemaphore(backend, "jobs", 1).acquire()
    with pytest.raises(PermitLost):
        async with sem as permit:
            backend.lose(permit)
            await asyncio.Event().wait()
    revoked = "revoked: another process released or adopted it"
    assert collected.points("redsem.acquire.duration") == {
        ("zset", "granted", "jobs"): 2,
        ("zset", "timeout", "jobs"): 1,
        ("zset", "abandoned", "jobs"): 1,
        ("ModeMismatch", "fair", "failed", "jobs"): 1,
    }
    assert collected.points("redsem.permit.duration") == {
        ("released", "zset", "jobs"): 1,
        ("lost", "zset", revoked, "jobs"): 1,
    }
    _, timed_out, abandoned, failed, _ = [s.status for s in collected.spans("redsem.acquire")]
    assert timed_out.status_code is failed.status_code is trace.StatusCode.ERROR
    assert timed_out.description == "no permit was free"
    assert abandoned.status_code is trace.StatusCode.UNSET, "a cancellation is nobody's error"
    assert collected.spans("redsem.hold")[1].status.description == f"lost: {revoked}"


async def test_spans_are_children_of_the_callers(collected: Collected) -> None:
    """Waiting and holding, one after the other, beside what the caller does meanwhile."""
    tracer = collected.tracers.get_tracer("caller")
    sem = FairSemaphore(MemoryBackend(), "jobs", 1)
    with tracer.start_as_current_span("request") as request:
        first = await sem.acquire()
        waiter = await queue_up(sem)
        await first.release()
        permit = await waiter
        await permit.release()
    waited, held = collected.spans("redsem.acquire")[1], collected.spans("redsem.hold")[1]
    for span in (waited, held):
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.attributes is not None
        assert span.attributes["redsem.semaphore"] == "jobs"
        assert span.status.status_code is trace.StatusCode.UNSET
    assert waited.start_time is not None
    assert waited.end_time is not None
    assert held.start_time is not None
    assert waited.end_time - waited.start_time == pytest.approx(permit.waited * 1e9, abs=1e3)
    assert held.start_time >= waited.end_time
    assert held.attributes is not None
    assert held.attributes["redsem.fencing_token"] == permit.fencing_token
    assert permit.id not in str(held.attributes)


def until_colon(name: str) -> str:
    return name.partition(":")[0]


async def test_many_names_may_be_few_to_metrics() -> None:
    """A semaphore for each tenant is not a time series for each; spans and sums are exact."""
    collected, without, backend = Collected(), Collected(), MemoryBackend()
    Collected.instrument(stopped := Collected()).stop()
    with collected.instrument(metric_name=until_colon), without.instrument(spans=False):
        for tenant in ("tenant:a", "tenant:b"):
            async with FairSemaphore(backend, tenant, 1):
                pass
    assert collected.points("redsem.permit.duration") == {("released", "fair", "tenant"): 2}
    attributes = [span.attributes or {} for span in collected.spans("redsem.hold")]
    assert [facts["redsem.semaphore"] for facts in attributes] == ["tenant:a", "tenant:b"]
    assert len(without.points("redsem.permit.duration")) == 2
    assert stopped.points("redsem.permit.duration") == {}
    assert not without.spans("redsem.hold") and not stopped.spans("redsem.acquire")


async def test_keys_are_recorded_only_where_they_are_asked_for() -> None:
    """A tenant is not a time series, unless the user says so."""
    without, plans = Collected(), Collected()
    sem = FairSemaphore(MemoryBackend(), "llm", 2, key_limit=1)
    plan_of = {"acme": "gold", "beta": "gold"}.get
    with without.instrument(), plans.instrument(metric_key=plan_of):
        for key in ("acme", "beta", "unknown", None):
            async with sem.acquire(key=key):
                waiters = [await queue_up(sem, key=key)] if key else []
                await cancelled(*waiters)
    mode = "fair+keys"
    assert without.points("redsem.permit.duration") == {("released", mode, "llm"): 4}
    assert without.points("redsem.requests.waiting") == {(mode, "llm"): 0}
    assert plans.points("redsem.permit.duration") == {
        ("released", "gold", mode, "llm"): 2,
        ("released", mode, "llm"): 2,
    }
    assert plans.points("redsem.requests.waiting") == {("gold", mode, "llm"): 0, (mode, "llm"): 0}
    assert plans.points("redsem.permits.held") == {("gold", mode, "llm"): 0, (mode, "llm"): 0}
    for name in ("redsem.acquire", "redsem.hold"):
        facts = [dict(span.attributes or {}) for span in without.spans(name)]
        assert not any("redsem.key" in each for each in facts)
        told = {str((span.attributes or {}).get("redsem.key")) for span in plans.spans(name)}
        assert told == {"acme", "beta", "unknown", "None"}


async def test_what_counts_up_counts_down_again_although_a_plan_changes() -> None:
    collected = Collected()
    sem = FairSemaphore(MemoryBackend(), "llm", 1, key_limit=1)
    plan = "free"

    def plan_of(_: str) -> str:
        return plan

    with collected.instrument(metric_key=plan_of):
        async with sem.acquire(key="acme"):
            waiter = await queue_up(sem, key="acme")
            plan = "pro"
        await (await waiter).release()
    counted = {("free", "fair+keys", "llm"): 0}
    assert collected.points("redsem.requests.waiting") == counted
    assert collected.points("redsem.permits.held") == counted | {("pro", "fair+keys", "llm"): 0}


async def test_the_status_is_reported_for_all_processes(collected: Collected) -> None:
    """With the limit, what a back-off leaves of it, and how long the first in line has waited."""
    backend = MemoryBackend()
    rate = {"tokens": Rate(1, per=900, burst=10)}
    sems = [FairSemaphore(backend, f"tenant:{name}", 2, rate=rate) for name in "ab"]
    await sems[1].set_limit(5)
    permit = await sems[0].acquire(permits=2, cost=50)
    permit.back_off(0)
    waiter = await queue_up(sems[0], cost=1)
    async with collected.reporting(*sems, metric_name=until_colon):
        await until(lambda: collected.points("redsem.status.limit") == {("tenant",): 7})
        assert collected.points("redsem.status.limit_in_force") == {("tenant",): 6}
        assert collected.points("redsem.status.held") == {("tenant",): 2}
        assert collected.points("redsem.status.waiting") == {("tenant",): 1}
        assert collected.points("redsem.status.oldest_wait")[("tenant",)] >= 0
        assert collected.points("redsem.status.age")[()] < 60
        assert collected.points("redsem.rate.burst") == {("tokens", "tenant"): 20}
        [left] = collected.points("redsem.rate.available").values()
        assert left == pytest.approx(-30, abs=0.1)
        assert collected.points("redsem.status.errors") == {}
    assert collected.points("redsem.status.limit") == {}
    assert collected.points("redsem.status.age") == {}
    await cancelled(waiter)
    await permit.release()


async def test_the_status_is_reported_again_and_by_several_at_once(collected: Collected) -> None:
    """As where a supervisor starts the task again. One that cannot be read is an error."""
    backend = MemoryBackend()
    one, other, wrong = (FairSemaphore(backend, name, 1) for name in ("a", "b", "mistaken"))
    both, errors = {("a",): 1, ("b",): 1}, {("ModeMismatch", "mistaken"): 1}
    for _ in range(2):
        async with collected.reporting(one), collected.reporting(other):
            await until(lambda: collected.points("redsem.status.limit") == both)
        assert collected.points("redsem.status.limit") == {}
    async with Semaphore(backend, "mistaken", 1), collected.reporting(one, wrong):
        await until(lambda: collected.points("redsem.status.errors") == errors)
        await until(lambda: collected.points("redsem.status.limit") == {("a",): 1})


async def test_the_age_of_the_status_shows_a_blocked_event_loop(collected: Collected) -> None:
    """Metrics are collected in another thread: they must not show old values as if new."""
    sem = FairSemaphore(MemoryBackend(), "jobs", 1)
    async with collected.reporting(sem, interval=0.1):
        await until(lambda: collected.points("redsem.status.limit") == {("jobs",): 1})
        time.sleep(0.25)  # noqa: ASYNC251
        assert collected.points("redsem.status.limit") == {}
        assert collected.points("redsem.status.age")[()] >= 0.25


async def test_the_interval_of_reports_is_positive() -> None:
    """A task that never sleeps would block the event loop."""
    with pytest.raises(ValueError, match="interval must be positive, not 0"):
        await report_status([], interval=0)
