"""OpenTelemetry metrics and spans of semaphores: one call when the program starts.

```python
from redsem_async.opentelemetry import instrument

instrument()
```
"""

import time
from collections.abc import Callable
from typing import final

from ._observers.events import (
    Abandoned,
    Detached,
    Event,
    Failed,
    Granted,
    Lost,
    Observer,
    Outcome,
    PermitEvent,
    Queued,
    Reclaimed,
    Released,
    Shed,
)
from .observer import Observation, observe

try:
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider, get_tracer
except ImportError as _missing:
    raise ImportError(
        "redsem_async.opentelemetry needs opentelemetry-api: pip install 'redsem-async[otel]'"
    ) from _missing

__all__ = ["instrument"]

_NAME = "redsem_async"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Attributes = dict[str, str | int]


def instrument(
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    spans: bool = True,
    metric_name: Callable[[str], str] = str,
) -> Observation:
    """Record metrics and spans of this process's semaphores, until the result is stopped.

    docs/observability.md lists them. Without an OpenTelemetry SDK they are discarded.

    Args:
        meter_provider: instead of the global one.
        tracer_provider: instead of the global one.
        spans: whether to record spans: two for each permit, one of waiting and one of holding.
        metric_name: a function from the name of a semaphore to its name in metrics. If there are
            many names, one for each tenant for example, let it return few, because each costs
            memory in the metrics server. Spans have the name unchanged.
    """
    return observe(_Telemetry(meter_provider, tracer_provider, metric_name, spans=spans))


@final
class _Telemetry(Observer):
    def __init__(
        self,
        meter_provider: MeterProvider | None,
        tracer_provider: TracerProvider | None,
        metric_name: Callable[[str], str],
        *,
        spans: bool,
    ) -> None:
        self._metric_name = metric_name
        self._tracer = get_tracer(_NAME, tracer_provider=tracer_provider) if spans else None
        self._holding: dict[str, Span] = {}  # by the permit's id
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

    # -- requests

    def queued(self, event: Queued) -> None:
        self._waiting.add(1, self._attributes(event))

    def granted(self, event: Granted) -> None:
        self._came_to("granted", event)
        self._held.add(event.permits, self._attributes(event))
        if self._tracer is not None:
            facts: Attributes = {
                "redsem.permits": event.permits,
                "redsem.fencing_token": event.fencing_token,
            }
            self._holding[event.permit_id] = self._tracer.start_span(
                "redsem.hold", attributes={**_facts(event), **facts}
            )

    def abandoned(self, event: Abandoned) -> None:
        self._came_to("abandoned", event)

    def shed(self, event: Shed) -> None:
        self._came_to(event.reason, event, "no permit was free")

    def failed(self, event: Failed) -> None:
        self._came_to("failed", event, str(event.error))

    def _came_to(self, what: str, event: Outcome, error: str | None = None) -> None:
        attributes = self._attributes(event)
        if event.queued:
            self._waiting.add(-1, attributes)
        outcome: Attributes = {"redsem.outcome": what}
        self._acquire.record(event.waited, {**attributes, **outcome})
        if self._tracer is not None:
            now = time.time_ns()
            span = self._tracer.start_span(
                "redsem.acquire",
                attributes={**_facts(event), **outcome, "redsem.permits": event.permits},
                start_time=now - int(event.waited * 1e9),
            )
            _end(span, error, now)

    # -- permits

    def released(self, event: Released) -> None:
        self._ended("released", event)

    def detached(self, event: Detached) -> None:
        self._ended("detached", event)

    def lost(self, event: Lost) -> None:
        self._ended("lost", event, f"lost: {event.reason}")

    def _ended(self, how: str, event: PermitEvent, error: str | None = None) -> None:
        attributes = self._attributes(event)
        self._held.add(-event.permits, attributes)
        self._hold.record(event.held, {**attributes, "redsem.end": how})
        span = self._holding.pop(event.permit_id, None)
        if span is not None:
            span.set_attribute("redsem.end", how)
            _end(span, error)

    # -- semaphores

    def reclaimed(self, event: Reclaimed) -> None:
        self._reclaimed.add(event.count, self._attributes(event))

    def _attributes(self, event: Event | Reclaimed) -> Attributes:
        return {**_facts(event), "redsem.semaphore": self._metric_name(event.name)}


def _facts(event: Event | Reclaimed) -> Attributes:
    return {"redsem.semaphore": event.name, "redsem.mode": event.mode}


def _end(span: Span, error: str | None, at: int | None = None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(at)
