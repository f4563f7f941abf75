"""A server that forgets, stalls, and has much to do."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, AnySemaphore, BackendUnavailable, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import EACH_KEY, Connect, Kind, key_of, tokens_of
from tests.harness.inside import remote_of
from tests.harness.proxy import Proxy, Sent
from tests.harness.servers import StartServer, stopped
from tests.harness.topologies import tell
from tests.harness.wait import (
    EPSILON,
    NOISE,
    all_free,
    cancelled,
    in_background,
    is_served,
    soon,
    takes_at_most,
    until,
    waits_in_queue,
)

pytestmark = pytest.mark.one_mode


# -- scripts that are forgotten


@pytest.mark.fault(29)
async def test_scripts_flushed_before_every_call(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """The server forgets them whenever it likes; each call finds it so."""
    flushed = 0

    async def flush(sent: Sent) -> None:
        nonlocal flushed
        if sent.operation not in ("SUBSCRIBE", "HELLO", "CLIENT"):
            flushed += 1
            await admin.script_flush()

    semaphore = kind(proxied, "jobs", 1, lease=2.0)
    await semaphore.reap()
    proxy.before = flush
    for _ in range(2):
        async with semaphore.acquire(timeout=5) as permit:
            waiter = in_background(semaphore.acquire(timeout=15))
            await asyncio.sleep(2.2)  # past a lease: refreshed meanwhile
            assert not permit.lost
        assert await (await waiter).release()
    proxy.before = None
    assert flushed > 9
    stats = await admin.info("errorstats")
    assert stats["errorstat_NOSCRIPT"]["count"] > 0 if stats else True
    await all_free(semaphore)


# -- state that is gone


async def restart(server: EmbeddedRedis, admin: Redis) -> None:
    await asyncio.to_thread(server.restart)


async def flushall(server: EmbeddedRedis, admin: Redis) -> None:
    await admin.flushall()


Loss = Callable[[EmbeddedRedis, Redis], Awaitable[None]]


@pytest.mark.fault(30)
@pytest.mark.parametrize("lose", [restart, flushall])
async def test_holders_learn_that_the_keys_are_gone(
    kind: Kind, client_a: Redis, server: EmbeddedRedis, admin: Redis, lose: Loss
) -> None:
    """Another may hold it now: within a refresh interval and a round trip."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.5)
    permit = await semaphore.acquire()
    with pytest.raises(PermitLost):
        async with permit:
            await lose(server, admin)
            assert not await admin.exists(key_of(semaphore, "holders"))
            with pytest.raises(asyncio.CancelledError), takes_at_most(0.5 + EPSILON):
                await asyncio.sleep(3)
    assert permit.lost
    await is_served(semaphore.acquire(timeout=1), after=permit)


@pytest.mark.fault(30)
@pytest.mark.parametrize("lose", [restart, flushall])
async def test_waiters_go_on_when_the_keys_are_gone(
    kind: Kind, client_a: Redis, client_b: Redis, server: EmbeddedRedis, admin: Redis, lose: Loss
) -> None:
    """They ask anew, with what deadline they had, and each is served."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0)
    holder = await kind(client_b, "jobs", 1, lease=3.0, refresh_interval=0.5).acquire()
    waiters = [await waits_in_queue(semaphore, place=n) for n in (1, 2, 3)]
    await lose(server, admin)
    for served in asyncio.as_completed(waiters):
        assert await (await soon(served)).release()
    with takes_at_most(0.5 + EPSILON):
        await holder.wait_lost()
    assert not await holder.release()
    await all_free(semaphore)


@pytest.mark.fault(30)
@pytest.mark.parametrize("lose", [restart, flushall])
async def test_a_set_limit_is_not_put_back(
    kind: Kind, server: EmbeddedRedis, client_a: Redis, client_b: Redis, admin: Redis, lose: Loss
) -> None:
    """It is lost with the state: waiters and newcomers go by the limits they declare."""
    here, there = (kind(client, "jobs", 2, lease=1.0) for client in (client_a, client_b))
    await here.set_limit(0)
    waiter = await waits_in_queue(here)
    assert await admin.exists(key_of(here, "limit"))
    await lose(server, admin)
    permits = [await there.acquire(timeout=10), await waiter]
    assert not await tell(server, "EXISTS", key_of(here, "limit"))
    assert (await here.status()).limit == 2
    await here.set_limit(0)  # given again, it rules again
    for permit in permits:
        await permit.release()
    assert await there.try_acquire() is None


@pytest.mark.fault(30)
@pytest.mark.parametrize(("kind", "key"), EACH_KEY)
async def test_a_single_key_is_gone(
    kind: Kind, key: str, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Eviction takes keys one by one: whatever is left, it comes right again."""
    there = kind(client_b, "jobs", 1, lease=1.5, refresh_interval=0.2)
    semaphore = kind(client_a, "jobs", 1, lease=1.5, refresh_interval=0.2)
    if key == "limit":
        await there.set_limit(1)
    holder = await there.acquire()
    waiter = await waits_in_queue(semaphore)
    assert await admin.delete(key_of(semaphore, key)) == 1

    if key in ("holders", "facts"):
        with takes_at_most(0.2 + EPSILON):
            await holder.wait_lost()
        if key == "facts":
            assert not waiter.done(), "what it held is not known"
    else:
        await asyncio.sleep(0.4)
        assert not waiter.done(), "two hold what is for one"
        assert not holder.lost
        assert await holder.release()
    with takes_at_most((1.5 if key == "facts" else 1.0) + EPSILON):  # a lease, a heartbeat
        permit = await waiter
    assert permit.fencing_token > holder.fencing_token
    await permit.refresh()
    assert await permit.release()
    await all_free(semaphore)


