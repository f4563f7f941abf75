"""The fronts of the web suite."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Semaphore, aclose
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Kind
from tests.integrations.web.fronts import FORMS, Front, InProcess, OnUvicorn

release = pytest.mark.release
HERE: list[Any] = [
    *(pytest.param((form, FairSemaphore), id=form) for form in FORMS),
    *(pytest.param((form, Semaphore), id=f"{form}-zset", marks=release) for form in FORMS),
]
THERE: list[Any] = [
    pytest.param((form, None), id=f"{form}-uvicorn", marks=release) for form in FORMS
]


async def front_of(chosen: tuple[str, Kind | None], request: pytest.FixtureRequest) -> Any:
    form, kind = chosen
    if kind is not None:
        return InProcess(form, kind)
    server: EmbeddedRedis = request.getfixturevalue("server")
    folder: Path = request.getfixturevalue("tmp_path")
    return OnUvicorn(form, server, Redis.from_url(server.url), folder)


@pytest.fixture(params=HERE + THERE)
async def front(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """Each of them."""
    front = await front_of(request.param, request)
    yield front
    if isinstance(front, OnUvicorn):
        await aclose(front.redis)
        await front.redis.aclose()


@pytest.fixture(params=HERE)
def inside(request: pytest.FixtureRequest) -> InProcess:
    """Those in this process."""
    return InProcess(*request.param)


@pytest.fixture(params=FORMS)
async def uvicorn(
    request: pytest.FixtureRequest, server: EmbeddedRedis, tmp_path: Path
) -> AsyncIterator[OnUvicorn]:
    """Those in a real uvicorn."""
    async with Redis.from_url(server.url) as redis:
        yield OnUvicorn(request.param, server, redis, tmp_path)
        await aclose(redis)
