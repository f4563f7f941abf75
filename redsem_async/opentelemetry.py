"""OpenTelemetry metrics and spans of semaphores, with one call when the program starts.

```python
from redsem_async.opentelemetry import instrument

instrument()
```

`report_status` adds what Redis keeps for chosen semaphores, which is the limit, what a back-off
leaves of it, the permits held by all processes, waiting requests, the oldest wait and what is left
of each rate.
"""

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn, final
from weakref import WeakValueDictionary

from ._api.semaphore import AnySemaphore
from ._integrations.outage import OnOutage, OutageObserver
from ._protocol.views import in_force
from .observer import Event, Observation, observe

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        get_meter,
        get_meter_provider,
    )
    from opentelemetry.metrics import Observation as Measurement
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider, get_tracer
except ImportError as _missing:
    raise ImportError(
        "redsem_async.opentelemetry needs opentelemetry-api: pip install 'redsem-async[otel]'"
    ) from _missing

__all__ = ["instrument", "report_status"]

_NAME = "redsem_async"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Attributes = dict[str, str | int]
Sums = defaultdict[str, float]  # by the name of a rate


def instrument(
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    spans: bool = True,
    metric_name: Callable[[str], str] = str,
    metric_key: Callable[[str], str | None] | None = None,
) -> Observation:
    """Record metrics and spans of this process's semaphores, until the result is stopped.

    Without an OpenTelemetry SDK they are discarded.

    Args:
        meter_provider: instead of the global one.
        tracer_provider: instead of the global one.
        spans: whether to record two spans for each permit, one of waiting and one of holding.
        metric_name: a function from the name of a semaphore to its name in metrics. If there are
            many names, such as one for each tenant, map them to a few, because each costs memory
            in the metrics server. Spans have the name unchanged.
        metric_key: a function from the ``key`` of a request to the attribute ``redsem.key`` of
            its metrics, such as a tenant's plan, or ``None`` for no attribute. With few tenants
            it may be ``str``. Spans then have the key unchanged. Without this function neither
            metrics nor spans have any key.
    """
    telemetry = _Telemetry(meter_provider, tracer_provider, metric_name, metric_key, spans=spans)
    return observe(telemetry, keys=metric_key is not None)


async def report_status(
    semaphores: Iterable[AnySemaphore],
    *,
    interval: float = 15.0,
    meter_provider: MeterProvider | None = None,
    metric_name: Callable[[str], str] = str,
) -> NoReturn:
    """Read the status of *semaphores* from Redis at intervals, for metrics, until cancelled.

    Run it as a task, once in a process. One process of a service is enough, and more do no harm,
    because each reports the same totals. It costs one command for each semaphore and interval.

    When a status could not be read, ``redsem.status.errors`` counts it, and its values are not
    reported. No value but the age is reported when the last round is older than two intervals.

    Args:
        semaphores: a list or another collection, iterated again for each round. Those of a
            ``SemaphoreGroup`` may be added and removed.
        interval: seconds between two rounds.
        meter_provider: instead of the global one.
        metric_name: as for ``instrument``. Of semaphores with the same name in metrics, the
            sums are reported, and the longest of the oldest waits.

    Raises:
        ValueError: *interval* is not positive.
    """
    if not interval > 0:
        raise ValueError(f"interval must be positive, not {interval}")
    gauges = _Gauges.of(meter_provider)
    status = _StatusRun(gauges, metric_name, interval)
    gauges.runs.add(status)
    try:
        while True:
            await status.read(list(semaphores))
            await asyncio.sleep(interval)
    finally:
        gauges.runs.discard(status)


@dataclass(slots=True)
class _Totals:
    """The status of the semaphores that have one name in metrics."""

    limit: int = 0
    in_force: int = 0
    held: int = 0
    waiting: int = 0
    oldest: float = 0.0
    available: Sums = field(default_factory=lambda: Sums(float))
    burst: Sums = field(default_factory=lambda: Sums(float))


