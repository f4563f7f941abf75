"""A server whose memory is full: it refuses writes, or throws keys away."""

import asyncio
import itertools
import logging

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendError, BackendUnavailable, FairSemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, connection_of, key_of, kill_connection
from tests.harness.proxy import Proxy, say_again
from tests.harness.servers import StartServer
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

EITHER_KEY = pytest.mark.parametrize("key", ["meta", "facts"])

# -- writes are refused


async def kept(admin: Redis, semaphore: AnySemaphore) -> list[object]:
    """What the server keeps of permits and waiters; not which hubs sent something when."""
    return [
        await admin.zrange(key_of(semaphore, "holders"), 0, -1),
        await admin.hgetall(key_of(semaphore, "facts")),
        await admin.hgetall(key_of(semaphore, "meta")),
        await admin.zrange(key_of(semaphore, "queue"), 0, -1),
    ]


@pytest.mark.one_mode
@pytest.mark.fault(33)
async def test_an_acquire_at_maxmemory_is_refused_and_writes_nothing(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Permits are kept meanwhile, and given back."""
    semaphore = kind(client_a, "jobs", 2, lease=2.5)
    async with semaphore as permit:
        await admin.config_set("maxmemory", "1")
        before = await kept(admin, semaphore)
        with pytest.raises(BackendError) as refused:
            await kind(client_b, "jobs", 2, lease=2.5).acquire(timeout=2)
        assert not isinstance(refused.value, BackendUnavailable)
        assert isinstance(refused.value.__cause__, errors.OutOfMemoryError)
        with pytest.raises(BackendError):
            await semaphore.try_acquire()
        assert await kept(admin, semaphore) == before
        await asyncio.sleep(2.7)  # past a lease
        assert not permit.lost
        await permit.refresh()
    await all_free(semaphore, within=0.5)
    await admin.config_set("maxmemory", "0")
    async with semaphore.acquire(timeout=1):
        pass


@pytest.mark.one_mode
@pytest.mark.fault(33)
async def test_a_release_at_maxmemory_serves_the_queue(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    holder = await kind(client_b, "jobs", 1, lease=30.0).acquire()
    waiter = await waits_in_queue(semaphore)
    await admin.config_set("maxmemory", "1")
    assert await holder.release()
    await is_served(waiter, 1.0 + EPSILON, after=holder)
    assert await semaphore.available() == 1


@pytest.mark.fault(16, 17, 18, 33)
@pytest.mark.parametrize("ran", [True, False], ids=["granted at first", "delayed"])
async def test_an_acquire_that_is_sent_again_at_maxmemory_leaves_nothing(
    kind: Kind,
    proxied: Redis,
    proxy: Proxy,
    admin: Redis,
    client_a: Redis,
    server: EmbeddedRedis,
    ran: bool,
) -> None:
    """The second copy is refused: whenever the first one runs, nothing may be held."""
    semaphore = kind(proxied, "jobs", 1, lease=30.0)
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
    there = kind(client_a, "jobs", 1)
    if not ran:
        await until(lambda: proxy.operations("abandon"), "it is given up")
        await semaphore.reap()
        assert fault.sent is not None
        await say_again(server.port, fault.sent)
    await all_free(there)


# -- keys are thrown away


@pytest.mark.fault(30)
async def test_adopt_when_meta_was_evicted(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """The permit is still held: it is adopted, under a token that is no lower."""
    semaphore = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    identity = await permit.detach(20.0)
    await admin.delete(key_of(semaphore, "meta"))
    adopted = await kind(client_b, "jobs", 1).adopt(identity)
    assert adopted.fencing_token >= permit.fencing_token
    assert await adopted.release()


@pytest.mark.fault(30)
@EITHER_KEY
async def test_heartbeat_when_a_key_was_evicted(
    unsubscribed: Redis, client_a: Redis, admin: Redis, key: str
) -> None:
    """A grant whose facts are gone: no storm of connections, no error in the loop."""
    semaphore = FairSemaphore(unsubscribed, "jobs", 1, lease=6.0)
    async with semaphore:  # the server knows that no message reaches it
        pass
    holder = await FairSemaphore(client_a, "jobs", 1, lease=6.0).acquire()
    waiter = await waits_in_queue(semaphore)
    assert await holder.release()  # granted, and to be found by the next heartbeat
    await admin.delete(key_of(semaphore, key))
    before = (await admin.info("stats"))["total_connections_received"]
    permit = await waiter
    assert (await admin.info("stats"))["total_connections_received"] - before < 5
    assert await permit.release()


@pytest.mark.fault(50)
async def test_permits_whose_number_was_evicted_end_with_their_leases(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """How many a holder has is not known until then: nothing is granted, and not for longer."""
    there = kind(client_b, "jobs", 6, lease=1.5)
    await (await there.acquire(permits=4)).detach(1.5)
    assert await admin.delete(key_of(there, "facts")) == 1
    here = kind(client_a, "jobs", 6)
    assert await here.try_acquire() is None
    permit = await here.acquire(permits=6, timeout=1.5 + EPSILON)
    assert await permit.release()
    await all_free(here)


# -- policies


@pytest.mark.release
@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("maxmemory", "policy", "warns"),
    [
        ("100mb", "allkeys-lru", True),
        ("100mb", "volatile-ttl", True),  # our keys expire
        ("100mb", "noeviction", False),
        ("0", "allkeys-lru", False),  # memory has no bound
    ],
)
async def test_an_evicting_policy_is_warned_of_once(
    kind: Kind,
    server: EmbeddedRedis,
    client_a: Redis,
    admin: Redis,
    caplog: pytest.LogCaptureFixture,
    maxmemory: str,
    policy: str,
    warns: bool,
) -> None:
    """Where keys may be evicted, by the name of the policy and of the server."""
    await admin.config_set("maxmemory", maxmemory)
    await admin.config_set("maxmemory-policy", policy)
    semaphore = kind(client_a, "jobs", 1)
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with semaphore:
            await kill_connection(admin, "here")
            await semaphore.status()
    assert await connection_of(admin, "here") is not None, "it is connected again"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == warns
    for warning in warnings:
        assert policy in warning
        assert f"127.0.0.1:{server.port}" in warning


@pytest.mark.release
@pytest.mark.fault(34)
async def test_without_permission_to_ask_no_policy_is_warned_of(
    kind: Kind,
    server: EmbeddedRedis,
    admin: Redis,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INFO is not among what a semaphore needs."""
    await admin.config_set("maxmemory", "100mb")
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    await admin.acl_setuser(
        "curious", enabled=True, nopass=True, categories=["+@all"], commands=["-info"], keys=["*"]
    )
    await admin.acl_setuser("curious", channels=["*"], enabled=True)
    async with kind(connect(server.url, username="curious", password="x"), "jobs", 1):
        pass
    assert not caplog.records


@pytest.mark.release
@pytest.mark.fault(34)
async def test_what_is_evicted_is_lost_in_time(
    kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """Real evictions, under a real bound: the holder learns of it as of any loss."""
    # Flushed at once: keys would still be evicted for memory that a thread is yet to free.
    bound = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random")
    server = embedded(*bound, "--lazyfree-lazy-user-flush", "no")
    semaphore = kind(connect(server.url), "jobs", 1, lease=3.0, refresh_interval=0.1)
    permit = await semaphore.acquire()
    numbers = itertools.count()
    async with Redis.from_url(server.url) as admin:

        async def evicted() -> bool:
            await admin.mset({f"ballast-{next(numbers)}": "x" * 4000 for _ in range(200)})
            return not await admin.exists(key_of(semaphore, "holders"))

        await until(evicted, "the holders are evicted", within=20)
        assert (await admin.info("stats"))["evicted_keys"] > 0
        with takes_at_most(0.1 + EPSILON):
            await permit.wait_lost()
        await admin.flushall()
    successor = await semaphore.acquire(timeout=5)
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
