"""The server and the client of the tests of commands."""

import pytest
from redis.asyncio import Redis

from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect
from tests.integrations.cli.commands import Cli


@pytest.fixture
def url(server: EmbeddedRedis) -> str:
    """A server of this test alone, because `ls` lists all semaphores."""
    return server.url


@pytest.fixture
def cli(url: str) -> Cli:
    """The command, on that server."""
    return Cli(url)


@pytest.fixture
def redis(server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client for semaphores."""
    return connect(server.url)
