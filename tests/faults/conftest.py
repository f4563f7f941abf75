"""Servers to hurt, proxies to hurt connections with, and processes to kill."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Protocol, cast

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Semaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.conftest import StartServer
from tests.faults.helpers import Kind
from tests.faults.processes import StartWorker, Worker
from tests.faults.proxy import Proxy
from tests.faults.replicas import Flock, Replicated, embedded_replicas, embedded_sentinels
from tests.faults.topologies import Cluster, embedded_cluster


class Connect(Protocol):
    """What `connect` gives: a client for a URL, with options of redis-py's."""

    def __call__(self, url: str, **options: Any) -> Redis: ...


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Either semaphore."""
    return cast("Kind", request.param)


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server for this test alone."""
    return embedded()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients such as users have, and closes them after the test."""
    async with AsyncExitStack() as stack:

        def client(url: str, **options: Any) -> Redis:
            redis = Redis.from_url(url, **options)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield client


@pytest.fixture
async def admin(server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A client of the test's own, to look at the server and to cause trouble."""
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def client(server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client for semaphores, of a process called ``here``."""
    return connect(server.url, client_name="here")


@pytest.fixture
def other(server: EmbeddedRedis, connect: Connect) -> Redis:
    """Another client: to Redis it is another process, called ``there``."""
    return connect(server.url, client_name="there")


@pytest.fixture
async def proxy(server: EmbeddedRedis) -> AsyncIterator[Proxy]:
    """A proxy in front of the server."""
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, connect: Connect) -> Redis:
    """A client for semaphores that goes through the proxy."""
    return connect(proxy.url, client_name="proxied")


@pytest.fixture
async def start(server: EmbeddedRedis) -> AsyncIterator[StartWorker]:
    """Starts processes that run `worker.py`, and ends them after the test."""
    async with AsyncExitStack() as stack:

        async def start(scenario: str, **options: Any) -> Worker:
            url = options.pop("url", server.url)
            worker = Worker(await Worker.spawn(scenario, {"url": url, **options}))
            stack.push_async_callback(worker.end)
            return worker

        yield start


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters for this test alone, that serves what is left of it."""
    with embedded_cluster("--cluster-require-full-coverage", "no") as cluster:
        yield cluster


@pytest.fixture
def replicated_cluster() -> Iterator[Cluster]:
    """A cluster of three masters with a replica each, for this test alone."""
    with embedded_cluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    """A master and a replica for this test alone."""
    with embedded_replicas() as servers:
        yield servers


@pytest.fixture
def flock(replicated: Replicated) -> Iterator[Flock]:
    """The same, watched by three sentinels."""
    with embedded_sentinels(replicated) as flock:
        yield flock