@final
class _Gauges:
    """The instruments of one meter provider. Their callbacks may run in a thread of the SDK.

    A provider keeps the first instrument of a name, with its callbacks, forever. These therefore
    serve all runs of `report_status`, at once and one after the other.
    """

    _of_providers: ClassVar["WeakValueDictionary[int, _Gauges]"] = WeakValueDictionary()

    def __init__(self, provider: MeterProvider) -> None:
        self.runs: set[_StatusRun] = set()
        meter = get_meter(_NAME, meter_provider=provider)
        self.errors = meter.create_counter(
            "redsem.status.errors", "{error}", "Failed reads of a status"
        )

        def gauge(name: str, unit: str, text: str, value: Callable[[_Totals], float]) -> None:
            def observed(_: CallbackOptions) -> Iterable[Measurement]:
                for run in list(self.runs):
                    yield from run.observed(value)

            meter.create_observable_gauge(f"redsem.status.{name}", [observed], unit, text)

        gauge("limit", "{permit}", "The set or declared limit", lambda reading: reading.limit)
        text = "The limit, or what a back-off leaves of it"
        gauge("limit_in_force", "{permit}", text, lambda reading: reading.in_force)
        gauge("held", "{permit}", "Permits held by all processes", lambda reading: reading.held)
        text = "Requests waiting in all processes"
        gauge("waiting", "{request}", text, lambda reading: reading.waiting)
        gauge(
            "oldest_wait",
            "s",
            "Age of the first request in the queue",
            lambda reading: reading.oldest,
        )

        def rate_gauge(name: str, text: str, values: Callable[[_Totals], Sums]) -> None:
            def observed(_: CallbackOptions) -> Iterable[Measurement]:
                for run in list(self.runs):
                    yield from run.observed_rates(values)

            meter.create_observable_gauge(f"redsem.rate.{name}", [observed], "", text)

        text = "What is left of a rate, negative for a debt"
        rate_gauge("available", text, lambda reading: reading.available)
        rate_gauge("burst", "The burst of a rate", lambda reading: reading.burst)
        meter.create_observable_gauge(
            "redsem.status.age", [self._age], "s", "Time since all statuses were last read"
        )

    @classmethod
    def of(cls, provider: MeterProvider | None) -> "_Gauges":
        """The instruments of *provider*, or of the global one, whose callbacks keep them alive."""
        provider = provider or get_meter_provider()
        gauges = cls._of_providers.get(id(provider))
        if gauges is None:
            gauges = cls._of_providers[id(provider)] = cls(provider)
        return gauges

    def _age(self, _: CallbackOptions) -> Iterable[Measurement]:
        ages = [run.age for run in list(self.runs) if run.age is not None]
        if ages:
            yield Measurement(max(ages))


@final
class _StatusRun:
    """What one run of `report_status` has read."""

    def __init__(
        self, gauges: _Gauges, metric_name: Callable[[str], str], interval: float
    ) -> None:
        self._errors = gauges.errors
        self._metric_name = metric_name
        self._fresh = 2 * interval
        self._readings: dict[str, _Totals] = {}  # replaced, never changed
        self._round_at: float | None = None
        self._complete_at: float = time.monotonic()

    async def read(self, semaphores: list[AnySemaphore]) -> None:
        """Read all semaphores, one after the other, so that a round is no burst of commands."""
        readings: dict[str, _Totals] = {}
        complete = True
        for semaphore in semaphores:
            name = self._metric_name(semaphore.name)
            try:
                status = await semaphore.status(max_entries=1)
            except Exception as error:  # noqa: BLE001 - the others are read all the same
                complete = False
                self._errors.add(1, {"redsem.semaphore": name, "error.type": _type(error)})
                continue
            reading = readings.setdefault(name, _Totals())
            reading.limit += status.limit
            reading.in_force += in_force(status.limit, status.back_off)
            reading.held += status.held
            reading.waiting += status.waiting
            reading.oldest = max(reading.oldest, status.oldest_wait or 0.0)
            for rate, left in status.rates.items():
                reading.available[rate] += left.available
                reading.burst[rate] += left.burst
        self._readings = readings
        self._round_at = time.monotonic()
        if complete:
            self._complete_at = self._round_at

    def observed(self, value: Callable[[_Totals], float]) -> Iterable[Measurement]:
        """One value for each name, unless the last round is too long ago."""
        for name, reading in self._recent.items():
            yield Measurement(value(reading), {"redsem.semaphore": name})

    def observed_rates(self, values: Callable[[_Totals], Sums]) -> Iterable[Measurement]:
        """The same for each name and rate."""
        for name, reading in self._recent.items():
            for rate, value in values(reading).items():
                yield Measurement(value, {"redsem.semaphore": name, "redsem.rate": rate})

    @property
    def _recent(self) -> dict[str, _Totals]:
        if self._round_at is None or time.monotonic() - self._round_at > self._fresh:
            return {}
        return self._readings

    @property
    def age(self) -> float | None:
        """Seconds since all were read. ``None`` before the first round."""
        return None if self._round_at is None else time.monotonic() - self._complete_at


