"""A client that Sentinel gives is as good as any."""

from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from redsem_async import BackendUnavailable, FairSemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.replicas import SERVICE, Replicated, embedded_sentinels
from tests.harness.wait import queue_up, soon


async def test_sentinels_client_will_do(
    kind: Kind, server: EmbeddedRedis, client_a: Redis
) -> None:
    """It finds its master when it connects; the hub's own connection does the same."""
    with embedded_sentinels(Replicated(server, ()), count=1) as flock:
        sentinel = flock.sentinel()
        async with sentinel.master_for(SERVICE) as client:
            here, there = kind(client, "watched", 1), kind(client_a, "watched", 1)
            holder = await there.acquire()
            waiter = await queue_up(here)
            await holder.release()
            async with await soon(waiter) as permit:
                assert await there.try_acquire() is None
                assert (await there.status()).holders[0].id == permit.id
        for each in sentinel.sentinels:
            await each.aclose()


async def test_an_error_names_the_master_and_not_an_address() -> None:
    """With Sentinel there is no address before there is a connection."""
    untyped: Any = Sentinel
    client: Redis = untyped([("127.0.0.1", 1)]).master_for(SERVICE)
    with pytest.raises(BackendUnavailable, match=SERVICE):
        await FairSemaphore(client, "watched", 1).acquire(timeout=0.2)
    await soon(client.aclose())
