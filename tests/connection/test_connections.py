"""One connection for each client, few commands on it, and any client of redis.asyncio will do."""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from redis.asyncio import BlockingConnectionPool, Redis

from redsem_async import AnySemaphore, FairSemaphore, Semaphore, aclose, connect, from_url
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import connections, disconnected, scripts_run
from tests.harness.servers import StartServer, trusted_tls
from tests.harness.wait import all_free, give_back, queue_up, soon


@pytest.mark.fault(20)
async def test_one_connection_for_everything(server: EmbeddedRedis, admin: Redis) -> None:
    """However many there are, on a default client, whose pool raises at 100 connections."""
    async with Redis(host="127.0.0.1", port=server.port) as redis:
        sems: list[AnySemaphore] = [
            kind(redis, f"{kind.__name__} {number}", 100)
            for kind in (Semaphore, FairSemaphore)
            for number in range(5)
        ]
        held = await asyncio.gather(*(sem.acquire() for sem in sems for _ in range(100)))
        waiters = [asyncio.create_task(sem.acquire()) for sem in sems for _ in range(5)]
        for sem in sems:
            await sem.status()
        before = await scripts_run(admin)
        await asyncio.gather(*(permit.refresh() for permit in held))
        assert await scripts_run(admin) - before <= 2 * len(sems), "they travel together"
        assert await connections(admin) == 1
        await asyncio.gather(*(permit.release() for permit in held))
        await soon(give_back(*waiters))


async def test_connect_closes_everything(server: EmbeddedRedis, admin: Redis) -> None:
    async with connect(server.url) as redis:
        assert await redis.ping()
        sem = FairSemaphore(redis, "connected", 1)
        permit = await sem.acquire()
        assert await connections(admin) >= 1
    assert permit.lost
    await disconnected(admin)
    assert await admin.zcard("redsem:{connected}:holders") == 0


async def test_from_url_takes_options(server_url: str, name: str) -> None:
    """A client like any other, whose options win over what was chosen for it."""
    async with from_url(server_url, decode_responses=True, client_name="mine") as redis:
        assert await redis.client_getname() == "mine"
        async with FairSemaphore(redis, name, 1) as permit:
            assert await FairSemaphore(redis, name, 1).available() == 0
            permit.check()


Setup = Callable[[str], Redis]


def _default(url: str) -> Redis:
    address = urlsplit(url)
    return Redis(
        host=address.hostname or "localhost", port=address.port or 6379, password=address.password
    )


CLIENTS: dict[str, Setup] = {
    "default": _default,
    "ours": from_url,
    "RESP2, decoding": lambda url: Redis.from_url(url, protocol=2, decode_responses=True),
    "RESP3, decoding": lambda url: Redis.from_url(url, protocol=3, decode_responses=True),
    "single connection": lambda url: Redis.from_url(url, single_connection_client=True),
    "pool of one": lambda url: Redis.from_url(url, max_connections=1),
    "blocking pool of one": lambda url: Redis.from_pool(
        BlockingConnectionPool.from_url(url, max_connections=1, timeout=1)
    ),
    "short socket timeout": lambda url: Redis.from_url(
        url, socket_timeout=0.05, socket_connect_timeout=2
    ),
    "health checks": lambda url: Redis.from_url(url, health_check_interval=1),
    "latin-1": lambda url: Redis.from_url(url, encoding="latin-1", decode_responses=True),
}


async def _works(redis: Redis, other: Redis, name: str) -> None:
    """The whole of it: grants, messages, refreshes, loss, and the user's own commands beside."""
    here = FairSemaphore(redis, name, 1, lease=3.0, label="größe")
    there = FairSemaphore(other, name, 1, lease=3.0)
    async with here as permit:
        assert await there.try_acquire() is None
        waiter = await queue_up(there)
        await permit.refresh()
        assert (await here.status()).holders[0].client.label == "größe"
        assert await redis.ping()
    async with await soon(waiter, 0.5):  # it learns by a message
        waiter = await queue_up(here)
    permit = await soon(waiter, 0.5)
    assert await there.release(permit.id) is True
    await soon(permit.wait_lost(), 0.5)
    assert await redis.echo("still in order") in ("still in order", b"still in order")
    await all_free(here)


@pytest.mark.parametrize("client", CLIENTS)
async def test_any_client_does(
    server_url: str, other_redis: Redis, name: str, client: str
) -> None:
    """As the user has it, and without changing what the user does with it."""
    async with CLIENTS[client](server_url) as redis:
        await _works(redis, other_redis, name)


@pytest.mark.fault(21)
async def test_a_used_up_pool_is_enough(server_url: str, other_redis: Redis, name: str) -> None:
    """The user's blocking commands hold its connections: the semaphores have their own."""
    async with Redis.from_url(server_url, max_connections=1) as redis:
        blocking = asyncio.ensure_future(redis.blpop([f"{name} list"], timeout=5))
        await asyncio.sleep(0.05)
        sem = FairSemaphore(redis, name, 1)
        async with sem.acquire(timeout=1.0):
            assert not blocking.done()
        await other_redis.rpush(f"{name} list", "end")
        await soon(blocking)


async def test_a_password_and_another_database_will_do(embedded: StartServer) -> None:
    """Both come from the client's settings."""
    server = embedded("--requirepass", "hunter2")
    url = f"redis://:hunter2@127.0.0.1:{server.port}"
    async with Redis.from_url(f"{url}/3") as redis, Redis.from_url(f"{url}/3") as other:
        await _works(redis, other, "third")
        async with FairSemaphore(redis, "third", 1), Redis.from_url(f"{url}/0") as elsewhere:
            assert await FairSemaphore(elsewhere, "third", 1).exists() is False


async def test_a_unix_socket_and_tls_will_do(server: EmbeddedRedis, client_a: Redis) -> None:
    """Certificates and all that is said about them come from the client's settings."""
    async with Redis.from_url(server.unix_url) as redis:
        await _works(redis, client_a, "unix")
    async with trusted_tls(server) as (url, trusted):
        async with Redis.from_url(url, ssl_ca_certs=trusted) as redis:
            await _works(redis, client_a, "tls")
            await aclose(redis)
        async with Redis.from_url(url) as distrustful:
            with pytest.raises(ConnectionError):
                await FairSemaphore(distrustful, "tls", 1).acquire(timeout=0.3)
            await aclose(distrustful)
