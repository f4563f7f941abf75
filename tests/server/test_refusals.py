"""Servers that are there, and cannot serve yet: loading their data, or cut off from a master."""

import asyncio

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import BackendUnavailable
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind
from tests.harness.replicas import Replicated
from tests.harness.servers import StartServer
from tests.harness.topologies import tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    takes_at_most,
    until,
    waits_in_queue,
)

PAUSE = 1.0  # seconds at most between two attempts to reach a server


async def refuses(server: EmbeddedRedis, kind: type[errors.RedisError], word: str) -> bool:
    """Whether a server refuses a command with that error."""
    try:
        await tell(server, "ZCARD", "anything")
    except errors.RedisError as error:
        return isinstance(error, kind) or word in str(error)
    return False


@pytest.mark.fault(32)
async def test_a_server_that_loads_its_data_is_waited_for(
    kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """LOADING: it comes back with all that it kept, and each holder still holds."""
    # It takes its time over each key, and answers after every two megabytes.
    server = embedded(
        *("--dbfilename", "slow.rdb", "--rdbcompression", "no"),
        *("--key-load-delay", "10000"),  # microseconds
    )
    held = kind(connect(server.url), "jobs", 1, lease=30.0)
    waiting = kind(connect(server.url), "jobs", 1, lease=30.0)
    holder = await held.acquire()
    waiter = await waits_in_queue(waiting)
    async with Redis.from_url(server.url) as admin:
        await admin.mset({f"ballast-{n}": "x" * 64_000 for n in range(300)})
        await admin.save()
    server.kill()
    coming_back = asyncio.create_task(asyncio.to_thread(server.restart))

    async def loading() -> bool:
        return await refuses(server, errors.BusyLoadingError, "LOADING")

    await until(loading, "it is loading")
    with takes_at_most(0.4), pytest.raises(BackendUnavailable):
        await waiting.acquire(timeout=0.4)
    assert await loading(), "it was loading all the time"
    assert not coming_back.done()
    await coming_back
    with takes_at_most(PAUSE + EPSILON):
        await holder.refresh()
    assert not holder.lost
    assert not waiter.done()
    assert await holder.release()
    with takes_at_most(PAUSE + EPSILON):
        assert await (await waiter).release()
    await all_free(held)


@pytest.mark.fault(32)
async def test_a_replica_without_its_master_is_waited_for(
    kind: Kind, replicated: Replicated, connect: Connect
) -> None:
    """MASTERDOWN, until somebody promotes it."""
    replica = replicated.replicas[0]
    await tell(replica, "CONFIG", "SET", "replica-serve-stale-data", "no")
    replicated.master.kill()

    async def alone() -> bool:
        return await refuses(replica, errors.MasterDownError, "MASTERDOWN")

    await until(alone, "it knows that its master is gone")
    semaphore = kind(connect(replica.url), "jobs", 1)
    with takes_at_most(0.4), pytest.raises(BackendUnavailable, match="MASTERDOWN"):
        await semaphore.acquire(timeout=0.4)
    with takes_at_most(0.2), pytest.raises(BackendUnavailable, match="MASTERDOWN"):
        await semaphore.try_acquire()
    acquiring = in_background(semaphore.acquire(timeout=20))
    await asyncio.sleep(0.2)
    assert not acquiring.done()
    await replicated.promote()
    with takes_at_most(PAUSE + EPSILON):
        permit = await acquiring
    assert await permit.release()
    await all_free(semaphore)
