"""A server that forgets, stalls, and has much to do."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    PermitLost,
)
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import KEYS, Connect, key_of, tokens_of
from tests.harness.proxy import Proxy, Sent
from tests.harness.servers import stopped
from tests.harness.topologies import tell
from tests.harness.wait import EPSILON, all_free, is_served, noise, takes_at_most, waits_in_queue


@pytest.mark.fault(29)
async def test_scripts_flushed_before_every_call(
    proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """The server forgets them whenever it likes; each call finds it so."""
    flushed = 0

    async def flush(sent: Sent) -> None:
        nonlocal flushed
        if sent.operation not in ("SUBSCRIBE", "HELLO", "CLIENT"):
            flushed += 1
            await admin.script_flush()

    semaphore = FairSemaphore(proxied, "jobs", 1)
    await semaphore.reap()
    proxy.before = flush
    for _ in range(2):
        async with semaphore.acquire(timeout=5) as permit:
            waiter = await waits_in_queue(semaphore)
            await permit.refresh()
        assert await (await waiter).release()
    proxy.before = None
    assert flushed > 9
    stats = await admin.info("errorstats")
    assert stats["errorstat_NOSCRIPT"]["count"] > 0 if stats else True
    await all_free(semaphore)


async def restart(server: EmbeddedRedis) -> None:
    await asyncio.to_thread(server.restart)


async def flushall(server: EmbeddedRedis) -> None:
    await tell(server, "FLUSHALL")


Loss = Callable[[EmbeddedRedis], Awaitable[None]]
LOSES = pytest.mark.parametrize("lose", [restart, flushall])


@pytest.mark.fault(30)
@LOSES
async def test_holders_learn_that_the_keys_are_gone(
    client_a: Redis, server: EmbeddedRedis, admin: Redis, lose: Loss
) -> None:
    """Another may hold it now: within a refresh interval and a round trip."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=3.0, refresh_interval=0.5)
    permit = await semaphore.acquire()
    with pytest.raises(PermitLost):
        async with permit:
            await lose(server)
            assert not await admin.exists(key_of(semaphore, "holders"))
            with pytest.raises(asyncio.CancelledError), takes_at_most(0.5 + EPSILON):
                await asyncio.sleep(3)
    assert permit.lost
    await is_served(semaphore.acquire(timeout=1), after=permit)


@pytest.mark.fault(30)
@LOSES
async def test_a_set_limit_is_not_put_back(
    server: EmbeddedRedis, client_a: Redis, client_b: Redis, admin: Redis, lose: Loss
) -> None:
    """It is lost with the state: waiters and newcomers go by the limits they declare."""
    here, there = (FairSemaphore(client, "jobs", 2, lease=1.0) for client in (client_a, client_b))
    await here.set_limit(0)
    waiter = await waits_in_queue(here)
    assert await admin.exists(key_of(here, "limit"))
    await lose(server)
    permits = [await there.acquire(timeout=10), await waiter]
    assert not await tell(server, "EXISTS", key_of(here, "limit"))
    assert (await here.status()).limit == 2
    await here.set_limit(0)  # given again, it rules again
    for permit in permits:
        await permit.release()
    assert await there.try_acquire() is None


