"""Fixtures for tests of code that uses semaphores. Load the plugin explicitly.

Use either ``pytest -p redsem_async.pytest_plugin``, or the ``conftest.py`` at the root of the
tests:

```python
pytest_plugins = ["redsem_async.pytest_plugin"]
```
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from redsem_async import aclose, from_url
from redsem_async.testing import EmbeddedRedis, MemoryBackend, embedded_redis, unlimited

__all__ = ["redsem_memory", "redsem_redis", "redsem_server", "redsem_unlimited"]


@pytest.fixture
def redsem_memory() -> MemoryBackend:
    """A new ``MemoryBackend`` for each test, to use instead of a client."""
    return MemoryBackend()


@pytest.fixture
def redsem_unlimited() -> Iterator[None]:
    """Every semaphore grants every request immediately, without a server, while the test runs."""
    with unlimited():
        yield


@pytest.fixture(scope="session")
def redsem_server() -> Iterator[EmbeddedRedis]:
    """A real server, started once for the session or for each worker of pytest-xdist.

    A test that kills or stops a server starts its own, with ``embedded_redis()``.
    """
    with embedded_redis() as server:
        yield server


@pytest.fixture
def redsem_redis(request: pytest.FixtureRequest, redsem_server: EmbeddedRedis) -> Redis:
    """A client of the real server, which is empty when the test starts.

    If pytest-asyncio (0.24 or newer, in either mode) or anyio runs the test, the fixture closes
    the client in the event loop of the test and releases the permits that the test still holds. A
    test that runs its own event loop must close the client in that loop.
    """
    server: Any = SyncRedis(port=redsem_server.port)  # no event loop runs yet
    with closing(server):
        server.flushall()
    asyncio_mark = request.node.get_closest_marker("asyncio")
    if asyncio_mark is not None:
        closed_by = f"_redsem_redis_by_asyncio_{_loop_scope(asyncio_mark, request.config)}"
    elif "anyio_backend" in request.fixturenames:
        closed_by = "_redsem_redis_by_anyio"
    else:
        return from_url(redsem_server.url)
    redis: Redis = request.getfixturevalue(closed_by)
    return redis


def _loop_scope(mark: pytest.Mark, config: pytest.Config) -> str:
    """Which event loop pytest-asyncio runs a test in."""
    marked: str | None = mark.kwargs.get("loop_scope") or mark.kwargs.get("scope")
    if marked is not None:
        return marked
    try:
        default: str = config.getini("asyncio_default_test_loop_scope")
    except ValueError:  # this version has no such setting
        return "function"
    return default


def _closing() -> Callable[[EmbeddedRedis], AsyncIterator[Redis]]:
    """Make a fixture function, whose client is closed in the event loop of the test."""

    async def closing(redsem_server: EmbeddedRedis) -> AsyncIterator[Redis]:
        redis = from_url(redsem_server.url)
        yield redis  # not from `async with`, where one in the test would then close nothing
        await aclose(redis)
        await redis.aclose()

    return closing


_redsem_redis_by_anyio = pytest.fixture(_closing())

if find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    _redsem_redis_by_asyncio_function = pytest_asyncio.fixture(_closing(), loop_scope="function")
    _redsem_redis_by_asyncio_class = pytest_asyncio.fixture(_closing(), loop_scope="class")
    _redsem_redis_by_asyncio_module = pytest_asyncio.fixture(_closing(), loop_scope="module")
    _redsem_redis_by_asyncio_package = pytest_asyncio.fixture(_closing(), loop_scope="package")
    _redsem_redis_by_asyncio_session = pytest_asyncio.fixture(_closing(), loop_scope="session")
