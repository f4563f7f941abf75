"""``heartbeat="thread"``: permits outlive a blocked event loop, but not a stuck one."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.credentials import CredentialProvider

import redsem_async
from redsem_async import Permit
from redsem_async._protocol.backend import BlockingLink
from redsem_async._redis.backend import RedisBackend
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.failover.test_sentinel import masters_client, sentinel_of
from tests.harness.children import StartWorker, Worker
from tests.harness.clients import Connect, Kind, kill_connection
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer, trusted_tls
from tests.harness.topologies import Cluster
from tests.harness.wait import NOISE, all_free, in_background, until, waits_in_queue

pytestmark = pytest.mark.one_mode

LEASE = 1.0
STALL = 3.2 * LEASE
GUARDED: dict[str, Any] = {"lease": LEASE, "heartbeat": "thread"}


Compute = Callable[..., Awaitable[Worker]]


@pytest.fixture
def compute(start: StartWorker, server: EmbeddedRedis) -> Compute:
    """Starts a process that holds the permit of ``jobs`` and blocks its loop."""

    async def compute(kind: Kind, **options: Any) -> Worker:
        url = f"{server.url}?client_name=busy"
        return await start(
            "compute", **{"url": url, "kind": kind, "seconds": STALL, **GUARDED, **options}
        )

    return compute


async def computed_by(busy: Worker, *, lost: bool) -> dict[str, Any]:
    """What *busy* reports of its computation, during which its loop was blocked."""
    computed = await busy.heard("computed")
    assert computed["turns"] == 0, "the loop was not blocked"
    assert computed["lost"] == lost
    if not lost:
        await busy.heard("left")
    return computed


def block() -> None:
    """Block the event loop of the test."""
    time.sleep(STALL)


def threads() -> int:
    """How many threads of ours there are in this process."""
    return sum(thread.name == "redsem-watchdog" for thread in threading.enumerate())


async def second_connection(admin: Redis) -> int | None:
    """The server's number for the connection of the thread of *busy*: it subscribes to nothing."""
    clients = await admin.client_list()
    found = [int(c["id"]) for c in clients if c["name"] == "busy" and "P" not in c["flags"]]
    assert len(found) <= 1, "a thread has one connection"
    return found[0] if found else None


# -- a body that computes


@pytest.mark.parametrize("after", [0.0, 0.7 * LEASE])
async def test_a_body_that_computes_for_three_leases_keeps_its_permit(
    kind: Kind, client_a: Redis, compute: Compute, after: float
) -> None:
    """The loop refreshed nothing, and the waiter waited for all of it."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    busy = await compute(kind, after=after, burns=True)
    held = await busy.heard("held")
    waiter = await waits_in_queue(semaphore)
    computed = await computed_by(busy, lost=False)
    assert 0 < computed["lowest"] < LEASE / 2, "it was refreshed all the time"
    permit = await waiter
    assert permit.waited >= STALL - NOISE
    assert permit.fencing_token > held["token"]
    assert await busy.ended() == 0
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.parametrize("awaits", [0.0, 5.0])
async def test_a_loop_that_is_stuck_for_too_long_loses_its_permit(
    kind: Kind, client_a: Redis, compute: Compute, awaits: float
) -> None:
    """Whether the body comes to an end or to an await, it learns of it when it comes back."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    busy = await compute(kind, longest_stall=1.5 * LEASE, seconds=5 * LEASE, awaits=awaits)
    held = await busy.heard("held")
    permit = await (await waits_in_queue(semaphore))
    assert 1.5 * LEASE <= time.monotonic() - held["at"] <= 2.5 * LEASE + NOISE
    await computed_by(busy, lost=True)
    if awaits:
        assert (await busy.heard("cancelled"))["lost"]
    told = re.match(
        r"the event loop was blocked for ([\d.]+) s", (await busy.heard("lost"))["reason"]
    )
    assert told is not None and float(told[1]) >= 5 * LEASE
    assert await busy.ended() == 0
    assert not permit.lost
    assert await permit.release(), "the late one released its successor's permit"


