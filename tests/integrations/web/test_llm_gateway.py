"""docs/examples/llm_gateway.py in real uvicorns, as clients and as the provider see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from openai import AsyncOpenAI, RateLimitError
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from redsem_async import FairSemaphore, Rate
from redsem_async.testing import EmbeddedRedis
from tests.harness import wait
from tests.harness.asgi import in_uvicorn
from tests.integrations.web.uvicorns import Uvicorn, serving

pytestmark = [pytest.mark.release, pytest.mark.timeout(240)]

A_MINUTE = 900_000  # tokens, of an estimate of about 1,000
LONG = 60.0  # seconds: two uvicorns start, on a machine that may be busy
until = partial(wait.until, within=LONG)
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def chunk(text: str) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}}]
    return f"data: {json.dumps({'choices': choices})}\n\n".encode()


async def ask(gateway: Uvicorn, tenant: str) -> str:
    """As the tenant's own programs ask."""
    url, headers = f"{gateway.url}/v1", {"X-Tenant": tenant}
    async with AsyncOpenAI(
        api_key="x", base_url=url, default_headers=headers, max_retries=0
    ) as client:
        stream = await client.chat.completions.create(
            model="large", messages=[{"role": "user", "content": "?"}], stream=True
        )
        async with stream:
            texts = [each.choices[0].delta.content async for each in stream if each.choices]
            return "".join(text or "" for text in texts)


async def test_models_and_tenants_have_caps_that_all_gateways_share(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    """Who is refused learns when to come back, and SIGTERM lets all end."""
    ends, inside = asyncio.Event(), list[int]()
    used = iter((*[100] * 5, A_MINUTE))  # by one response after another

    async def answer() -> AsyncIterator[bytes]:
        inside.append(1)
        yield chunk("Good ")
        await ends.wait()
        inside.pop()
        usage = json.dumps({"choices": [], "usage": {"total_tokens": next(used)}})
        yield chunk("morning") + f"data: {usage}\n\ndata: [DONE]\n\n".encode()

    async def call(_: object) -> StreamingResponse:
        return StreamingResponse(answer(), media_type="text/event-stream")

    provider = Starlette(routes=[Route("/{path:path}", call, methods=["POST"])])
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "--fd", "{fd}", "llm_gateway:app"]
    told = {"REDIS_URL": server.url, "UPSTREAM_KEY": "secret", "WAITING_PER_TENANT": "1"}
    async with AsyncExitStack() as stack:
        told["UPSTREAM"] = await stack.enter_async_context(in_uvicorn(provider))
        made = [Uvicorn(tmp_path, *command, **told) for _ in range(2)]
        one, other = [await stack.enter_async_context(serving(each)) for each in made]
        redis = await stack.enter_async_context(Redis.from_url(server.url))
        rate = {"tokens": Rate(A_MINUTE, per=60)}
        large = FairSemaphore(
            redis, "model:large", 4, key_limit=2, share=True, rate=rate, lease=60
        )
        asks = [asyncio.create_task(ask(each, "t")) for each in (one, other, one)]
        await wait.waiting(large, 1, LONG)
        await until(lambda: len(inside) == 2)
        with pytest.raises(RateLimitError) as refused:
            await ask(other, "t")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        asks += [asyncio.create_task(ask(other, tenant)) for tenant in ("acme", "acme", "globex")]
        await until(lambda: len(inside) == 4)
        await wait.waiting(large, 2, LONG)
        for gateway in (one, other):
            gateway.terminate()
        await until(lambda: all("Shutting down" in each.log for each in (one, other)))
        ends.set()
        assert {*await asyncio.gather(*asks)} == {"Good morning"}
        assert [await gateway.ended(LONG) for gateway in (one, other)] == [-15, -15]
        status = await large.status()
        assert (status.held, status.waiting) == (0, 0)
        tokens = status.rates["tokens"]
        assert tokens.available < 0, "what the last response said counts"
