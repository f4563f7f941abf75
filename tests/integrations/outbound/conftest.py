"""Both transports, and what they call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any, Protocol

import httpx
import httpx2
import pytest

import redsem_async.httpx
import redsem_async.httpx2
from redsem_async import AnySemaphore, FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.integrations.outbound.upstream import Upstream


class ClientOf(Protocol):
    """What the fixture `client_of` gives: clients whose requests need permits of a source."""

    def __call__(self, source: Any, wrapped: Any = None, **options: Any) -> Any: ...


@pytest.fixture(params=[redsem_async.httpx, redsem_async.httpx2], ids=["httpx", "httpx2"])
def leaf(request: pytest.FixtureRequest) -> Any:
    """The module under test."""
    return request.param


@pytest.fixture
def http(leaf: ModuleType) -> Any:
    """The client library that it is for."""
    return httpx if leaf is redsem_async.httpx else httpx2


@pytest.fixture
def sem(backend: MemoryBackend) -> AnySemaphore:
    """One permit."""
    return FairSemaphore(backend, "upstream", 1)


@pytest.fixture
def upstream(http: Any) -> Upstream:
    """What is called."""
    return Upstream(http)


@pytest.fixture
async def client_of(http: Any, leaf: Any, upstream: Upstream) -> AsyncIterator[ClientOf]:
    """Makes clients of the upstream, or of a transport, with options of `SemaphoreTransport`."""
    answering = http.MockTransport(upstream.answer)
    async with AsyncExitStack() as stack:

        def client_of(source: Any, wrapped: Any = None, **options: Any) -> Any:
            transport = leaf.SemaphoreTransport(source, wrapped or answering, **options)
            client = http.AsyncClient(transport=transport, base_url="http://upstream")
            stack.push_async_callback(client.aclose)
            return client

        yield client_of


@pytest.fixture
def client(client_of: ClientOf, sem: AnySemaphore) -> Any:
    """A client of the upstream that needs permits."""
    return client_of(sem)
