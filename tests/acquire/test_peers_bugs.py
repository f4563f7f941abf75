"""What other libraries got wrong, and no test of a promise shows: each bug by its number."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from redsem_async import BackendUnavailable, FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Client, Make
from tests.harness.wait import cancelled, give_back, queue_up, soon
from tests.worlds.simulated_time import simulated


@simulated
async def test_bug_7_an_unreachable_store_is_no_permit(make: Make, client: MemoryBackend) -> None:
    """Neither for a caller, nor for one that holds already."""
    semaphore = make(1, lease=6.0)
    with pytest.raises(PermitLost):
        async with semaphore, asyncio.timeout(6.0):
            client.down()
            for attempt in (semaphore.acquire(timeout=0.1), semaphore.try_acquire()):
                with pytest.raises(BackendUnavailable):
                    await attempt
            await asyncio.sleep(10)


async def test_bug_8_the_clients_retries_do_not_add_up(server: EmbeddedRedis) -> None:
    """A client that retries for a minute and more; and half a second to wait."""
    server.kill()
    retry = Retry(ExponentialBackoff(cap=10, base=5), 10)
    async with Redis(host="127.0.0.1", port=server.port, retry=retry) as redis:
        with pytest.raises(BackendUnavailable):
            await soon(FairSemaphore(redis, "jobs", 1).acquire(timeout=0.5), 20)


async def test_bug_17_a_name_that_is_done_with_leaves_no_key(
    client: MemoryBackend, other: Client
) -> None:
    """Names may be made by the million: each key has an expiry, whatever was done."""
    for number in range(3):
        here, there = (FairSemaphore(c, f"tenant-{number}", 2, lease=2.0) for c in (client, other))
        permit = await here.acquire(permits=2)
        waiter = await queue_up(there)
        await cancelled(await queue_up(here))
        await permit.refresh()
        await give_back(permit)
        await (await here.adopt(await (await waiter).detach(0.5))).detach(0.5)
        await here.set_limit(3)
        await (here.set_limit(None) if number else here.delete())
    assert all(expiry for _, expiry in client._store.redis.snapshot().values())
