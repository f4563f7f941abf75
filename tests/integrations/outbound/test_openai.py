"""An SDK that takes a client of its user, and knows nothing of semaphores."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from openai import APITimeoutError, AsyncOpenAI

from redsem_async import AcquireTimeout, FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, until, waiting
from tests.integrations.outbound.upstream import Upstream


async def ask(client: AsyncOpenAI, say: Callable[[str], None]) -> None:
    """Ask for an answer that is streamed; *say* gets its parts as they come."""
    async with await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "?"}], stream=True
    ) as stream:
        async for chunk in stream:
            say(chunk.choices[0].delta.content or "")


async def test_openais_sdk_runs_under_the_cap(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Its streams hold their permits to the end, and a full queue is its timeout."""
    sem = FairSemaphore(backend, "openai", 2)
    async with AsyncOpenAI(
        api_key="x",
        base_url=f"{upstream.url}/v1",
        http_client=http.AsyncClient(transport=leaf.SemaphoreTransport(sem)),
    ) as client:
        said: list[str] = []
        asked = [asyncio.create_task(ask(client, said.append)) for _ in range(4)]
        await until(lambda: len(said) == 2)
        await waiting(sem, 2)
        upstream.go.set()
        await asyncio.gather(*asked)
        assert sorted(said) == [" morning"] * 4 + ["Good"] * 4
        assert upstream.most == 2
        async with sem.acquire(permits=2):
            hurried = http.AsyncClient(transport=leaf.SemaphoreTransport(sem, timeout=0))
            async with client.with_options(http_client=hurried, max_retries=0) as busy:
                with pytest.raises(APITimeoutError) as timeout:
                    await ask(busy, said.append)
        assert isinstance(timeout.value.__cause__, AcquireTimeout)
    await all_free(sem)
