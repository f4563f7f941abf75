"""What other libraries got wrong, and no test of a promise shows: each bug by its number."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.crc import key_slot

from redsem_async import AnySemaphore, BackendUnavailable, FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Make, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    cancelled,
    in_background,
    soon,
    takes_at_most,
    waits_in_queue,
)
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
    """A client that retries ten times, with pauses; and half a second to wait."""
    server.kill()
    retry = Retry(ExponentialBackoff(), 10)
    async with Redis(host="127.0.0.1", port=server.port, retry=retry) as redis:
        with takes_at_most(0.5), pytest.raises(BackendUnavailable):
            await FairSemaphore(redis, "jobs", 1).acquire(timeout=0.5)


async def test_bug_11_wake_ups_do_not_pile_up(make: Make, client: MemoryBackend) -> None:
    """A release without a waiter leaves nothing for later."""
    semaphore = make(1)

    async def size_after_fifty() -> int:
        for _ in range(50):
            async with semaphore:
                pass
        assert await semaphore.available() == 1  # asked after the last release
        return len(repr(client._store.redis.snapshot()))

    assert await size_after_fifty() == pytest.approx(await size_after_fifty(), abs=9)  # digits


async def test_bug_14_9000_permits_at_once_are_granted_and_lost(client_a: Redis) -> None:
    """Lua unpacks some 8,000 values at most."""
    semaphore = FairSemaphore(client_a, "jobs", 9_000, lease=60.0)
    permits = await asyncio.gather(*(semaphore.acquire() for _ in range(9_000)))
    assert (await semaphore.status(0)).held == 9_000
    assert len({permit.fencing_token for permit in permits}) == 9_000
    await semaphore.delete()
    await asyncio.gather(*(soon(permit.wait_lost(), 20) for permit in permits))


async def use(semaphore: AnySemaphore, there: AnySemaphore) -> None:
    """Every call, with a waiter in another process and one that is cancelled."""
    permit = await semaphore.acquire(permits=2)
    waiter = await waits_in_queue(there)
    leaving = in_background(semaphore.acquire())
    await asyncio.sleep(0.01)
    await cancelled(leaving)
    await permit.refresh()
    assert await permit.release()
    adopted = await semaphore.adopt(await (await waiter).detach(0.5))
    await adopted.detach(0.5)
    await semaphore.reap()


async def test_bug_16_every_key_is_declared_and_in_the_slot_of_its_name(
    proxied: Redis, proxy: Proxy, admin: Redis, client_b: Redis
) -> None:
    """A cluster refuses the rest, and one slot for all names is one shard for all."""
    slots = {}
    declared: set[bytes] = set()
    for name in ("jobs", "mails"):
        already = len(proxy.sent)
        await use(FairSemaphore(proxied, name, 2), FairSemaphore(client_b, name, 2))
        await FairSemaphore(proxied, name, 2).set_limit(2)
        scripts = [s for s in proxy.sent[already:] if s.arguments[0] in (b"EVAL", b"EVALSHA")]
        keys = {key for s in scripts for key in s.arguments[3 : 3 + int(s.arguments[2])]}
        declared |= keys
        [slots[name]] = {key_slot(key) for key in keys}
    assert slots["jobs"] != slots["mails"]
    assert set(await admin.keys("*")) <= declared


async def test_bug_17_a_name_that_is_done_with_leaves_no_key(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Names may be made by the million: each key has an expiry, whatever was done."""
    semaphores = [FairSemaphore(client_a, f"tenant-{n}", 2, lease=2.0 * (1 + n)) for n in range(5)]
    for semaphore in semaphores:
        await use(semaphore, FairSemaphore(client_b, semaphore.name, 2, lease=5.0))
    await semaphores[-1].set_limit(3)
    await semaphores[-1].delete()
    await semaphores[0].set_limit(3)
    forever = [key for key in await admin.keys("*") if not 0 < await admin.ttl(key) < 600]
    limit = key_of(semaphores[0], "limit")
    assert forever == [limit.encode()]
    await semaphores[0].set_limit(None)
    assert not await admin.exists(limit)
