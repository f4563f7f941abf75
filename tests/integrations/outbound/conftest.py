"""Both transports, and a server to call."""

from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest

import redsem_async.httpx
import redsem_async.httpx2
from redsem_async import AnySemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Kind
from tests.integrations.outbound.upstream import Upstream


@pytest.fixture(params=[redsem_async.httpx, redsem_async.httpx2], ids=["httpx", "httpx2"])
def leaf(request: pytest.FixtureRequest) -> Any:
    """The module under test."""
    return request.param


@pytest.fixture
def http(leaf: ModuleType) -> Any:
    """The client library that it is for."""
    return httpx if leaf is redsem_async.httpx else httpx2


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def sem(backend: MemoryBackend, kind: Kind) -> AnySemaphore:
    """One permit."""
    return kind(backend, "upstream", 1)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A server to call."""
    server = Upstream()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> AsyncIterator[Any]:
    """A client of the upstream that needs permits."""
    transport = leaf.SemaphoreTransport(sem)
    async with http.AsyncClient(transport=transport, base_url=upstream.url) as client:
        yield client
