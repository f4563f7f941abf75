"""A service with a limit for each tenant, and its metrics for Prometheus on a port of their own.

    pip install 'redsem-async[fastapi,otel]' -r requirements.txt
    export REDIS_URL=redis://localhost:6379
    METRICS_PORT=9464 uvicorn service:app --port 8000

One process for each container (or port), because Prometheus has to scrape each process by itself.
The metrics are served by a thread: a scrape is answered although the event loop is blocked.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import (  # pyright: ignore[reportMissingImports]
    PrometheusMetricReader,
)
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from redis.asyncio import Redis

from redsem_async import Permit, SemaphoreGroup, aclose
from redsem_async.fastapi import RequirePermit
from redsem_async.opentelemetry import instrument, report_status

LIMITS = {"acme": 4, "umbrella": 2}  # permits for each tenant, across all processes

redis = Redis.from_url(os.environ["REDIS_URL"])
tenants = SemaphoreGroup(redis, "tenant", lambda tenant: LIMITS.get(tenant, 1), max_waiters=20)
known = {tenants.name_of(tenant) for tenant in LIMITS}
turn = RequirePermit(  # your authentication sets the header
    tenants, key=lambda request: request.headers.get("x-tenant", ""), timeout=2
)


def name_in_metrics(name: str) -> str:
    """Unknown tenants share one name: clients must not be able to add time series."""
    return name if name in known else "tenant:other"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Serve metrics while the service runs, and release all permits when it ends."""
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    start_http_server(int(os.environ.get("METRICS_PORT", "9464")))
    instrument(spans=False, metric_name=name_in_metrics)
    reporting = asyncio.create_task(
        report_status([tenants[tenant] for tenant in LIMITS], interval=5)
    )
    yield
    reporting.cancel()
    await aclose(redis, drain=2.0)
    await redis.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/work", responses=turn.responses)
async def work(permit: Annotated[Permit, Depends(turn)]) -> dict[str, float]:
    """Hold a permit for as long as some work takes."""
    await asyncio.sleep(random.uniform(0.1, 0.5))
    return {"waited": permit.waited}
