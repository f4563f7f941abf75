"""The server, the semaphores and the dashboards of these tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis, RedisCluster

from redsem_async import from_url
from redsem_async.dashboard import dashboard
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect
from tests.integrations.dashboard.site import Site, always, serving

INTERVAL = 0.1


class Serve(Protocol):
    """What the fixture `serve` gives: a served dashboard, with options of `dashboard`."""

    async def __call__(
        self, redis: Redis | RedisCluster | None = None, **options: Any
    ) -> Site: ...


@pytest.fixture
def redis(server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client for semaphores."""
    return connect(server.url)


@pytest.fixture
async def own_client(server: EmbeddedRedis) -> AsyncIterator[Callable[[], Redis]]:
    """Makes clients as the command makes its own: they do not wait long.

    Ask for it before `serve`: what is served connects again as long as a page is open.
    """
    async with AsyncExitStack() as stack:

        def make() -> Redis:
            client = from_url(server.url, socket_timeout=2, socket_connect_timeout=2)
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture
async def serve(connect: Connect, server: EmbeddedRedis) -> AsyncIterator[Serve]:
    """Serves dashboards until the end of the test."""
    async with AsyncExitStack() as stack:

        async def serve(redis: Redis | RedisCluster | None = None, **options: Any) -> Site:
            client = redis or connect(server.url)
            app = dashboard(client, interval=INTERVAL, **options)
            return await stack.enter_async_context(serving(app))

        yield serve


@pytest.fixture
async def site(serve: Serve) -> Site:
    """A dashboard that only shows."""
    return await serve()


@pytest.fixture
async def writable(serve: Serve) -> Site:
    """A dashboard that changes what it is told to."""
    return await serve(writable=True, authorize=always("ada"))
