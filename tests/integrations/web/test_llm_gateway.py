"""docs/examples/llm_gateway.py in real uvicorns, asked with an SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from openai import AsyncOpenAI, RateLimitError
from redis.asyncio import Redis

from redsem_async import AnySemaphore, SemaphoreGroup
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, until, waiting
from tests.integrations.outbound.upstream import Upstream
from tests.integrations.web.uvicorns import RawClient, Uvicorn, serving

pytestmark = pytest.mark.release

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """The provider."""
    server = Upstream()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def redis(embedded: StartServer) -> AsyncIterator[Redis]:
    """A server of the example's own, for its names are fixed."""
    async with Redis.from_url(embedded().url) as client:
        yield client


@pytest.fixture
async def gateways(
    redis: Redis, upstream: Upstream, tmp_path: Path
) -> AsyncIterator[list[Uvicorn]]:
    """Two processes."""
    kwargs = redis.connection_pool.connection_kwargs
    environment = {
        "REDIS_URL": f"redis://{kwargs['host']}:{kwargs['port']}",
        "UPSTREAM": upstream.url,
        "UPSTREAM_KEY": "secret",
    }
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "--fd", "{fd}", "llm_gateway:app"]
    command += ["--timeout-graceful-shutdown", "5"]
    async with AsyncExitStack() as stack:
        made = [Uvicorn(tmp_path, *command, **environment) for _ in range(2)]
        yield [await stack.enter_async_context(serving(gateway)) for gateway in made]


def sdk(gateway: Uvicorn, tenant: str) -> AsyncOpenAI:
    """A client as the tenant's own programs have it."""
    return AsyncOpenAI(
        api_key="x",
        base_url=f"{gateway.url}/v1",
        default_headers={"X-Tenant": tenant},
        max_retries=0,
    )


async def asked(gateway: Uvicorn, tenant: str, model: str) -> str:
    """Ask, and read the answer to its end."""
    async with sdk(gateway, tenant) as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "?"}], stream=True
        )
        async with stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def tenant(redis: Redis, name: str) -> AnySemaphore:
    return SemaphoreGroup(redis, "tenant", 8)[name]


def model(redis: Redis, name: str) -> AnySemaphore:
    return SemaphoreGroup(redis, "model", 4)[name]


async def test_a_model_has_a_cap_that_all_gateways_share(
    gateways: list[Uvicorn], upstream: Upstream, redis: Redis
) -> None:
    """Whoever asks, and wherever."""
    asks = [
        asyncio.create_task(asked(gateways[number % 2], f"tenant {number}", "large"))
        for number in range(6)
    ]
    await until(lambda: upstream.inside == 4)
    await waiting(model(redis, "large"), 2)
    upstream.go.set()
    assert set(await asyncio.gather(*asks)) == {"Good morning"}
    assert upstream.most == 4
    await all_free(model(redis, "large"))


async def test_a_tenant_has_a_cap_and_stops_nobody_else(
    gateways: list[Uvicorn], upstream: Upstream, redis: Redis
) -> None:
    """It is told when to come back."""
    asks = [asyncio.create_task(asked(gateways[n % 2], "acme", "small")) for n in range(8)]
    await until(lambda: upstream.inside == 8)
    with pytest.raises(RateLimitError) as refused:
        await asked(gateways[0], "acme", "small")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    other = asyncio.create_task(asked(gateways[0], "other", "small"))
    await until(lambda: upstream.inside == 9)
    upstream.go.set()
    assert set(await asyncio.gather(other, *asks)) == {"Good morning"}
    await all_free(tenant(redis, "acme"))


async def test_a_client_that_leaves_gives_both_permits_back(
    gateways: list[Uvicorn], upstream: Upstream, redis: Redis
) -> None:
    """And the provider need not go on talking."""
    body = json.dumps({"model": "large", "stream": True}).encode()
    length = f"Content-Length: {len(body)}".encode()
    headers = (b"X-Tenant: acme", b"Content-Type: application/json", length)
    path = "/v1/chat/completions"
    client = await RawClient.send(gateways[0], b"POST", path, *headers, body=body)
    assert await client.status() == 200
    assert await model(redis, "large").available() == 3
    await client.hang_up(reset=True)
    await all_free(model(redis, "large"))
    await all_free(tenant(redis, "acme"))


async def test_a_gateway_that_is_stopped_leaves_nothing_held(
    gateways: list[Uvicorn], upstream: Upstream, redis: Redis
) -> None:
    """SIGTERM lets an answer be sent to its end."""
    ask = asyncio.create_task(asked(gateways[0], "acme", "large"))
    await until(lambda: upstream.inside == 1)
    gateways[0].terminate()
    await until(lambda: "Shutting down" in gateways[0].log)
    upstream.go.set()
    assert await ask == "Good morning"
    assert await gateways[0].ended() == -15
    status = await model(redis, "large").status()
    assert (status.held, status.waiting) == (0, 0)
