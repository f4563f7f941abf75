"""The example service, scraped by a real Prometheus: all panels have data, no rule an error."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, aclose
from tests.harness.servers import StartServer, stopped
from tests.harness.wait import until
from tests.integrations.operations.names import DASHBOARD, OPERATIONS

pytestmark = pytest.mark.timeout(240)

VARIABLES = {"$semaphore": ".*", "$__rate_interval": "20s", "$__range": "60s"}
OF_LOSSES = {"Permits lost, by reason"}
OF_AN_OUTAGE = {"Failed requests, by error", "Outages: failed reads of the status"}


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def panels() -> dict[str, list[str]]:
    """The queries of each panel, with the variables replaced."""
    queries: dict[str, list[str]] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            queries.setdefault(panel["title"], []).append(query)
    return queries


@asynccontextmanager
async def running(log: Path, *command: str, **environment: str) -> AsyncGenerator[None]:
    """A program, until the block is left."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=OPERATIONS, env=os.environ | environment, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


class Prometheus:
    """The parts of its HTTP interface that Grafana asks, and the rules."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.with_data: set[str] = set()

    async def _get(self, path: str, **parameters: str) -> Any:
        response = await self._client.get(f"/api/v1/{path}", params=parameters)
        return response.raise_for_status().json()["data"]

    async def look(self) -> None:
        """Remember which panels have data now, for each of their queries."""
        for title, queries in panels().items():
            results = [(await self._get("query", query=query))["result"] for query in queries]
            if all(results):
                self.with_data.add(title)
        await asyncio.sleep(0.5)

    async def rules(self) -> dict[str, tuple[str, str]]:
        """Health and state of each rule."""
        groups = (await self._get("rules"))["groups"]
        return {
            rule["name"]: (rule["health"], rule["state"])
            for group in groups
            for rule in group["rules"]
        }

    async def until_data(self, titles: set[str]) -> None:
        async def there() -> bool:
            await self.look()
            return titles <= self.with_data

        await until(there, f"data in {titles}", within=60)


async def lose_all_permits(url: str) -> None:
    """As `redsem-async delete` does."""
    redis = Redis.from_url(url)
    await FairSemaphore(redis, "tenant:acme", 1).delete()
    await aclose(redis)
    await redis.aclose()


async def test_every_panel_has_data(embedded: StartServer, tmp_path: Path) -> None:
    """While requests run, when permits were lost, and in an outage."""
    server = embedded()
    first, second, *scraped, port = free_ports(5)
    config = (OPERATIONS / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("service-1:9464", f"127.0.0.1:{scraped[0]}")
    config = config.replace("service-2:9464", f"127.0.0.1:{scraped[1]}")
    config = config.replace("alerts.yml", str(OPERATIONS / "prometheus" / "alerts.yml"))
    file = tmp_path / "prometheus.yml"
    file.write_text(config.replace(": 5s", ": 1s"))

    uvicorn = [sys.executable, "-m", "uvicorn", "service:app", "--log-level", "warning"]
    prometheus = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    services = f"http://127.0.0.1:{first},http://127.0.0.1:{second}"

    def service(at: int, metrics: int) -> Any:
        log, options = tmp_path / f"service-{at}.log", ["--port", str(at)]
        metrics_port = {"METRICS_PORT": str(metrics)}
        return running(log, *uvicorn, *options, REDIS_URL=server.url, **metrics_port)

    async with (
        service(first, scraped[0]),
        service(second, scraped[1]),
        running(tmp_path / "prometheus.log", *prometheus),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):

        async def ready() -> bool:
            try:
                return (await client.get("/-/ready")).is_success
            except httpx.TransportError:
                return False

        await until(ready, "Prometheus is ready", within=30)
        asked = Prometheus(client)
        traffic = [sys.executable, "traffic.py"]
        async with running(tmp_path / "traffic.log", *traffic, SERVICES=services):
            await asked.until_data(set(panels()) - OF_LOSSES - OF_AN_OUTAGE)
            await lose_all_permits(server.url)
            await asked.until_data(OF_LOSSES)
            with stopped(server):
                await asked.until_data(OF_AN_OUTAGE)
            rules = await asked.rules()
    assert {health for health, _ in rules.values()} == {"ok"}
    firing = {name for name, (_, state) in rules.items() if state == "firing"}
    assert firing >= {"RedsemPermitsLost", "RedsemRequestsFail"}
    assert rules["RedsemRedisUnavailable"][1] in {"pending", "firing"}
