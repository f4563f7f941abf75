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
    """Whichever tenant asks; a client that leaves gives the permits of model and tenant back."""
    body = json.dumps({"model": "large", "stream": True}).encode()
    length = f"Content-Length: {len(body)}".encode()
    headers = (b"X-Tenant: acme", b"Content-Type: application/json", length)
    path = "/v1/chat/completions"
    leaver = await RawClient.send(gateways[0], b"POST", path, *headers, body=body)
    assert await leaver.status() == 200
    asks = [
        asyncio.create_task(asked(gateways[number % 2], f"tenant {number}", "large"))
        for number in range(5)
    ]
    await waiting(model(redis, "large"), 2)
    assert upstream.most == 4
    await leaver.hang_up(reset=True)
    await waiting(model(redis, "large"), 1)
    await all_free(tenant(redis, "acme"))
    upstream.go.set()
    assert set(await asyncio.gather(*asks)) == {"Good morning"}
    await all_free(model(redis, "large"))


async def test_a_tenant_has_a_cap_and_stops_nobody_else(
    gateways: list[Uvicorn], upstream: Upstream, redis: Redis
) -> None:
    """A refusal says when to come back; SIGTERM lets answers be sent to their end."""
    asks = [asyncio.create_task(asked(gateways[n % 2], "acme", "small")) for n in range(8)]
    await until(lambda: upstream.inside == 8)
    with pytest.raises(RateLimitError) as refused:
        await asked(gateways[0], "acme", "small")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    asks.append(asyncio.create_task(asked(gateways[0], "other", "small")))
    await until(lambda: upstream.inside == 9)
    for gateway in gateways:
        gateway.terminate()
    await until(lambda: all("Shutting down" in gateway.log for gateway in gateways))
    upstream.go.set()
    assert set(await asyncio.gather(*asks)) == {"Good morning"}
    assert [await gateway.ended() for gateway in gateways] == [-15, -15]
    status = await tenant(redis, "acme").status()
    assert (status.held, status.waiting) == (0, 0)
