"""The numbers of every semaphore in Prometheus' text format.

The names are those that `redsem_async.opentelemetry.report_status` gets in Prometheus, so that
dashboards and alert rules fit both.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redsem_async._protocol.views import in_force
from redsem_async._tools.discovery import names
from redsem_async._tools.states import limit_of, rates_of

from ._reader import PAGE, READ_TIMEOUT, Reader
from ._reading import Reading
from ._views import matcher

FRESH = 1.0  # seconds for which one read serves all scrapes
MAX_NAMES = 2_000  # in one scrape
MAX_MATCHES = 20  # filters of a scrape


class Metrics:
    """Reads for scrapes, one at a time."""

    def __init__(self, redis: Any, prefix: str, chosen: Callable[[str], bool]) -> None:
        self._redis = redis
        self._prefix = prefix
        self._chosen = chosen
        self._lock = asyncio.Lock()
        self._readings: list[Reading] = []
        self._omitted = 0
        self._at = 0.0

    async def text(self, reader: Reader, words: list[str], accept: str) -> tuple[bytes, str]:
        """The metrics of the names that match one of *words*, and their content type.

        Raises:
            SemaphoreError, RedisError, OSError, TimeoutError: Redis cannot be read.
        """
        async with self._lock:
            if time.monotonic() - self._at > FRESH:
                await self._read(reader)
                self._at = time.monotonic()
        matchers = [matcher(some) for some in words[:MAX_MATCHES]] or [matcher("")]
        chosen = [
            reading
            for reading in self._readings
            if any(matches(reading.info.name) for matches in matchers)
        ]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(chosen, self._omitted))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    async def _read(self, reader: Reader) -> None:
        async with asyncio.timeout(READ_TIMEOUT):
            known = await names(self._redis, self._prefix)
        wanted = [name for name in known if self._chosen(name)]
        self._omitted = max(0, len(wanted) - MAX_NAMES)
        readings: list[Reading] = []
        for start in range(0, min(len(wanted), MAX_NAMES), PAGE):
            async with asyncio.timeout(READ_TIMEOUT):
                page = await reader.read_all(wanted[start : min(start + PAGE, MAX_NAMES)])
            readings += [reading for reading in page if reading is not None]
        self._readings = readings
        reader.forget_unused()


class _Collected(Collector):
    def __init__(self, readings: list[Reading], omitted: int) -> None:
        self._readings = readings
        self._omitted = omitted

    def collect(self) -> Iterable[Metric]:
        limit = _gauge("redsem_status_limit", "The set or declared limit")
        text = "The limit, or what a back-off leaves of it"
        lowered = _gauge("redsem_status_limit_in_force", text)
        held = _gauge("redsem_status_held", "Permits held by all processes")
        waiting = _gauge("redsem_status_waiting", "Requests waiting in all processes")
        oldest = _gauge(
            "redsem_status_oldest_wait_seconds", "Age of the first request in the queue"
        )
        text = "What is left of a rate, negative for a debt"
        available = _gauge("redsem_rate_available", text, "redsem_rate")
        burst = _gauge("redsem_rate_burst", "The burst of a rate", "redsem_rate")
        unreadable = 0
        for reading in self._readings:
            status, label = reading.status, [reading.info.name]
            if status is None:
                unreadable += 1
                continue
            most = limit_of(reading.info, status)
            if most is not None:
                limit.add_metric(label, most)
                lowered.add_metric(label, in_force(most, status.back_off))
            held.add_metric(label, status.held)
            waiting.add_metric(label, status.waiting)
            oldest.add_metric(label, status.oldest_wait or 0.0)
            for name, rate in rates_of(reading.info, status).items():
                available.add_metric([*label, name], rate.available)
                burst.add_metric([*label, name], rate.burst)
        yield from (limit, lowered, held, waiting, oldest, available, burst)
        yield GaugeMetricFamily(
            "redsem_status_unreadable", "Names whose status could not be read", unreadable
        )
        yield GaugeMetricFamily(
            "redsem_status_omitted", f"Names beyond the first {MAX_NAMES:,}", self._omitted
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["redsem_semaphore", *labels])
