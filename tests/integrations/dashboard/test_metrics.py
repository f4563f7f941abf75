"""The numbers for Prometheus."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Rate, Semaphore
from redsem_async.dashboard import _metrics, _reader
from redsem_async.opentelemetry import report_status
from redsem_async.testing import EmbeddedRedis
from tests.harness.wait import cancelled, in_background, until
from tests.integrations.cli.commands import queued
from tests.integrations.dashboard.conftest import Serve
from tests.integrations.dashboard.site import Site

HOSTILE = 'a"b\\c\nredsem_status_held 99\n# TYPE forged gauge'


async def scraped(site: Site, **query: str | list[str]) -> dict[tuple[str, str], float]:
    """The values, by the name of the metric and of the semaphore."""
    response = await site.http.get("metrics", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, sample.labels.get("redsem_semaphore", "")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_every_semaphore_has_its_numbers(site: Site, redis: Redis) -> None:
    """What is no semaphore is counted, and a name with quotes and line breaks is one label."""
    fair, plain = FairSemaphore(redis, "fair", 2), Semaphore(redis, HOSTILE, 5)
    await redis.set("redsem:{broken}:meta", "text")
    async with fair.acquire(permits=2) as permit, plain:
        permit.back_off(30)
        tasks = await queued(fair, 3)
        await plain.set_limit(4)
        values = await scraped(site)
        await cancelled(*tasks)
    assert values.pop(("redsem_status_oldest_wait_seconds", "fair")) > 0
    assert values == {
        ("redsem_status_limit", "fair"): 2,
        ("redsem_status_limit_in_force", "fair"): 0,
        ("redsem_status_held", "fair"): 2,
        ("redsem_status_waiting", "fair"): 3,
        ("redsem_status_limit", HOSTILE): 4,
        ("redsem_status_limit_in_force", HOSTILE): 4,
        ("redsem_status_held", HOSTILE): 1,
        ("redsem_status_waiting", HOSTILE): 0,
        ("redsem_status_oldest_wait_seconds", HOSTILE): 0,
        ("redsem_status_unreadable", ""): 1,
        ("redsem_status_omitted", ""): 0,
    }


@pytest.mark.parametrize(
    ("chosen", "match", "names"),
    [
        ("", ["b", "ma?l"], {"mail", "tenant:b"}),
        ("", "", {"mail", "tenant:a", "tenant:b"}),
        ("tenant:*", "", {"tenant:a", "tenant:b"}),
        ("", "tenant:*", {"tenant:a", "tenant:b"}),
        ("tenant:*", "b", {"tenant:b"}),
        ("tenant:*", "mail", set[str]()),
        ("mail".__eq__, "", {"mail"}),
    ],
)
async def test_names_are_chosen(
    chosen: Any, match: Any, names: set[str], serve: Serve, redis: Redis
) -> None:
    """Each name is a time series: by the service, and further by the scrape."""
    site = await serve(metrics=chosen)
    for name in ("mail", "tenant:a", "tenant:b"):
        await FairSemaphore(redis, name, 1).set_limit(1)
    values = await scraped(site, match=match)
    assert {name for _, name in values if name} == names


async def test_a_scrape_is_bounded(
    site: Site, redis: Redis, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many names it leaves out. Two that scrape are no more load than one."""
    monkeypatch.setattr(_metrics, "MAX_NAMES", 3)
    for number in range(5):
        await FairSemaphore(redis, f"name-{number}", 1).set_limit(1)
    scrapes = await asyncio.gather(*(scraped(site) for _ in range(10)))
    for values in scrapes:
        assert {name for _, name in values if name} == {"name-0", "name-1", "name-2"}
        assert values["redsem_status_omitted", ""] == 2
    stats: dict[str, Any] = await admin.info("commandstats")
    assert stats["cmdstat_scan"]["calls"] <= 2


async def test_names_that_are_gone_are_forgotten(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is scraped for months does not grow with each tenant that it served."""
    monkeypatch.setattr(_metrics, "FRESH", 0.0)
    monkeypatch.setattr(_reader, "INFO_AGE", 0.0)
    reader = _reader.Reader(redis, "redsem", 1.0)
    metrics = _metrics.Metrics(redis, "redsem", lambda _: True)
    for number in range(3):
        sem = FairSemaphore(redis, f"name-{number}", 1)
        await sem.set_limit(1)
        await metrics.text(reader, [], "")
        await sem.set_limit(None)
    assert len(reader._known) <= 1


async def test_an_outage_fails_the_scrape(
    own_client: Any, serve: Serve, server: EmbeddedRedis, redis: Redis
) -> None:
    """Prometheus then shows `up == 0`, and no old numbers."""
    site = await serve(own_client())
    server.kill()
    response = await site.http.get("metrics")
    assert response.status_code == 503


async def test_the_names_are_those_of_report_status(site: Site, redis: Redis) -> None:
    """One dashboard of Grafana and one set of alert rules fit both."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    sem = FairSemaphore(redis, "gpu", 2, rate=Rate(5))
    async with sem:
        task = in_background(report_status([sem], interval=60, meter_provider=provider))
        names: set[str] = set()

        def exported() -> bool:
            data = reader.get_metrics_data()
            if data is not None:
                for metric in data.resource_metrics[0].scope_metrics[0].metrics:
                    unit = "_seconds" if metric.unit == "s" else ""
                    names.add(metric.name.replace(".", "_") + unit)
            return "redsem_status_held" in names

        await until(exported)
        ours = {name for name, semaphore in await scraped(site) if semaphore}
        await cancelled(task)
    provider.shutdown()
    assert ours == names - {"redsem_status_age_seconds"}
