"""A server whose memory is full: it refuses writes, or throws keys away."""

import asyncio
import logging

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendError, BackendUnavailable, FairSemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, connection_of, key_of, kill_connection
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import EPSILON, all_free, in_background, is_served, until, waits_in_queue


async def kept(admin: Redis, semaphore: AnySemaphore) -> list[object]:
    """What the server keeps of permits and waiters; not which hubs sent something when."""
    return [
        await admin.zrange(key_of(semaphore, "holders"), 0, -1),
        await admin.hgetall(key_of(semaphore, "facts")),
        await admin.hgetall(key_of(semaphore, "meta")),
        await admin.zrange(key_of(semaphore, "queue"), 0, -1),
    ]


@pytest.mark.fault(33)
async def test_an_acquire_at_maxmemory_is_refused_and_writes_nothing(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Permits are refreshed and given back meanwhile, and a release serves the queue."""
    semaphore = FairSemaphore(client_a, "jobs", 2, lease=30.0)
    there = FairSemaphore(client_b, "jobs", 2, lease=30.0)
    async with semaphore as permit, there.acquire() as holder:
        waiter = await waits_in_queue(semaphore)
        await admin.config_set("maxmemory", "1")
        before = await kept(admin, semaphore)
        with pytest.raises(BackendError) as refused:
            await there.acquire(timeout=2)
        assert not isinstance(refused.value, BackendUnavailable)
        assert isinstance(refused.value.__cause__, errors.OutOfMemoryError)
        with pytest.raises(BackendError):
            await semaphore.try_acquire()
        assert await kept(admin, semaphore) == before
        await permit.refresh()
        assert await holder.release()
        await is_served(waiter, 1.0 + EPSILON, after=holder)
    await all_free(semaphore, within=0.5)
    await admin.config_set("maxmemory", "0")
    async with semaphore.acquire(timeout=1):
        pass


@pytest.mark.fault(16, 17, 18, 33)
@pytest.mark.parametrize("ran", [True, False], ids=["granted at first", "delayed"])
async def test_an_acquire_that_is_sent_again_at_maxmemory_leaves_nothing(
    proxied: Redis, proxy: Proxy, admin: Redis, client_a: Redis, server: EmbeddedRedis, ran: bool
) -> None:
    """The second copy is refused: whenever the first one runs, nothing may be held."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=30.0)
    async with semaphore:  # it is known
        pass
    fault = proxy.swallow("acquire") if ran else proxy.cut("acquire")
    proxy.refusing = True  # the hub does not come back before memory is gone
    acquiring = in_background(semaphore.acquire(timeout=10))
    await asyncio.wait_for(fault.struck.wait(), 5)
    await admin.config_set("maxmemory", "1")
    proxy.refusing = False
    with pytest.raises(BackendError):
        await acquiring
    await admin.config_set("maxmemory", "0")
    there = FairSemaphore(client_a, "jobs", 1)
    if not ran:
        await until(lambda: proxy.operations("abandon"), "it is given up")
        await semaphore.reap()
        assert fault.sent is not None
        await say_again(server.port, fault.sent)
    await all_free(there)


@pytest.mark.fault(50)
async def test_permits_whose_number_was_evicted_end_with_their_leases(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """How many a holder has is not known until then: nothing is granted, and not for longer."""
    here, there = FairSemaphore(client_a, "jobs", 6), FairSemaphore(client_b, "jobs", 6, lease=1.5)
    await (await there.acquire(permits=4)).detach(1.5)
    assert await admin.delete(key_of(there, "facts")) == 1
    assert await here.try_acquire() is None
    permit = await here.acquire(permits=6, timeout=1.5 + EPSILON)
    assert await permit.release()
    await all_free(here)


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("maxmemory", "policy", "warns"),
    # Of the second, our keys expire; of the last, memory has no bound.
    [("100mb", "allkeys-lru", 1), ("100mb", "volatile-ttl", 1), ("0", "allkeys-lru", 0)],
)
async def test_an_evicting_policy_is_warned_of_once(
    server: EmbeddedRedis,
    connect: Connect,
    admin: Redis,
    caplog: pytest.LogCaptureFixture,
    maxmemory: str,
    policy: str,
    warns: int,
) -> None:
    """Where keys may be evicted, by the name of the policy and of the server."""
    await admin.config_set("maxmemory", maxmemory)
    await admin.config_set("maxmemory-policy", policy)
    semaphore = FairSemaphore(connect(server.url, client_name="here"), "jobs", 1)
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with semaphore:
            await kill_connection(admin, "here")
            await semaphore.status()
    assert await connection_of(admin, "here") is not None, "it is connected again"
    said = [record.getMessage() for record in caplog.records]
    warnings = [text for text in said if "evicts" in text]
    assert len(warnings) == warns
    for warning in warnings:
        assert policy in warning
        assert f"127.0.0.1:{server.port}" in warning