@pytest.mark.fault(30)
@pytest.mark.parametrize("key", KEYS)
async def test_a_single_key_is_gone(
    key: str, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Eviction takes keys one by one: whatever is left, it comes right again."""
    there = FairSemaphore(client_b, "jobs", 1, lease=1.5, refresh_interval=0.2)
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=1.5, refresh_interval=0.2)
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


async def stop(server: EmbeddedRedis, seconds: float) -> None:
    with stopped(server):
        await asyncio.sleep(seconds)


async def pause(server: EmbeddedRedis, seconds: float) -> None:
    await tell(server, "CLIENT", "PAUSE", int(seconds * 1000))
    await asyncio.sleep(seconds)


Stall = Callable[[EmbeddedRedis, float], Awaitable[None]]
STALLS = [stop, pause]


@pytest.mark.fault(31)
@pytest.mark.parametrize("stall", STALLS)
async def test_a_short_stall_costs_nothing(
    client_a: Redis, server: EmbeddedRedis, admin: Redis, stall: Stall
) -> None:
    """Shorter than lease and refresh leave: held on, and waited on."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=2.0, refresh_interval=0.4)
    async with semaphore as permit:
        waiter = await waits_in_queue(semaphore, timeout=20)
        began = time.monotonic()
        await stall(server, 1.0)
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
    client_a: Redis, server: EmbeddedRedis, admin: Redis, stall: Stall
) -> None:
    """Before the server lets go, not when it answers again."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=0.8, refresh_interval=0.2)
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
    await stall(server, 1.4)
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
    server: EmbeddedRedis, connect: Connect, timeout: float, socket_timeout: float
) -> None:
    """Whatever timeout the client has for its sockets; connected, or still connecting."""

    async def takes_all_the_time(semaphore: AnySemaphore, error: type[Exception]) -> None:
        began = time.monotonic()
        with pytest.raises(error):
            await semaphore.acquire(timeout=timeout)
        assert timeout <= time.monotonic() - began <= timeout + EPSILON + noise()

    options = {"socket_timeout": socket_timeout, "socket_connect_timeout": socket_timeout}
    semaphore = FairSemaphore(connect(server.url, **options), "jobs", 1)
    newcomer = FairSemaphore(connect(server.url, **options), "jobs", 1)
    holder = await semaphore.acquire()
    await takes_all_the_time(semaphore, AcquireTimeout)
    assert await holder.release()
    with stopped(server):
        await takes_all_the_time(semaphore, BackendUnavailable)
        await takes_all_the_time(newcomer, BackendUnavailable)
        with takes_at_most(10 / 3), pytest.raises(BackendUnavailable, match=str(server.port)):
            await newcomer.try_acquire()
    await all_free(semaphore)


# What a script may do at most, as work: on a machine that is idle this takes less than 10 ms.
MUCH_WORK = """
for i = 1, 2500 do
  redis.call('ZADD', KEYS[1], i, i)
  redis.call('ZSCORE', KEYS[1], i)
end
redis.call('DEL', KEYS[1])
"""


async def longest_script(admin: Redis, *, much_work: bool) -> float:
    """Milliseconds that the slowest of our scripts took, or of those that do much work."""
    entries = [e for e in await admin.slowlog_get(10_000) if e["command"].startswith(b"EVAL")]
    chosen = [e for e in entries if (b"much work" in e["command"]) == much_work]
    return max((e["duration"] for e in chosen), default=0) / 1000


@pytest.mark.fault(43)
@pytest.mark.timeout(300)
async def test_ten_thousand_expired_holders(client_a: Redis, admin: Redis) -> None:
    """A fleet crashed: the next caller clears up after it, in small pieces.

    No script needs longer than one that does much, and that the server runs meanwhile: on a busy
    machine they are alike. One that is interrupted takes longer than it needs: all is done again.
    """
    await admin.config_set("slowlog-log-slower-than", 500)
    await admin.config_set("slowlog-max-len", 10_000)
    semaphore = FairSemaphore(client_a, "jobs", 1)
    async with semaphore:
        pass
    ids = [f"{'f' * 32}.{n}" for n in range(1, 10_001)]

    async def crash() -> None:
        await admin.zadd(key_of(semaphore, "holders"), dict.fromkeys(ids, 1.0))
        await admin.hset(key_of(semaphore, "facts"), mapping=dict.fromkeys(ids, "1:1::"))

    async def one_is_left() -> bool:
        holders = await admin.zcard(key_of(semaphore, "holders"))
        return holders == len(await tokens_of(admin, semaphore)) == 1

    for _ in range(3):
        await admin.slowlog_reset()
        await crash()
        permit = await semaphore.acquire(timeout=5)
        await semaphore.reap()  # what the acquire left, and was being seen to meanwhile
        assert await one_is_left()
        await admin.eval(MUCH_WORK, 1, "much work")
        await crash()
        assert await semaphore.reap() == 10_000
        await admin.eval(MUCH_WORK, 1, "much work")
        assert await one_is_left()
        assert await permit.release()
        ours = await longest_script(admin, much_work=False)
        if ours < await longest_script(admin, much_work=True):
            return
    pytest.fail("a script takes longer than one that does much")
