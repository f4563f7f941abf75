"""A server that refuses what it is asked, or is not there."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

import redsem_async
from redsem_async import (
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    SemaphoreClosed,
)
from redsem_async._core.lease import liveness_timeout, reply_timeout
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import EACH_KEY, Connect, Kind, key_of, scripts_run
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.wait import (
    EPSILON,
    all_free,
    cancelled,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

pytestmark = pytest.mark.one_mode

PAUSE = 1.0  # seconds at most between two attempts to reach a server


# -- a server that refuses for a while


@asynccontextmanager
async def busy(admin: Redis) -> AsyncGenerator[None]:
    """A script of somebody else's that never ends: the server says BUSY until it is killed."""
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


async def no_replicas(embedded: StartServer) -> EmbeddedRedis:
    return embedded("--min-replicas-to-write", "1")


async def misconf(embedded: StartServer) -> EmbeddedRedis:
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
    return server


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    ("error", "setting", "healed"),
    [
        ("NOREPLICAS", "min-replicas-to-write", 0),
        ("MISCONF", "stop-writes-on-bgsave-error", "no"),
    ],
)
async def test_a_server_that_takes_no_writes_is_waited_for(
    kind: Kind, embedded: StartServer, connect: Connect, error: str, setting: str, healed: str
) -> None:
    """Until the deadline, and until it takes them again."""
    server = await (misconf if error == "MISCONF" else no_replicas)(embedded)
    semaphore = kind(connect(server.url), "jobs", 1)
    with takes_at_most(0.4), pytest.raises(BackendUnavailable, match=error):
        await semaphore.acquire(timeout=0.4)
    with takes_at_most(0.2), pytest.raises(BackendUnavailable, match=error):
        await semaphore.try_acquire()
    acquiring = in_background(semaphore.acquire(timeout=20))
    await asyncio.sleep(0.2)
    assert not acquiring.done()
    async with Redis.from_url(server.url) as admin:
        await admin.config_set(setting, healed)
    await is_served(acquiring, PAUSE + EPSILON)
    await all_free(semaphore)


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


# -- a server without memory


async def kept(admin: Redis, semaphore: AnySemaphore) -> list[object]:
    """What the server keeps of permits and waiters; not which hubs sent something when."""
    return [
        await admin.zrange(key_of(semaphore, "holders"), 0, -1),
        await admin.hgetall(key_of(semaphore, "tokens")),
        await admin.hgetall(key_of(semaphore, "meta")),
        await admin.zrange(key_of(semaphore, "queue"), 0, -1),
    ]


