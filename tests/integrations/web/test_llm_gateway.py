"""docs/examples/llm_gateway.py in real uvicorns, as clients and as the provider see it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from openai import AsyncOpenAI, RateLimitError
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from redsem_async import FairSemaphore
from tests.harness import wait
from tests.harness.asgi import in_uvicorn
from tests.harness.servers import StartServer
from tests.integrations.web.uvicorns import RawClient, Uvicorn, serving

pytestmark = [pytest.mark.release, pytest.mark.timeout(240)]

LONG = 60.0  # seconds: two uvicorns and a thousand connections, on a machine that may be busy
until = partial(wait.until, within=LONG)
waiting = partial(wait.waiting, within=LONG)

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
LIMITS = {"large": 4, "small": 40, "acme": 8, "globex": 4}


class Provider:
    """The provider: counts the calls of each model and tenant, and ends them as it is told."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ended = self.left = 0
        self._ends = asyncio.Semaphore(0)  # one for each call that may end, the oldest first
        self._flowing = False
        self.url = ""
        self.app = Starlette(routes=[Route("/{path:path}", self._call, methods=["POST"])])

    async def _call(self, request: Request) -> StreamingResponse:
        asked = await request.json()
        answer = self._answer(asked["model"], asked["user"])
        return StreamingResponse(answer, media_type="text/event-stream")

    async def _answer(self, model: str, tenant: str) -> AsyncIterator[bytes]:
        self.inside += Counter([model, tenant])
        self.wrong += [name for name in (model, tenant) if self.inside[name] > LIMITS.get(name, 2)]
        try:
            yield chunk("Good ")
            await self._ends.acquire()
        except (asyncio.CancelledError, GeneratorExit):
            self.left += 1  # the client of the gateway has left
            raise
        finally:
            self.inside -= Counter([model, tenant])
        self.ended += 1
        if self._flowing:
            self._ends.release()
            await asyncio.sleep(0.01)  # a call takes some time
        yield chunk("morning") + b"data: [DONE]\n\n"

    def flow(self) -> None:
        """From now on, every call ends by itself."""
        self._flowing = True
        self._ends.release()


def chunk(text: str) -> bytes:
    """A part of the stream."""
    return (
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()
    )


@pytest.fixture
async def upstream() -> AsyncIterator[Provider]:
    """The provider."""
    provider = Provider()
    async with in_uvicorn(provider.app) as provider.url:
        yield provider


@pytest.fixture
async def redis(embedded: StartServer) -> AsyncIterator[Redis]:
    """A server of the example's own, for its names are fixed."""
    async with Redis.from_url(embedded().url) as client:
        yield client


@pytest.fixture
async def gateways(
    redis: Redis, upstream: Provider, tmp_path: Path
) -> AsyncIterator[list[Uvicorn]]:
    """Two processes."""
    kwargs = redis.connection_pool.connection_kwargs
    environment = {
        "REDIS_URL": f"redis://{kwargs['host']}:{kwargs['port']}",
        "UPSTREAM": upstream.url,
        "UPSTREAM_KEY": "secret",
        "WAITING_PER_TENANT": "1",
    }
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "--fd", "{fd}", "llm_gateway:app"]
    command += ["--timeout-graceful-shutdown", "5"]
    async with AsyncExitStack() as stack:
        made = [Uvicorn(tmp_path, *command, **environment) for _ in range(2)]
        yield [await stack.enter_async_context(serving(gateway)) for gateway in made]


async def asked_with_the_sdk(gateway: Uvicorn, tenant: str, model: str) -> str:
    """As the tenant's own programs ask."""
    async with AsyncOpenAI(
        api_key="x",
        base_url=f"{gateway.url}/v1",
        default_headers={"X-Tenant": tenant},
        max_retries=0,
    ) as client:
        stream = await client.chat.completions.create(
            model=model, user=tenant, messages=[{"role": "user", "content": "?"}], stream=True
        )
        async with stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def semaphore(redis: Redis, model: str) -> FairSemaphore:
    """That of the gateways. The lease is long, so the test may be slow to read a reply."""
    return FairSemaphore(redis, f"model:{model}", 4, key_limit=2, share=True, lease=60)


async def test_models_and_tenants_have_caps_that_all_gateways_share(
    gateways: list[Uvicorn], upstream: Provider, redis: Redis
) -> None:
    """Who leaves makes room, who is refused learns when to come back, and SIGTERM lets all end."""
    body = json.dumps({"model": "large", "user": "leaver", "stream": True}).encode()
    length = f"Content-Length: {len(body)}".encode()
    headers = (b"X-Tenant: leaver", b"Content-Type: application/json", length)
    path = "/v1/chat/completions"
    leaver = await RawClient.send(gateways[0], b"POST", path, *headers, body=body)
    assert await leaver.status() == 200
    await asyncio.wait_for(leaver.reader.readuntil(b"Good "), LONG)
    asks = [
        asyncio.create_task(asked_with_the_sdk(gateways[n % 2], f"tenant {n}", "large"))
        for n in range(4)
    ]
    await waiting(semaphore(redis, "large"), 1)
    await until(lambda: upstream.inside["large"] == 4)
    await leaver.hang_up(reset=True)
    await until(lambda: upstream.left == 1)
    await until(lambda: upstream.inside["large"] == 4)  # the fourth tenant came in
    asks += [
        asyncio.create_task(asked_with_the_sdk(gateways[n % 2], "acme", "small")) for n in range(9)
    ]
    await until(lambda: upstream.inside["acme"] == 8)
    await waiting(semaphore(redis, "small"), 1)
    with pytest.raises(RateLimitError) as refused:
        await asked_with_the_sdk(gateways[0], "acme", "small")
    assert int(refused.value.response.headers["retry-after"]) >= 1
    asks.append(asyncio.create_task(asked_with_the_sdk(gateways[0], "other", "small")))
    await until(lambda: upstream.inside["other"] == 1)
    assert upstream.ended == 0
    for gateway in gateways:
        gateway.terminate()
    await until(lambda: all("Shutting down" in gateway.log for gateway in gateways))
    upstream.flow()
    assert set(await asyncio.gather(*asks)) == {"Good morning"}
    assert [await gateway.ended(LONG) for gateway in gateways] == [-15, -15]
    for model in ("large", "small"):
        status = await semaphore(redis, model).status()
        assert (status.held, status.waiting, upstream.wrong) == (0, 0, [])
