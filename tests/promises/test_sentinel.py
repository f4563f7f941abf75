"""A client that Sentinel gives is as good as any."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from redsem_async import BackendUnavailable, FairSemaphore
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.replicas import SERVICE, Replicated, embedded_sentinels
from tests.harness.wait import queue_up, soon


@contextmanager
def sentinel_of(master: EmbeddedRedis, _folder: Path | None = None) -> Generator[int]:
    """Run a sentinel that watches *master*, and give its port."""
    with embedded_sentinels(Replicated(master, ())) as flock:
        yield flock.sentinels[0].port


@asynccontextmanager
async def masters_client(port: int) -> AsyncGenerator[Redis]:
    """The client that ``master_for`` gives."""
    untyped: Any = Sentinel
    sentinel = untyped([("127.0.0.1", port)])
    async with sentinel.master_for(SERVICE) as client:
        yield client
    for each in sentinel.sentinels:
        await each.aclose()


async def test_sentinels_client_will_do(
    kind: Kind, server: EmbeddedRedis, client_a: Redis
) -> None:
    """It finds its master when it connects; the hub's own connection does the same."""
    with sentinel_of(server) as port:
        async with masters_client(port) as client:
            here, there = kind(client, "watched", 1), kind(client_a, "watched", 1)
            holder = await there.acquire()
            waiter = await queue_up(here)
            await holder.release()
            async with await soon(waiter) as permit:
                assert await there.try_acquire() is None
                assert (await there.status()).holders[0].id == permit.id


async def test_an_error_names_the_master_and_not_an_address() -> None:
    """With Sentinel there is no address before there is a connection."""
    async with masters_client(1) as client:
        with pytest.raises(BackendUnavailable, match=SERVICE):
            await FairSemaphore(client, "watched", 1).acquire(timeout=0.2)