# -- a server that stalls


async def stop(server: EmbeddedRedis, admin: Redis, seconds: float) -> None:
    with stopped(server):
        await asyncio.sleep(seconds)


async def pause(server: EmbeddedRedis, admin: Redis, seconds: float) -> None:
    await admin.client_pause(int(seconds * 1000))
    await asyncio.sleep(seconds)


async def sleep(server: EmbeddedRedis, admin: Redis, seconds: float) -> None:
    untyped: Any = admin
    await untyped.execute_command("DEBUG", "SLEEP", str(seconds))


Stall = Callable[[EmbeddedRedis, Redis, float], Awaitable[None]]
STALLS = [stop, pause, sleep]


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server for this test alone, which understands DEBUG."""
    server = embedded()
    if server.flavour == "redis" and server.version < (7,):
        return server
    server.kill()
    return embedded("--enable-debug-command", "yes")


@pytest.mark.fault(31)
@pytest.mark.parametrize("stall", STALLS)
async def test_a_short_stall_costs_nothing(
    kind: Kind, client_a: Redis, server: EmbeddedRedis, admin: Redis, stall: Stall
) -> None:
    """Shorter than lease and refresh leave: held on, and waited on."""
    semaphore = kind(client_a, "jobs", 1, lease=2.0, refresh_interval=0.4)
    async with semaphore as permit:
        waiter = await waits_in_queue(semaphore, timeout=20)
        began = time.monotonic()
        await stall(server, admin, 1.0)
        assert time.monotonic() - began > 0.9
        assert [holder.id for holder in (await semaphore.status()).holders] == [permit.id]
        assert not permit.lost
        assert not waiter.done()
    await is_served(waiter, 1.5)
    await all_free(semaphore)


@pytest.mark.timing
@pytest.mark.fault(31)
@pytest.mark.parametrize("stall", STALLS)
async def test_a_long_stall_cancels_bodies_in_time(
    kind: Kind, client_a: Redis, server: EmbeddedRedis, admin: Redis, stall: Stall
) -> None:
    """Before the server lets go, not when it answers again."""
    semaphore = kind(client_a, "jobs", 1, lease=0.8, refresh_interval=0.2)
    await semaphore.reap()
    asked = time.monotonic()
    permit = await semaphore.acquire()
    granted, ended = time.monotonic(), 0.0

    async def body() -> None:
        nonlocal ended
        async with permit:
            try:
                await asyncio.sleep(10)
            finally:
                ended = time.monotonic()
                assert permit.lost

    working = asyncio.create_task(body())
    await stall(server, admin, 1.4)
    with pytest.raises(PermitLost):
        await working
    # The stall began before the first refresh: the server's own count ends no earlier than this.
    assert ended - asked <= 0.8, "the lease had ended"
    assert ended - granted >= 0.5, "long before it was due"
    await all_free(semaphore)
    async with semaphore.acquire(timeout=2) as successor:
        assert successor.fencing_token > permit.fencing_token


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("timeout", "socket_timeout"), [(0.3, 30.0), (1.5, 0.05)], ids=["shorter", "longer"]
)
async def test_the_deadline_is_the_callers(
    kind: Kind, server: EmbeddedRedis, connect: Connect, timeout: float, socket_timeout: float
) -> None:
    """Whatever timeout the client has for its sockets; connected, or still connecting."""

    async def takes_all_the_time(semaphore: AnySemaphore, error: type[Exception]) -> None:
        began = time.monotonic()
        with pytest.raises(error):
            await semaphore.acquire(timeout=timeout)
        assert timeout <= time.monotonic() - began <= timeout + EPSILON + NOISE

    options = {"socket_timeout": socket_timeout, "socket_connect_timeout": socket_timeout}
    semaphore = kind(connect(server.url, **options), "jobs", 1)
    newcomer = kind(connect(server.url, **options), "jobs", 1)
    holder = await semaphore.acquire()
    await takes_all_the_time(semaphore, AcquireTimeout)
    assert await holder.release()
    with stopped(server):
        await takes_all_the_time(semaphore, BackendUnavailable)
        await takes_all_the_time(newcomer, BackendUnavailable)
        with takes_at_most(10 / 3), pytest.raises(BackendUnavailable, match=str(server.port)):
            await newcomer.try_acquire()
    await all_free(semaphore)


# -- a server with much to do


# What a script may do at most, as work: on a machine that is idle this takes less than 10 ms.
MUCH_WORK = """
for i = 1, 2500 do
  redis.call('ZADD', KEYS[1], i, i)
  redis.call('ZSCORE', KEYS[1], i)
