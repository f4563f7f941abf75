"""Whether Redis takes requests: what a readiness probe is told, and how soon."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    ModeMismatch,
    Semaphore,
    SemaphoreClosed,
    SlotsMismatch,
    aclose,
)
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.harness.clients import Client, Connect, Make, key_of
from tests.harness.servers import stopped
from tests.harness.wait import EPSILON, all_free, is_served, queue_up, takes_at_most, until

TIMEOUT = 0.5  # seconds


@pytest.mark.parametrize("options", [{"limit": 1}, {"limit": 1, "key_limit": 2}, {"slots": ["a"]}])
async def test_a_full_semaphore_is_ready_and_nobody_loses_a_place(
    client: MemoryBackend, options: dict[str, Any]
) -> None:
    """It is asked for nothing, by a process that holds, one that waits and one that is new."""
    key: dict[str, Any] = {"key": "a"} if "key_limit" in options else {}
    clients = client, client.peer(), client.peer()
    held, waits, new = (FairSemaphore(each, "jobs", **options) for each in clients)
    permit = await held.acquire(**key)
    waiter = await queue_up(waits, **key)
    for semaphore in (held, waits, new):
        await semaphore.ready()
    assert ((await new.status()).held, (await new.status()).waiting) == (1, 1)
    await held.pause()
    await new.ready()
    await held.resume()
    assert await permit.release()
    assert await (await waiter).release()
    await all_free(held)


async def test_a_probe_introduces_its_process_again(client: MemoryBackend) -> None:
    """Redis may have forgotten it, and says so."""
    semaphore = FairSemaphore(client, "jobs", 1)
    await semaphore.ready()
    await FairSemaphore(client.peer(), "jobs", 1).delete()
    await semaphore.ready()
    await all_free(semaphore)


async def test_a_name_that_is_in_use_otherwise_is_not_ready(client: MemoryBackend) -> None:
    async with FairSemaphore(client, "fair", 1), Semaphore(client, "slots", slots=["a"]):
        with pytest.raises(ModeMismatch):
            await Semaphore(client.peer(), "fair", 1).ready()
        with pytest.raises(SlotsMismatch):
            await Semaphore(client.peer(), "slots", slots=["b"]).ready()


async def test_nothing_is_ready_while_the_store_is_down(client: MemoryBackend) -> None:
    """Until it is back: then the next probe is told so at once."""
    semaphore = FairSemaphore(client, "jobs", 1)
    client.down()
    for _ in range(2):
        with takes_at_most(0.1 + EPSILON), pytest.raises(BackendUnavailable, match="is down"):
            await semaphore.ready(timeout=0.1)
    client.up()
    await semaphore.ready(timeout=0.1)


async def test_nothing_is_ready_once_the_close_has_begun(make: Make, client: Client) -> None:
    """Holders may finish, but no more requests should be sent to this process."""
    semaphore = make(1)
    async with semaphore:
        closing = asyncio.create_task(aclose(client, drain=5.0))
        await asyncio.sleep(0)
        with pytest.raises(SemaphoreClosed):
            await semaphore.ready()
    await closing


# -- servers


async def test_a_probe_serves_who_waits(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """What its command grants to this process is handed out, as a heartbeat's is."""
    here, there = (FairSemaphore(client, "jobs", 1, lease=30.0) for client in (client_a, client_b))
    permit = await there.acquire()
    waiter = await queue_up(here)
    await admin.zadd(key_of(here, "holders"), {permit.id: 1.0})
    await here.ready()
    await is_served(waiter, EPSILON)
    assert not await permit.release()


Trouble = Callable[[EmbeddedRedis, Redis], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def frozen(server: EmbeddedRedis, _: Redis) -> AsyncGenerator[None]:
    with stopped(server):
        yield


@asynccontextmanager
async def full(_: EmbeddedRedis, admin: Redis) -> AsyncGenerator[None]:
    await admin.config_set("maxmemory", "1")
    yield
    await admin.config_set("maxmemory", "0")


@asynccontextmanager
async def demoted(_: EmbeddedRedis, admin: Redis) -> AsyncGenerator[None]:
    await admin.replicaof("127.0.0.1", "1")
    yield
    await admin.replicaof("NO", "ONE")


@asynccontextmanager
async def restricted(_: EmbeddedRedis, admin: Redis) -> AsyncGenerator[None]:
    await admin.acl_setuser("default", enabled=True, commands=["-hset"])
    yield
    await admin.acl_setuser("default", enabled=True, commands=["+hset"])


@pytest.mark.parametrize(
    ("trouble", "error", "reason"),
    [
        (frozen, BackendUnavailable, "no answer in 0.5 s"),
        (demoted, BackendUnavailable, "READONLY"),
        (full, BackendError, "OOM"),
        (restricted, BackendError, "NOPERM|permission|can't"),
    ],
)
async def test_a_server_that_would_grant_nothing_is_not_ready(
    server: EmbeddedRedis,
    admin: Redis,
    client_a: Redis,
    trouble: Trouble,
    error: type[BackendError],
    reason: str,
) -> None:
    """Reads would be answered all the same, so that only a write tells."""
    semaphore = FairSemaphore(client_a, "jobs", 1)
    await semaphore.ready()
    async with trouble(server, admin):
        with takes_at_most(TIMEOUT + EPSILON), pytest.raises(error, match=reason) as told:
            await semaphore.ready(timeout=TIMEOUT)
        assert type(told.value) is error

    async def is_ready() -> bool:
        try:
            await semaphore.ready(timeout=TIMEOUT)
        except BackendUnavailable:
            return False
        return True

    await until(is_ready, "it is ready again")
    await all_free(semaphore)


async def test_a_server_that_is_not_there_is_not_ready(
    server: EmbeddedRedis, connect: Connect
) -> None:
    """For a new process as well, which was never connected."""
    server.kill()
    semaphore = FairSemaphore(connect(server.url), "jobs", 1)
    with takes_at_most(TIMEOUT + EPSILON), pytest.raises(BackendUnavailable, match="can't reach"):
        await semaphore.ready(timeout=TIMEOUT)
    await asyncio.to_thread(server.restart)
    await semaphore.ready(timeout=5.0)
