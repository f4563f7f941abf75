"""The fronts of the web suite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, aclose
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.integrations.web.fronts import FORMS, Front, OnUvicorn


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    """One permit."""
    return FairSemaphore(backend, "web", 1)


@pytest.fixture(params=FORMS)
def front(request: pytest.FixtureRequest, backend: MemoryBackend) -> Front:
    """Each of them."""
    return Front(request.param, backend)


@pytest.fixture(params=FORMS)
async def uvicorn(
    request: pytest.FixtureRequest, server: EmbeddedRedis, tmp_path: Path
) -> AsyncIterator[OnUvicorn]:
    """Those in a real uvicorn."""
    async with Redis.from_url(server.url) as redis:
        yield OnUvicorn(request.param, server, redis, tmp_path)
        await aclose(redis)
