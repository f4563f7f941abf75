"""Semaphores in Redis and in memory.

With ``REDSEM_LINGER=0.1`` those of `make` keep their leases for that many seconds, as far as a
test does not say what it needs.
"""

import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make, MakePair

LINGER = float(os.environ.get("REDSEM_LINGER", "0"))  # seconds


@pytest.fixture(params=["redis", "memory"])
def client(request: pytest.FixtureRequest) -> Client:
    """The first argument of a semaphore."""
    if request.param == "memory":
        return MemoryBackend()
    found: Redis = request.getfixturevalue("redis")
    return found


@pytest.fixture
async def other(client: Client, server_url: str) -> AsyncIterator[Client]:
    """A second client of the same place: to the semaphores, another process."""
    if isinstance(client, MemoryBackend):
        yield client.peer()
    else:
        async with Redis.from_url(server_url) as second:
            yield second


@pytest.fixture
async def other_redis(server_url: str) -> AsyncIterator[Redis]:
    """A second client of the server under test."""
    async with Redis.from_url(server_url) as second:
        yield second


@pytest.fixture
def make(kind: Kind, client: Client, name: str) -> Make:
    """Makes semaphores that share a name, in Redis or in memory."""
    return _maker(kind, client, name)


@pytest.fixture
def make_fair(client: Client, name: str) -> Make:
    """Makes fair semaphores that share a name, in Redis or in memory."""
    return _maker(FairSemaphore, client, name)


@pytest.fixture
def pair(make: Make, other: Client) -> MakePair:
    """Makes two semaphores that share a name, each with a client of its own."""
    return _pairs(make, other)


@pytest.fixture
def fair_pair(make_fair: Make, other: Client) -> MakePair:
    """Makes two such fair semaphores."""
    return _pairs(make_fair, other)


@pytest.fixture
def make_on_redis(kind: Kind, redis: Redis, name: str) -> Make:
    """Makes semaphores that share a name, in Redis: for tests that look into the server."""
    return _maker(kind, redis, name)


@pytest.fixture
def nowhere() -> Redis:
    """A client of a port on which nobody listens: whatever is sent fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return Redis(port=port)


def _maker(kind: Kind, first: Client, name: str) -> Make:
    def make(limit: int = 1, *, client: Any = None, **options: Any) -> AnySemaphore:
        if LINGER:
            interval = options.get("refresh_interval") or options.get("lease", 60.0) / 3
            options.setdefault("linger", min(LINGER, interval))
        return kind(client or first, options.pop("name", name), limit, **options)

    return make


def _pairs(make: Make, other: Client) -> MakePair:
    def pair(limit: int = 1, **options: Any) -> tuple[AnySemaphore, AnySemaphore]:
        return make(limit, **options), make(limit, client=other, **options)

    return pair
