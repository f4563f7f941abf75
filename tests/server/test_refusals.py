"""Servers that are there and refuse for a while: busy, loading, or without what they need."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import BackendUnavailable, Permit
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind
from tests.harness.inside import state_of
from tests.harness.proxy import Proxy
from tests.harness.replicas import embedded_replicas
from tests.harness.servers import StartServer
from tests.harness.topologies import tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    give_back,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

pytestmark = pytest.mark.one_mode

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
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Permits outlive it. Connected while SUBSCRIBE is refused too, a hub has messages later."""
    there = kind(client_b, "jobs", 2, lease=3.0, refresh_interval=0.2)
    semaphore = kind(client_a, "jobs", 2, lease=30.0)
    held = await there.acquire()
    async with busy(admin):
        acquiring = in_background(semaphore.acquire(timeout=20))
        with takes_at_most(0.4), pytest.raises(BackendUnavailable, match="BUSY"):
            await there.acquire(timeout=0.4)
        with pytest.raises(BackendUnavailable, match="BUSY"):
            await there.try_acquire()
        await asyncio.sleep(0.6)
        assert not acquiring.done()
    with takes_at_most(PAUSE + EPSILON):
        permit = await acquiring
    await until(lambda: held.expires_in > 2.5, "it is refreshed", within=1.5)
    assert not held.lost
    waiter = await waits_in_queue(semaphore)
    assert await held.release()
    await is_served(waiter, EPSILON)
    assert await permit.release()
    await all_free(semaphore)
    events = {vars(record).get("event") for record in caplog.records}
    assert events <= {"outage", "outage over"}, "it has no messages"


# -- a server that takes no writes


Heal = Callable[[], Awaitable[object]]


@asynccontextmanager
async def no_replicas(embedded: StartServer) -> AsyncGenerator[tuple[EmbeddedRedis, Heal]]:
    server = embedded("--min-replicas-to-write", "1")
    yield server, lambda: tell(server, "CONFIG", "SET", "min-replicas-to-write", 0)


@asynccontextmanager
async def misconf(embedded: StartServer) -> AsyncGenerator[tuple[EmbeddedRedis, Heal]]:
    server = embedded("--save", "3600", "1", "--dbfilename", "taken")
    (server.directory / "taken").mkdir()  # no file can have that name: saving fails
    async with Redis.from_url(server.url) as admin:
        await admin.set("something", "to save")
        with suppress(errors.ResponseError):
            await admin.bgsave()

        async def failed() -> bool:
            facts: dict[str, str] = await admin.info("persistence")
            return facts["rdb_last_bgsave_status"] == "err"

        await until(failed, "saving failed")
    yield server, lambda: tell(server, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")


@asynccontextmanager
async def master_down(embedded: StartServer) -> AsyncGenerator[tuple[EmbeddedRedis, Heal]]:
    with embedded_replicas() as servers:
        replica = servers.replicas[0]
        await tell(replica, "CONFIG", "SET", "replica-serve-stale-data", "no")
        servers.master.kill()

        async def alone() -> bool:
            return await refuses(replica, errors.MasterDownError, "MASTERDOWN")

        await until(alone, "it knows that its master is gone")
        yield replica, servers.promote


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    ("error", "refusing"),
    [("NOREPLICAS", no_replicas), ("MISCONF", misconf), ("MASTERDOWN", master_down)],
)
async def test_a_server_that_takes_no_writes_is_waited_for(
    kind: Kind,
    embedded: StartServer,
    connect: Connect,
    error: str,
    refusing: Callable[[StartServer], AbstractAsyncContextManager[tuple[EmbeddedRedis, Heal]]],
) -> None:
    """Until the deadline, and until it takes them again."""
    async with refusing(embedded) as (server, heal):
        semaphore = kind(connect(server.url), "jobs", 1)
        with takes_at_most(0.4), pytest.raises(BackendUnavailable, match=error):
            await semaphore.acquire(timeout=0.4)
        with takes_at_most(0.2), pytest.raises(BackendUnavailable, match=error):
            await semaphore.try_acquire()
        acquiring = in_background(semaphore.acquire(timeout=20))
        await asyncio.sleep(0.2)
        assert not acquiring.done()
        await heal()
        await is_served(acquiring, PAUSE + EPSILON)
        await all_free(semaphore)


# -- errors of a moment


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    "error",
    [
        "LOADING Redis is loading the dataset in memory",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Error running script (call to f_0): @user_script: 1: -READONLY You can't write.",
    ],
    ids=lambda error: next(word.strip("-") for word in error.split() if word.strip("-").isupper()),
)
@pytest.mark.parametrize("operation", ["acquire", "refresh", "release"])
async def test_passing_trouble_is_ridden_out(
    kind: Kind, proxied: Redis, proxy: Proxy, operation: str, error: str
) -> None:
    """Whichever call it meets; nothing was done, so it is asked again."""
    semaphore = kind(proxied, "jobs", 1, lease=5.0)
    await semaphore.reap()
    faults = [proxy.answer(operation, error) for _ in range(2)]
    permit = await semaphore.acquire(timeout=5)
    await permit.refresh()
    assert await permit.release()
    assert all(fault.struck.is_set() for fault in faults)
    await all_free(semaphore)


@pytest.mark.fault(29, 32)
@pytest.mark.parametrize(
    "error", ["NOSCRIPT No script.", "BUSY A script.", "TRYAGAIN A slot.", "READONLY A replica."]
)
async def test_refused_commands_keep_the_order_of_the_calls(
    kind: Kind, proxied: Redis, proxy: Proxy, error: str
) -> None:
    """Each would step in front of the one before, and the oldest caller would be the last."""
    semaphore = kind(proxied, "jobs", 3)
    await semaphore.reap()
    go_on = proxy.stop("acquire")
    asked: list[asyncio.Task[Permit]] = []
    for _ in range(3):
        asked.append(in_background(semaphore.acquire(timeout=5)))
        await until(lambda: len(asked) == len(state_of(semaphore).acquires_in_flight))
    faults = [proxy.answer("acquire", error) for _ in asked]
    go_on.set()
    permits = await asyncio.gather(*asked)
    assert all(fault.struck.is_set() for fault in faults)
    assert permits == sorted(permits, key=lambda permit: permit.fencing_token)
    await give_back(*permits)
