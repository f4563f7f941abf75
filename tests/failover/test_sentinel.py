"""A client that Sentinel gives is as good as any."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import Sentinel

from redsem_async import BackendUnavailable, FairSemaphore, aclose, connect, from_url
from redsem_async.testing import EmbeddedRedis
from tests.harness.replicas import SERVICE, Replicated, embedded_sentinels
from tests.harness.wait import queue_up, soon, tasks_end_soon

TLS: dict[str, Any] = {"ssl": True}


@contextmanager
def sentinel_of(master: EmbeddedRedis) -> Generator[int]:
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


async def test_sentinels_client_will_do(server: EmbeddedRedis, client_a: Redis) -> None:
    """It finds its master when it connects; the hub's own connection does the same, and goes."""
    with sentinel_of(server) as port:
        async with tasks_end_soon(), masters_client(port) as client:
            here, there = (FairSemaphore(each, "watched", 1) for each in (client, client_a))
            holder = await there.acquire()
            waiter = await queue_up(here)
            await holder.release()
            async with await soon(waiter) as permit:
                assert await there.try_acquire() is None
                assert (await there.status()).holders[0].id == permit.id
            await aclose(client_a)


async def test_an_error_names_the_master_and_not_an_address() -> None:
    """With Sentinel there is no address before there is a connection."""
    async with masters_client(1) as client:
        with pytest.raises(BackendUnavailable, match=SERVICE):
            await FairSemaphore(client, "watched", 1).acquire(timeout=0.2)


async def test_a_url_may_name_sentinels(server: EmbeddedRedis) -> None:
    """The first of them is not there; the connection to the second is closed with the client."""
    with embedded_sentinels(Replicated(server, ())) as flock:
        port = flock.sentinels[0].port
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{SERVICE}/0"
        async with connect(url) as client, FairSemaphore(client, "watched", 1):
            pool: Any = client.connection_pool
            of_sentinel: Any = pool.sentinel_manager.sentinels[0].connection_pool
            (connection,) = of_sentinel._available_connections
            assert connection.is_connected
        assert not connection.is_connected, "closed with the client"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:x/main",
        "redis+sentinel:///main",
        "redis+sentinel://one",
        "redis+sentinel://one/main/zero",
        "redis+sentinel://one/main?ssl=true",
    ],
)
def test_a_url_of_sentinels_that_says_too_little(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|write"):
        _ = from_url(url)


def test_a_url_of_sentinels_may_ask_for_tls_by_an_option() -> None:
    for url, options in (("rediss+sentinel://one/main", {}), ("redis+sentinel://one/main", TLS)):
        pool: Any = from_url(url, **options).connection_pool
        [sentinel] = pool.sentinel_manager.sentinels
        for each in (pool, sentinel.connection_pool):
            assert issubclass(each.connection_class, SSLConnection)


def test_a_url_of_sentinels_may_hold_settings() -> None:
    """As that of a server, and the sentinels' own password."""
    client = from_url(
        "rediss+sentinel://me:p%40ss@one,[::1]:7000/main/3?sentinel_password=word&ssl_cert_reqs=none",
        db=5,
    )
    pool: Any = client.connection_pool
    settings = pool.connection_kwargs
    assert pool.service_name == "main"
    assert (settings["username"], settings["password"], settings["db"]) == ("me", "p@ss", 3)
    of_sentinels = [
        each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels
    ]
    hosts = [("one", 26379), ("::1", 7000)]
    assert [(each["host"], each["port"]) for each in of_sentinels] == hosts
    for each in of_sentinels:
        assert (each["password"], each["ssl_cert_reqs"]) == ("word", "none")
