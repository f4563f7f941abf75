"""Servers that are there and refuse for a while: busy, loading, or without what they need."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import BackendUnavailable, FairSemaphore
from tests.harness.clients import Connect
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.topologies import tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

PAUSE = 1.0  # seconds at most between two attempts to reach a server


@pytest.mark.fault(32)
async def test_a_server_that_loads_is_waited_for(embedded: StartServer, connect: Connect) -> None:
    """LOADING: it comes back with all that it kept, and each holder still holds."""
    # It takes its time over each key, and answers after every two megabytes.
    server = embedded(
        *("--dbfilename", "slow.rdb", "--rdbcompression", "no"),
        *("--key-load-delay", "10000"),  # microseconds
    )
    held = FairSemaphore(connect(server.url), "jobs", 1, lease=30.0)
    waiting = FairSemaphore(connect(server.url), "jobs", 1, lease=30.0)
    holder = await held.acquire()
    waiter = await waits_in_queue(waiting)
    async with Redis.from_url(server.url) as admin:
        await admin.mset({f"ballast-{n}": "x" * 64_000 for n in range(300)})
        await admin.save()
    server.kill()
    coming_back = asyncio.create_task(asyncio.to_thread(server.restart))

    async def loading() -> bool:
        try:
            await tell(server, "ZCARD", "anything")
        except errors.RedisError as error:
            return isinstance(error, errors.BusyLoadingError) or "LOADING" in str(error)
        return False

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
    await is_served(waiter, PAUSE + EPSILON, after=holder)
    await all_free(held)


@asynccontextmanager
async def busy(admin: Redis) -> AsyncGenerator[None]:
    """A script, not of ours, that never ends: the server says BUSY until it is killed."""
    await admin.config_set("lua-time-limit", 20)
    running = asyncio.ensure_future(admin.eval("while true do end", 0))

    async def is_busy() -> bool:
        try:
            await admin.ping()
        except errors.ResponseError as error:
            return str(error).startswith("BUSY")
        return False

    await until(is_busy, "the server is busy")
    try:
        yield
    finally:
        await admin.script_kill()
        with suppress(errors.ResponseError):
            await running


@pytest.mark.fault(32)
async def test_a_busy_server_is_waited_for(
    client_a: Redis, client_b: Redis, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Permits outlive it. Connected while SUBSCRIBE is refused too, a hub has messages later."""
    there = FairSemaphore(client_b, "jobs", 2, lease=3.0, refresh_interval=0.2)
    semaphore = FairSemaphore(client_a, "jobs", 2, lease=30.0)
    held = await there.acquire()
    async with busy(admin):
        acquiring = in_background(semaphore.acquire(timeout=20))
        with takes_at_most(0.4), pytest.raises(BackendUnavailable, match="BUSY"):
            await there.acquire(timeout=0.4)
        with pytest.raises(BackendUnavailable, match="BUSY"):
            await there.try_acquire()
        assert not acquiring.done()
    with takes_at_most(PAUSE + EPSILON):
        permit = await acquiring
    await until(lambda: held.expires_in > 2.5, "it is refreshed", within=1.5)
    assert not held.lost
    waiter = await waits_in_queue(semaphore)
    assert await held.release()
    await is_served(waiter, EPSILON)
    assert await permit.release()
    events = {vars(record).get("redsem_event") for record in caplog.records}
    assert events <= {"outage", "outage over"}, "it has no messages"


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    "error",
    [
        "LOADING Redis is loading the dataset in memory",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "MISCONF Errors writing to the AOF file.",
        "BUSY Redis is busy running a script.",
        "ERR Error running script (call to f_0): @user_script: 1: -READONLY You can't write.",
    ],
    ids=lambda error: next(word.strip("-") for word in error.split() if word.strip("-").isupper()),
)
async def test_passing_trouble_is_ridden_out(proxied: Redis, proxy: Proxy, error: str) -> None:
    """Whichever call it meets; nothing was done, so it is asked again."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=5.0)
    await semaphore.reap()
    operations = ("acquire", "refresh", "release")
    faults = [proxy.answer(each, error) for each in operations for _ in range(2)]
    permit = await semaphore.acquire(timeout=5)
    await permit.refresh()
    assert await permit.release()
    assert all(fault.struck.is_set() for fault in faults)
    await all_free(semaphore)
