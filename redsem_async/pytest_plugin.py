"""Fixtures for tests of code that uses semaphores. Loaded only when asked for.

In the ``conftest.py`` at the root of the tests, or by ``pytest -p redsem_async.pytest_plugin``::

    pytest_plugins = ["redsem_async.pytest_plugin"]
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from redsem_async import aclose, from_url
from redsem_async.testing import EmbeddedRedis, MemoryBackend, embedded_redis

__all__ = ["redsem_memory", "redsem_redis", "redsem_server"]


@pytest.fixture
def redsem_memory() -> MemoryBackend:
    """A ``MemoryBackend`` of the test's own, in place of a client."""
    return MemoryBackend()


@pytest.fixture(scope="session")
def redsem_server() -> Iterator[EmbeddedRedis]:
    """A real server, started once: for the session, or for each worker of pytest-xdist.

    A test that kills or stops it takes one of its own, from ``embedded_redis()``.
    """
    with embedded_redis() as server:
        yield server


@pytest.fixture
def redsem_redis(request: pytest.FixtureRequest, redsem_server: EmbeddedRedis) -> Redis:
    """A client of the real server, which is empty when the test starts.

    Where pytest-asyncio (in either mode) or anyio runs the test, it closes the client too, and
    ends what the test still held. A test that runs its own event loop closes it in there.
    """
    server: Any = SyncRedis(port=redsem_server.port)  # no event loop runs yet
    with closing(server):
        server.flushall()
    if request.node.get_closest_marker("asyncio"):
        closed_by = "_redsem_redis_by_asyncio"
    elif "anyio_backend" in request.fixturenames:
        closed_by = "_redsem_redis_by_anyio"
    else:
        return from_url(redsem_server.url)
    redis: Redis = request.getfixturevalue(closed_by)
    return redis


async def _redis(redsem_server: EmbeddedRedis) -> AsyncIterator[Redis]:
    redis = from_url(redsem_server.url)
    yield redis  # not from an `async with`: then one in the test would close nothing
    await aclose(redis)
    await redis.aclose()


_redsem_redis_by_anyio = pytest.fixture(_redis)

if find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    _redsem_redis_by_asyncio = pytest_asyncio.fixture(_redis)