@final
class _Telemetry(OutageObserver):
    def __init__(
        self,
        meter_provider: MeterProvider | None,
        tracer_provider: TracerProvider | None,
        metric_name: Callable[[str], str],
        metric_key: Callable[[str], str | None] | None,
        *,
        spans: bool,
    ) -> None:
        self._metric_name = metric_name
        self._metric_key = metric_key
        self._tracer = get_tracer(_NAME, tracer_provider=tracer_provider) if spans else None
        self._holding: dict[str, Span] = {}  # by the permit's id
        # An end is counted with the attributes of its beginning, because metric_key may return
        # another value by then. Waiting requests of the same name and key are alike.
        self._waits_as: defaultdict[tuple[str, str | None], deque[Attributes]] = defaultdict(deque)
        self._held_as: dict[str, Attributes] = {}  # by the permit's id
        self._lock = threading.Lock()  # event loops may run in several threads
        meter = get_meter(_NAME, meter_provider=meter_provider)
        self._acquire = meter.create_histogram(
            "redsem.acquire.duration",
            "s",
            "How long requests took, by outcome",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._hold = meter.create_histogram(
            "redsem.permit.duration",
            "s",
            "How long permits were held, by how they ended",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._waiting = meter.create_up_down_counter(
            "redsem.requests.waiting", "{request}", "Waiting requests of this process"
        )
        self._held = meter.create_up_down_counter(
            "redsem.permits.held", "{permit}", "Permits held by this process"
        )
        self._reclaimed = meter.create_counter(
            "redsem.reclaimed", "{entry}", "Expired holders and dead waiters that reap() removed"
        )
        self._back_offs = meter.create_counter(
            "redsem.back_offs",
            "{back_off}",
            "Back-offs that this process began, one of a semaphore a second at most",
        )
        self._outages = meter.create_counter(
            "redsem.outages", "{change}", "Outages of Redis that made on_outage apply, or ended"
        )

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "queued":
                attributes = self._attributes(event)
                with self._lock:
                    self._waits_as[event.name, event.key].append(attributes)
                self._waiting.add(1, attributes)
            case "granted":
                self._request_ended("granted", event)
                self._granted(event)
            case "abandoned":
                self._request_ended("abandoned", event)
            case "shed":
                self._request_ended(event.reason or "shed", event, "no permit was free")
            case "failed":
                of_type: Attributes = {"error.type": _type(event.error)}
                self._request_ended("failed", event, str(event.error), of_type)
            case "released" | "detached":
                self._permit_ended(event)
            case "lost":
                reason = event.reason or ""
                self._permit_ended(event, f"lost: {reason}", {"redsem.reason": reason})
            case "reclaimed":
                self._reclaimed.add(event.count or 0, self._attributes(event))
            case "backed_off":
                self._back_offs.add(1, self._attributes(event))
            case "refreshed":
                pass

    def _request_ended(
        self,
        what: str,
        event: Event,
        error: str | None = None,
        more: Attributes | None = None,
    ) -> None:
        waited, permits = event.waited or 0.0, event.permits or 0
        attributes = self._attributes(event)
        if event.queued:
            self._waiting.add(-1, self._waited_as(event))
        outcome: Attributes = {"redsem.outcome": what, **(more or {})}
        self._acquire.record(waited, {**attributes, **outcome})
        if self._tracer is not None:
            now = time.time_ns()
            span = self._tracer.start_span(
                "redsem.acquire",
                attributes={**_facts(event), **outcome, "redsem.permits": permits},
                start_time=now - int(waited * 1e9),
            )
            _end(span, error, now)

    def _waited_as(self, event: Event) -> Attributes:
        with self._lock:
            alike = self._waits_as[event.name, event.key]
            attributes = alike.popleft()
            if not alike:
                del self._waits_as[event.name, event.key]
        return attributes

    def _granted(self, event: Event) -> None:
        permit_id, permits = event.permit_id or "", event.permits or 0
        attributes = self._held_as[permit_id] = self._attributes(event)
        self._held.add(permits, attributes)
        if self._tracer is not None:
            facts = _facts(event)
            facts |= {"redsem.permits": permits, "redsem.fencing_token": event.fencing_token or 0}
            self._holding[permit_id] = self._tracer.start_span("redsem.hold", attributes=facts)

    def _permit_ended(
        self,
        event: Event,
        error: str | None = None,
        more: Attributes | None = None,
    ) -> None:
        permit_id = event.permit_id or ""
        attributes = self._held_as.pop(permit_id)
        end: Attributes = {"redsem.end": event.kind, **(more or {})}
        self._held.add(-(event.permits or 0), attributes)
        self._hold.record(event.held or 0.0, {**attributes, **end})
        span = self._holding.pop(permit_id, None)
        if span is not None:
            span.set_attributes(end)
            _end(span, error)

    def outage_changed(self, name: str, rule: OnOutage, *, began: bool) -> None:
        facts: Attributes = {
            "redsem.semaphore": self._metric_name(name),
            "redsem.on_outage": str(rule),
            "redsem.change": "began" if began else "ended",
        }
        self._outages.add(1, facts)

    def _attributes(self, event: Event) -> Attributes:
        facts = {**_facts(event), "redsem.semaphore": self._metric_name(event.name)}
        key = facts.pop("redsem.key", None)
        if isinstance(key, str) and self._metric_key is not None:
            told = self._metric_key(key)
            if told is not None:
                facts["redsem.key"] = told
        return facts


def _facts(event: Event) -> Attributes:
    facts: Attributes = {"redsem.semaphore": event.name, "redsem.mode": event.mode}
    if event.key is not None:
        facts["redsem.key"] = event.key
    return facts


def _type(error: Exception | None) -> str:
    return type(error).__qualname__


def _end(span: Span, error: str | None, at: int | None = None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(at)
