"""The fronts of the web suite."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Semaphore, aclose
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.harness.clients import Connect
from tests.integrations.web.fronts import FORMS, Front, OnUvicorn

release = pytest.mark.release
FRONTS: list[Any] = [
    *(pytest.param((form, FairSemaphore, "memory"), id=form) for form in FORMS),
    *(
        pytest.param((form, kind, where), id=f"{form}-{name}", marks=release)
        for form in FORMS
        for kind, where, name in ((Semaphore, "memory", "zset"), (FairSemaphore, "redis", "redis"))
    ),
]


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    """One permit."""
    return FairSemaphore(backend, "web", 1)


@pytest.fixture(params=FRONTS)
async def front(request: pytest.FixtureRequest, connect: Connect) -> Front:
    """Each of them, in memory and on Redis."""
    form, kind, where = request.param
    if where == "memory":
        memory = MemoryBackend()
        return Front(form, kind, memory, memory.down, memory.up)
    server: EmbeddedRedis = request.getfixturevalue("server")
    return Front(form, kind, connect(server.url), server.kill, server.restart)


@pytest.fixture(params=FORMS)
async def uvicorn(
    request: pytest.FixtureRequest, server: EmbeddedRedis, tmp_path: Path
) -> AsyncIterator[OnUvicorn]:
    """Those in a real uvicorn."""
    async with Redis.from_url(server.url) as redis:
        yield OnUvicorn(request.param, server, redis, tmp_path)
        await aclose(redis)