async def test_a_stuck_loop_is_told_to_the_operator(
    kind: Kind, client_a: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for a stall: it names what no traceback will."""
    options: dict[str, Any] = {**GUARDED, "lease": 0.5, "longest_stall": 0.5}
    async with kind(client_a, "jobs", 1, cancel_on_loss=False, **options) as permit:
        with caplog.at_level(logging.WARNING, "redsem_async"):
            block()
        assert permit.lost
    assert sum("the event loop is blocked" in said for said in caplog.messages) == 1


async def test_a_foreign_release_is_seen_by_a_body_that_computes(
    kind: Kind, client_a: Redis, compute: Compute
) -> None:
    """The message waits in the blocked loop, but the thread's refresh is answered."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    busy = await compute(kind, asks=True, seconds=10 * LEASE)
    held = await busy.heard("held")
    assert await semaphore.release(held["id"])
    released = time.monotonic()
    computed = await computed_by(busy, lost=True)
    assert computed["at"] - released <= LEASE / 2 + LEASE / 12 + NOISE
    assert (await busy.heard("lost"))["reason"] == "the server does not hold it any more"
    assert await busy.ended() == 0
    await all_free(semaphore)


@pytest.mark.parametrize("taken", [True, False])
async def test_a_process_that_stops_while_it_computes_is_told_by_check(
    kind: Kind, client_a: Redis, compute: Compute, taken: bool
) -> None:
    """Also where no other process wanted the permit, and a late refresh could have been lucky."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    busy = await compute(kind, asks=True, seconds=20 * LEASE)
    await busy.heard("held")
    await asyncio.sleep(1.2 * LEASE)  # the thread has refreshed it by now
    busy.stop()
    successor = await semaphore.acquire(timeout=5) if taken else None
    await asyncio.sleep(0 if taken else 1.2 * LEASE)
    busy.resume()
    resumed = time.monotonic()
    assert (await computed_by(busy, lost=True))["at"] - resumed <= NOISE
    await busy.heard("lost")
    assert await busy.ended() == 0
    if successor is not None:
        assert await successor.release()
    await all_free(semaphore)


@pytest.mark.parametrize("recovery", ["grace", None])
async def test_state_that_is_lost_during_the_stall(
    kind: Kind, client_a: Redis, admin: Redis, compute: Compute, recovery: Any
) -> None:
    """With a grace period the thread puts it back, because the loop cannot."""
    back = recovery == "grace"
    semaphore = kind(client_a, "jobs", 1, lease=LEASE, recovery=recovery)
    busy = await compute(kind, recovery=recovery, asks=True)
    held = await busy.heard("held")
    await admin.flushall()

    async def waits() -> tuple[Permit, float]:
        return await semaphore.acquire(timeout=10), time.monotonic()

    waiter = in_background(waits())
    computed = await computed_by(busy, lost=not back)
    permit, served_at = await waiter
    assert served_at >= computed["at"] or not back
    assert permit.fencing_token > held["token"]
    assert await permit.release()
    await all_free(semaphore)


# -- the thread's connection


async def test_a_connection_killed_during_the_stall_is_made_again(
    kind: Kind, client_a: Redis, admin: Redis, compute: Compute
) -> None:
    """The thread has nothing to help it, and half a lease."""
    busy = await compute(kind)
    await busy.heard("held")
    killed: set[int | None] = set()
    for _ in range(3):
        await until(lambda: second_connection(admin), "the thread is connected", within=LEASE)
        number = await second_connection(admin)
        killed.add(number)
        assert await admin.client_kill_filter(_id=str(number)) == 1
        await asyncio.sleep(0.6 * LEASE)
    assert len(killed) == 3
    await computed_by(busy, lost=False)
    await all_free(kind(client_a, "jobs", 1))


async def test_a_refresh_whose_answer_is_lost_is_sent_again(
    kind: Kind, client_a: Redis, proxy: Proxy, compute: Compute
) -> None:
    """No answer is not a no; a half-open connection is noticed while there is time."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    fault = proxy.swallow("refresh")
    lease = 4 * LEASE  # half of which is for two attempts, with the interpreter's lock shared
    busy = await compute(kind, url=proxy.url, lease=lease, seconds=2.5 * lease)
    held = await busy.heard("held")
    async with asyncio.timeout(lease):
        await fault.struck.wait()
    assert fault.sent is not None
    assert fault.sent.connection != proxy.operations("acquire")[0].connection
    before = len(proxy.operations("refresh"))
    await until(lambda: len(proxy.operations("refresh")) > before, "it is sent again", lease / 2)
    assert [holder.id for holder in (await semaphore.status()).holders] == [held["id"]]
    half_open = proxy.operations("refresh")[-1].connection
    proxy.connections[half_open].dead = True
    await computed_by(busy, lost=False)
    assert proxy.operations("refresh")[-1].connection not in (half_open, fault.sent.connection)
    subscribed = {sent.connection for sent in proxy.operations("SUBSCRIBE")}
    assert len(subscribed) == 1, "messages would come twice"
    await all_free(semaphore)


@pytest.mark.timing
async def test_the_second_connection_comes_and_goes_and_says_nothing(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """It stands by while permits are held: it subscribes to nothing and refreshes nothing."""
    semaphore = kind(proxied, "jobs", 1, **GUARDED)
    await semaphore.status()
    assert (threads(), len(proxy.open_connections())) == (0, 1)
    for _ in range(2):
        async with semaphore as permit:
            await until(lambda: len(proxy.open_connections()) == 2, "both are open", LEASE / 2)
            await asyncio.sleep(1.5 * LEASE)
            assert not permit.lost
            assert threads() == 1
        await until(lambda: threads() == 0, "the thread is gone", within=3.0)
        await until(lambda: len(proxy.open_connections()) == 1, "its connection is gone")
    assert len(proxy.operations("refresh")) >= 5
    for operation in ("refresh", "SUBSCRIBE"):
        assert {sent.connection for sent in proxy.operations(operation)} == {0}


async def test_the_hubs_own_connection_may_fail_as_well(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """A stall that begins with a killed connection: what is held stays held, and is given back."""
    semaphore = kind(client_a, "jobs", 1, **GUARDED)
    async with semaphore as permit:
        await kill_connection(admin, "here")
        block()
        assert not permit.lost
        await asyncio.sleep(LEASE)
        assert not permit.lost
    await all_free(semaphore)


async def test_a_thread_that_finds_no_way_says_so_once_and_goes_on_trying(
    kind: Kind, proxied: Redis, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The server takes no more clients: the loop's own connection does what it always did."""
    semaphore = kind(proxied, "jobs", 1, **GUARDED)
    await semaphore.status()
    proxy.refusing = True
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with semaphore as permit:
            await asyncio.sleep(1.5 * LEASE)
            assert not permit.lost
            proxy.refusing = False
            await until(lambda: len(proxy.open_connections()) == 2, "it found one")
    assert sum("second connection" in said for said in caplog.messages) == 1


async def test_the_thread_takes_longer_to_connect_each_time(
    kind: Kind, client_a: Redis, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a quarter of a lease is not enough, as for TLS to a distant server."""
    connect, attempts = RedisBackend.connect_blocking, 0

    def connect_slowly(node: RedisBackend, hub_id: str, timeout: float) -> BlockingLink:
        nonlocal attempts
        attempts += 1
        time.sleep(min(timeout, 0.3 * LEASE))
        if timeout < 0.3 * LEASE:
            raise TimeoutError
        return connect(node, hub_id, timeout)

    async def the_thread_is_connected() -> bool:
        clients = await admin.client_list()
        here = [client for client in clients if client["name"] == "here"]
        return any("P" not in client["flags"] and int(client["age"]) > 1 for client in here)

    monkeypatch.setattr(RedisBackend, "connect_blocking", connect_slowly)
    async with kind(client_a, "jobs", 1, **GUARDED):
        await until(the_thread_is_connected, "the thread is connected")
    assert attempts > 1, "the first attempt was long enough"


async def test_the_thread_connects_as_the_client_does(
    kind: Kind, embedded: StartServer, compute: Compute
) -> None:
    """A password, another database and a path come from the client's settings."""
    server = embedded("--requirepass", "hunter2")
    for url in (f"redis://:hunter2@127.0.0.1:{server.port}/3", f"{server.unix_url}?db=4"):
        busy = await compute(kind, url=url.replace("unix://", "unix://:hunter2@"))
        await busy.heard("held")
        await computed_by(busy, lost=False)


async def test_the_thread_speaks_tls(
    kind: Kind, server: EmbeddedRedis, client_a: Redis, compute: Compute
) -> None:
    """With the certificates of the client."""
    async with trusted_tls(server) as (url, trusted):
        busy = await compute(kind, url=f"{url}?ssl_ca_certs={trusted}")
        await busy.heard("held")
        await computed_by(busy, lost=False)
    await all_free(kind(client_a, "jobs", 1))


class OwnConnection(Connection):
    """Of a user's making: redis-py has no synchronous class for it."""


class OwnSentinel(Sentinel):
    """It may find masters in another way."""


class OnlyAsynchronous(CredentialProvider):
    """It would have no credentials for a thread."""

    async def get_credentials_async(self) -> tuple[str]:
        return ("hunter2",)


async def on_connect(_: Any) -> None:
    """Awaited by asynchronous connections only."""


@pytest.mark.parametrize(
    ("client", "named"),
    [
        (Redis(connection_pool=ConnectionPool(OwnConnection)), "OwnConnection"),
        (Redis(redis_connect_func=on_connect), "redis_connect_func"),
        (Redis(credential_provider=OnlyAsynchronous()), "OnlyAsynchronous"),
        (cast("Any", OwnSentinel)([("127.0.0.1", 1)]).master_for("watched"), "OwnSentinel"),
    ],
)
def test_a_client_that_a_thread_cannot_connect_like_is_refused(
    kind: Kind, client: Redis, named: str
) -> None:
    """At once, and not when the loop is blocked."""
    kind(client, "jobs", 1)
    with pytest.raises(TypeError, match=named):
        kind(client, "jobs", 1, heartbeat="thread")


# -- many, and the end


async def test_two_hundred_permits_are_kept_by_one_thread(kind: Kind, client_a: Redis) -> None:
    """Of several semaphores, with different leases and weights."""
    semaphores = [
        kind(client_a, f"jobs-{n}", 60, lease=LEASE * (1 + n % 2), heartbeat="thread")
        for n in range(5)
    ]
    held: list[Permit] = await asyncio.gather(
        *(each.acquire(permits=1 + n % 2) for each in semaphores for n in range(40))
    )
    block()
    assert threads() == 1
    assert not [permit for permit in held if permit.lost]
    for each in semaphores:
        assert (await each.status(0)).held == 60
    assert all(await asyncio.gather(*(permit.release() for permit in held)))
    await asyncio.gather(*map(all_free, semaphores))


async def test_a_thread_that_waits_for_an_answer_is_not_idle(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays for as long as there is a permit, however long a look takes."""
    monkeypatch.setattr("redsem_async._keepalive.watchdog.IDLE", 0.001)
    semaphore = kind(MemoryBackend(), "jobs", 1, **GUARDED)
    async with semaphore as permit:
        block()
        assert not permit.lost
        assert threads() == 1
    await until(lambda: threads() == 0, "the thread is gone")


async def test_aclose_ends_the_thread(kind: Kind, server: EmbeddedRedis, connect: Connect) -> None:
    """Nothing of it is left when it returns; another is started when it is needed."""
    client = connect(server.url, protocol=2, decode_responses=True)  # it connects as this would
    semaphore = kind(client, "jobs", 2, cancel_on_loss=False, **GUARDED)
    permit = await semaphore.acquire()
    await until(lambda: threads() == 1, "the thread runs")
    began = time.monotonic()
    await redsem_async.aclose(client)
    assert time.monotonic() - began <= NOISE
    assert threads() == 0
    assert permit.lost
    async with semaphore as again:
        block()
        assert not again.lost
    await all_free(semaphore)


@pytest.mark.parametrize("closes", [True, False])
async def test_a_program_may_end_with_a_thread(
    kind: Kind, client_a: Redis, start: StartWorker, closes: bool
) -> None:
    """A loop that was closed refreshes nothing any more; and the program ends at once."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    worker = await start("close_the_loop", kind=kind, closes=closes, **GUARDED)
    held = await worker.heard("held")
    assert held["guardians"] == 1
    waiter = in_background(semaphore.acquire(timeout=10))
    left = await worker.heard("left")
    if closes:
        assert left["guardians"] == 0
        assert left["at"] - held["at"] <= 1.0 + NOISE
    assert await worker.ended(within=3.0) == 0
    permit = await waiter
    assert permit.waited <= LEASE + 1.0 + NOISE
    assert await permit.release()


# -- other places where semaphores are kept


async def test_a_slot_that_moves_during_the_stall_is_followed(
    kind: Kind, cluster: Cluster, compute: Compute
) -> None:
    """The thread refreshes where the semaphore has gone; the loop follows when it can."""
    lease = 2 * LEASE
    target = cluster.shards[1].master
    name = await cluster.name_on(cluster.shards[0])
    where = {"name": name, "url": cluster.url, "cluster": True}
    busy = await compute(kind, **where, lease=lease, seconds=3 * lease)
    held = await busy.heard("held")
    await cluster.move(name, target)
    assert await cluster.owner_of(name) == target
    await computed_by(busy, lost=False)
    assert await busy.ended() == 0
    async with RedisCluster.from_url(cluster.url) as redis:
        semaphore = kind(redis, name, 1)
        await all_free(semaphore)
        async with semaphore as permit:
            assert permit.fencing_token > held["token"]
        await redsem_async.aclose(redis)


async def test_semaphores_of_several_shards_are_kept(kind: Kind, cluster: Cluster) -> None:
    """By a thread for each, so that none of them waits for another's server."""
    async with RedisCluster.from_url(cluster.url) as redis:
        names = [await cluster.name_on(shard) for shard in cluster.shards]
        held = [await kind(redis, name, 1, **GUARDED).acquire() for name in names]
        block()
        assert not [permit for permit in held if permit.lost]
        assert threads() == len(cluster.shards)
        assert all(await asyncio.gather(*(permit.release() for permit in held)))
        await redsem_async.aclose(redis)
        assert threads() == 0


@pytest.mark.parametrize("heartbeat", ["thread", "task"])
async def test_a_memory_backend_is_no_different(kind: Kind, heartbeat: Any) -> None:
    """Users' tests of handlers that block see what will happen."""
    backend = MemoryBackend()
    semaphore = kind(backend, "jobs", 1, lease=LEASE, heartbeat=heartbeat, cancel_on_loss=False)
    async with semaphore as permit:
        block()
        assert permit.lost == (heartbeat == "task")
    await all_free(kind(backend.peer(), "jobs", 1))


async def test_sentinels_clients_can_be_kept_by_a_thread(
    kind: Kind, server: EmbeddedRedis
) -> None:
    """The thread asks the sentinels over connections of its own: theirs belong to the loop."""
    with sentinel_of(server) as port:
        async with masters_client(port) as client:
            semaphore = kind(client, "jobs", 1, **GUARDED)
            async with semaphore as permit:
                block()
                assert not permit.lost
            await all_free(semaphore)
            await redsem_async.aclose(client)
            assert threads() == 0