end
redis.call('DEL', KEYS[1])
"""


async def no_script_needs_long(admin: Redis, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run *scenario*; see that each of its scripts needed less than one that does much.

    That one runs again and again meanwhile, and the server measures them all: where the machine
    is busy, or slow, they are alike. One that it interrupted takes longer than it needs: then all
    is done once more.
    """
    await admin.config_set("slowlog-log-slower-than", 500)
    await admin.config_set("slowlog-max-len", 10_000)
    compared: list[tuple[float, float]] = []

    async def measure(enough: asyncio.Event) -> None:
        # Not until it is cancelled: now and then redis-py swallows a cancellation.
        while not enough.is_set():
            await admin.eval(MUCH_WORK, 1, "much work")
            await asyncio.sleep(0.2)

    while len(compared) < 3 and all(ours >= allowed for ours, allowed in compared):
        await admin.slowlog_reset()
        enough = asyncio.Event()
        measuring = in_background(measure(enough))
        try:
            await scenario()
        finally:
            enough.set()
            await measuring
        entries = [e for e in await admin.slowlog_get(10_000) if e["command"].startswith(b"EVAL")]
        allowed = [e["duration"] for e in entries if b"much work" in e["command"]]
        ours = [e["duration"] for e in entries if b"much work" not in e["command"]]
        compared.append((max(ours, default=0) / 1000, max(allowed) / 1000))
    assert any(ours < allowed for ours, allowed in compared), compared


@pytest.mark.fault(43)
@pytest.mark.timeout(300)
async def test_ten_thousand_expired_holders(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """A fleet crashed: the next caller clears up after it, in small pieces."""
    semaphore = kind(client_a, "jobs", 1)
    async with semaphore:
        pass
    ids = [f"{'f' * 32}.{n}" for n in range(1, 10_001)]

    async def crash() -> None:
        await admin.zadd(key_of(semaphore, "holders"), dict.fromkeys(ids, 1.0))
        await admin.hset(key_of(semaphore, "facts"), mapping=dict.fromkeys(ids, "1:1::"))

    async def one_is_left() -> bool:
        holders = await admin.zcard(key_of(semaphore, "holders"))
        return holders == len(await tokens_of(admin, semaphore)) == 1

    async def crashed_and_reaped() -> None:
        await crash()
        with takes_at_most(0.5):
            permit = await semaphore.acquire(timeout=5)
        await semaphore.reap()  # what the acquire left, and was being seen to meanwhile
        assert await one_is_left()
        await crash()
        assert await semaphore.reap() == 10_000
        assert await one_is_left()
        assert await permit.release()

    await no_script_needs_long(admin, crashed_and_reaped)


@pytest.mark.fault(43)
@pytest.mark.release
@pytest.mark.timeout(300)
async def test_ten_thousand_waiters(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Queued, served and cancelled in numbers, no script holds the server for long."""
    semaphore = kind(client_a, "jobs", 1, lease=60.0)
    there = kind(client_b, "jobs", 5_000, lease=60.0)

    async def queued_served_and_cancelled() -> None:
        holder = await kind(client_b, "jobs", 1, lease=60.0).acquire()
        waiters = [in_background(semaphore.acquire()) for _ in range(10_000)]

        def all_wait() -> bool:
            return len(remote_of(semaphore).waiting) == 10_000

        await until(all_wait, "all wait", within=20)
        await there.set_limit(5_000)
        assert await holder.release()
        try:
            await until(lambda: sum(w.done() for w in waiters) == 5_000, "5,000 are served")
            assert (await there.status(0)).held == 5_000
        finally:
            await cancelled(*waiters)
        permits = [waiter.result() for waiter in waiters if not waiter.cancelled()]
        await asyncio.gather(*(permit.release() for permit in permits))
        await there.set_limit(None)
        await all_free(semaphore, within=15)

    await no_script_needs_long(admin, queued_served_and_cancelled)
