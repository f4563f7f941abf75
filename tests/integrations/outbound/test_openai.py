"""An SDK that takes a client of its user, and knows nothing of semaphores."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import APITimeoutError, AsyncOpenAI
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from redsem_async import AcquireTimeout, FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.asgi import in_uvicorn
from tests.harness.wait import all_free, until, waiting


async def ask(client: AsyncOpenAI, say: Callable[[str], None]) -> None:
    """Ask for an answer that is streamed; *say* gets its parts as they come."""
    async with await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "?"}], stream=True
    ) as stream:
        async for chunk in stream:
            say(chunk.choices[0].delta.content or "")


async def test_openais_sdk_runs_under_the_cap(
    http: Any, leaf: Any, backend: MemoryBackend
) -> None:
    """Its streams hold their permits to the end, and a full queue is its timeout."""
    sem, go, said = FairSemaphore(backend, "openai", 2), asyncio.Event(), list[str]()

    async def words() -> AsyncIterator[str]:
        for word in ("Good", " morning"):
            yield f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n"
            await go.wait()
        yield "data: [DONE]\n\n"

    async def complete(_: object) -> StreamingResponse:
        return StreamingResponse(words(), media_type="text/event-stream")

    provider = Starlette(routes=[Route("/{path:path}", complete, methods=["POST"])])
    transport = leaf.SemaphoreTransport(sem)
    async with (
        in_uvicorn(provider) as url,
        http.AsyncClient(transport=transport) as own,
        AsyncOpenAI(api_key="x", base_url=url, http_client=own) as client,
    ):
        asked = [asyncio.create_task(ask(client, said.append)) for _ in range(4)]
        await until(lambda: len(said) == 2)
        await waiting(sem, 2)
        assert said == ["Good"] * 2, "two at a time"
        go.set()
        await asyncio.gather(*asked)
        assert sorted(said) == [" morning"] * 4 + ["Good"] * 4
        async with sem.acquire(permits=2):
            hurried = http.AsyncClient(transport=leaf.SemaphoreTransport(sem, timeout=0))
            async with client.with_options(http_client=hurried, max_retries=0) as busy:
                with pytest.raises(APITimeoutError) as timeout:
                    await ask(busy, said.append)
        assert isinstance(timeout.value.__cause__, AcquireTimeout)
    await all_free(sem)