@pytest.mark.fault(33)
async def test_no_memory_left(kind: Kind, client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """An acquire is refused, and nothing is written; permits are kept and given back."""
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


@pytest.mark.fault(33)
async def test_no_memory_left_while_waiting(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """A release serves the queue at maxmemory, too."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    holder = await kind(client_b, "jobs", 1, lease=30.0).acquire()
    waiter = await waits_in_queue(semaphore)
    await admin.config_set("maxmemory", "1")
    assert await holder.release()
    with takes_at_most(1.0 + EPSILON):
        assert await (await waiter).release()
    assert await semaphore.available() == 1


# -- keys of another type


@pytest.mark.fault(37)
@pytest.mark.parametrize(("kind", "key"), EACH_KEY)
async def test_a_key_of_another_type(kind: Kind, key: str, client_a: Redis, admin: Redis) -> None:
    """Somebody uses our key for something else: an error, for each caller, once."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)
    await admin.rpush(key_of(semaphore, key), "not ours")
    with takes_at_most(0.5):
        for ask in (semaphore.acquire, semaphore.try_acquire, semaphore.status):
            with pytest.raises(BackendError, match="WRONGTYPE") as refused:
                await ask()
            assert not isinstance(refused.value, BackendUnavailable)
            assert isinstance(refused.value.__cause__, errors.ResponseError)
    assert await admin.keys("redsem:*") == [key_of(semaphore, key).encode()], "it wrote something"
    before = await scripts_run(admin)
    await asyncio.sleep(0.5)
    assert await scripts_run(admin) - before <= 1, "it goes on asking"
    await admin.delete(key_of(semaphore, key))
    async with semaphore.acquire(timeout=1):
        pass


@pytest.mark.fault(37)
@pytest.mark.parametrize(("kind", "key"), EACH_KEY)
async def test_a_key_turns_into_another_type_meanwhile(
    kind: Kind, key: str, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Holders and waiters get the error in time, and no loop makes traffic of it."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)
    holder = await kind(client_b, "jobs", 1, lease=1.0, refresh_interval=0.2).acquire()
    waiter = await waits_in_queue(semaphore)
    # At once, or a refresh may write in between.
    replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'not ours')"
    await admin.eval(replace, 1, key_of(semaphore, key))
    before = await scripts_run(admin)
    with suppress(BackendError):
        await holder.release()
    with takes_at_most(1.0 + EPSILON), pytest.raises(BackendError, match="WRONGTYPE"):
        await waiter
    assert await scripts_run(admin) - before < 30, "traffic without end"
    await asyncio.sleep(0.2)
    quiet = await scripts_run(admin)
    await asyncio.sleep(0.4)
    assert await scripts_run(admin) - quiet <= 1, "traffic without end"
    await admin.delete(key_of(semaphore, key))
    # whatever could not be given back has ended
    await is_served(semaphore.acquire(timeout=5), 1.0 + EPSILON)


# -- a server that is not there


def hubs() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "redsem-hub"]


@pytest.mark.fault(32)
async def test_no_server_at_start(kind: Kind, embedded: StartServer, connect: Connect) -> None:
    """Which server it was, within the caller's timeout; never a plain *full*; and no more."""
    server = embedded()
    server.kill()
    semaphore = kind(connect(server.url), "jobs", 1, lease=1.0)
    with takes_at_most(0.3), pytest.raises(BackendUnavailable) as caught:
        await semaphore.acquire(timeout=0.3)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, errors.ConnectionError)
    with takes_at_most(0.2), pytest.raises(BackendUnavailable, match=str(server.port)):
        await semaphore.try_acquire()
    with takes_at_most(0.2), pytest.raises(BackendUnavailable):
        await semaphore.acquire(timeout=0)
    with takes_at_most(1.0 + EPSILON), pytest.raises(BackendUnavailable):
        await semaphore.acquire()  # without a deadline: for a lease
    with takes_at_most(2.0), pytest.raises(BackendUnavailable):
        await semaphore.status()
    with takes_at_most(PAUSE + EPSILON):
        await until(lambda: not hubs(), "with no waiter left, there are no further attempts")
    acquiring = in_background(semaphore.acquire(timeout=20))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.restart)
    await is_served(acquiring, PAUSE + EPSILON)


@pytest.mark.fault(9)
async def test_closing_without_a_server_takes_a_moment(
    kind: Kind, server: EmbeddedRedis, connect: Connect
) -> None:
    """There is nobody to release to: an orderly end does not wait for one for long."""
    redis = connect(server.url)
    semaphore = kind(redis, "jobs", 1, lease=30.0)
    permit = await semaphore.acquire()
    waiter = await waits_in_queue(semaphore)
    server.kill()
    with takes_at_most(3.0):
        await redsem_async.aclose(redis)
    assert permit.lost
    with pytest.raises(SemaphoreClosed):
        await waiter
    await asyncio.to_thread(server.restart)
    async with semaphore.acquire(timeout=2):
        pass


async def test_a_waiter_that_has_left_keeps_no_hub_in_an_outage(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """It is to be abandoned: but a server that is back late has dropped it."""
    semaphore = kind(proxied, "jobs", 1, lease=1.0)
    await semaphore.set_limit(0)
    waiter = await waits_in_queue(semaphore)
    remote = semaphore._bound().remote
    [hub] = hubs()
    proxy.refusing = True
    proxy.half_open()
    await cancelled(waiter)
    await until(lambda: bool(proxy.operations("abandon")), "it says so, to nobody")
    with takes_at_most(reply_timeout(1.0) + 1.3 * liveness_timeout(1.0)):
        await asyncio.wait([hub], timeout=10)
    assert hub.done()
    assert not remote.active
