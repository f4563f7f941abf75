"""A network that loses, delays and repeats: one permit, freed once, and never brought back."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, Permit
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, connection_of, key_of
from tests.harness.proxy import Proxy, Sent, say_again
from tests.harness.wait import (
    EPSILON,
    NOISE,
    all_free,
    in_background,
    takes_at_most,
    until,
    waits_in_line,
)


async def warm(kind: Kind, redis: Redis) -> None:
    """Connect, so that what is sent next is what the test is about."""
    await kind(redis, "warm", 1).reap()


@pytest.mark.fault(13)
async def test_cancelled_before_anything_was_sent(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """There is no trace of it, on the wire or on the server."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    acquiring = in_background(semaphore.acquire())
    acquiring.cancel()
    await asyncio.wait([acquiring])
    assert acquiring.cancelled()
    assert not await semaphore.exists()
    assert not proxy.operations("acquire")
    assert not proxy.operations("abandon")


@pytest.mark.fault(13)
async def test_cancelled_while_connecting(kind: Kind, server: EmbeddedRedis, admin: Redis) -> None:
    """The first acquire of a client has a handshake before it to be cancelled in."""
    async with Proxy(server.port) as proxy:
        proxy.delay = 0.05
        redis: Redis = Redis.from_url(proxy.url)
        semaphore = kind(redis, "jobs", 1)
        acquiring = in_background(semaphore.acquire())
        await until(lambda: bool(proxy.sent), "the handshake is under way")
        acquiring.cancel()
        await asyncio.wait([acquiring])
        assert acquiring.cancelled()
        assert not proxy.operations("acquire")
        proxy.delay = 0.0
        assert await semaphore.available() == 1
        assert not proxy.operations("acquire")
        await redis.aclose()
    assert not await admin.keys("*jobs*")


@pytest.mark.fault(14)
async def test_cancelled_after_it_was_sent(kind: Kind, proxied: Redis, proxy: Proxy) -> None:
    """The server grants it all the same, so it is given back, in one round trip."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    fault = proxy.hold("acquire")
    acquiring = in_background(semaphore.acquire())
    await fault.struck.wait()  # the server has granted it
    acquiring.cancel()
    await asyncio.wait([acquiring], timeout=1)
    assert acquiring.cancelled()
    await until(lambda: bool(proxy.operations("abandon")), "it is given back", within=0.5)
    fault.lift()
    await all_free(semaphore, within=0.5)


@pytest.mark.fault(15)
async def test_a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """The grant is here, and the task has not run yet when it is cancelled."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    holder = await kind(client_b, "jobs", 1, lease=30.0).acquire()
    waiter = await waits_in_line(semaphore)
    [claim] = semaphore._bound().remote.ledger.waiting
    # A Semaphore's waiters have no order across processes: there, the next one is in this one.
    next_in = kind(client_b, "jobs", 1, lease=30.0) if kind is FairSemaphore else semaphore
    next_one = in_background(next_in.acquire(timeout=30))
    loop = asyncio.get_running_loop()
    met = False

    def cancel_when_granted() -> None:
        nonlocal met
        if claim.future.done() or waiter.done():
            met = not waiter.done()
            waiter.cancel()
        else:
            loop.call_soon(cancel_when_granted)

    cancel_when_granted()
    assert await holder.release()
    await asyncio.wait([waiter])
    assert met, "the task ran before it could be cancelled"
    assert waiter.cancelled()
    permit = await asyncio.wait_for(next_one, 1.0)
    status = await semaphore.status()
    assert [entry.id for entry in status.holders] == [permit.id]
    assert await permit.release()
    await all_free(semaphore, within=0.5)


@pytest.mark.fault(16)
async def test_a_grant_that_meets_its_deadline_is_a_permit_or_a_timeout(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Whichever it is, nothing leaks."""
    here = kind(client_a, "jobs", 1)
    there = kind(client_b, "jobs", 1)
    await here.reap()
    ends = {"permit": 0, "timeout": 0}
    for attempt in range(60):
        holder = await there.acquire(timeout=2)
        timeout = 0.004 + 0.0002 * (attempt % 12)
        acquiring = in_background(here.acquire(timeout=timeout))
        await asyncio.sleep(0.004)
        _, ended = await asyncio.gather(holder.release(), outcome(acquiring))
        if isinstance(ended, Permit):
            ends["permit"] += 1
            assert await ended.release()
        else:
            assert isinstance(ended, AcquireTimeout)
            ends["timeout"] += 1
    assert sum(ends.values()) == 60
    await all_free(here, within=0.5)


async def outcome(task: "asyncio.Future[Permit]") -> Permit | Exception:
    try:
        return await task
    except AcquireTimeout as error:
        return error


@pytest.mark.fault(17)
@pytest.mark.parametrize("full", [False, True], ids=["granted", "queued"])
async def test_a_lost_reply_of_acquire_is_one_permit(
    kind: Kind, proxied: Redis, client_a: Redis, proxy: Proxy, full: bool
) -> None:
    """The command ran; sent again, it finds what it made."""
    semaphore = kind(proxied, "jobs", 2)
    await warm(kind, proxied)
    there = kind(client_a, "jobs", 2)
    holders = [await there.acquire(), await there.acquire()] if full else []
    fault = proxy.swallow("acquire")
    acquiring = in_background(semaphore.acquire(timeout=10))
    await asyncio.wait_for(fault.struck.wait(), 5)
    await until(lambda: any(c.closed for c in proxy.connections), "its connection is closed")
    if full:
        await until(lambda: len(proxy.open_connections()) == 1, "the hub is back")
        status = await there.status()
        assert len(status.waiters) <= 1
        assert await holders.pop().release()
    with takes_at_most(0.5):
        permit = await acquiring
    assert len(proxy.operations("acquire")) + len(proxy.operations("heartbeat")) >= 2
    assert (await there.status()).held == 1 + len(holders)
    assert await permit.release()
    for holder in holders:
        assert await holder.release()
    await all_free(there)


@pytest.mark.fault(17)
async def test_a_lost_request_is_sent_again(kind: Kind, proxied: Redis, proxy: Proxy) -> None:
    """The command never arrived: the same code path, the same answer."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    fault = proxy.cut("acquire")
    with takes_at_most(0.5):
        permit = await semaphore.acquire(timeout=10)
    assert fault.struck.is_set()
    assert (await semaphore.status(0)).held == 1
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.fault(17)
async def test_a_lost_reply_of_release_is_a_release(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis
) -> None:
    """It was held, and is free: True, although the second asking finds nothing."""
    semaphore = kind(proxied, "jobs", 1)
    permit = await semaphore.acquire()
    fault = proxy.swallow("release")
    assert await permit.release()
    assert fault.struck.is_set()
    assert len(proxy.operations("release")) == 2
    there = kind(client_a, "jobs", 1)
    assert await there.available() == 1
    successor = await there.acquire(timeout=0)
    assert fault.sent is not None
    assert not await permit.release()
    assert await successor.release()


@pytest.mark.fault(12)
async def test_a_lost_reply_of_release_does_not_free_twice(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis
) -> None:
    """The one who waits is served once, and the limit stays what it is."""
    semaphore = kind(proxied, "jobs", 1)
    there = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    waiters = [await waits_in_line(there, place=n) for n in (1, 2)]
    fault = proxy.swallow("release")
    assert await permit.release()
    assert fault.struck.is_set()
    assert len(proxy.operations("release")) == 2
    done, waiting = await asyncio.wait(waiters, timeout=0.5)
    assert len(done) == 1
    assert await done.pop().result().release()
    assert await (await waiting.pop()).release()
    await all_free(there)


@pytest.mark.fault(24)
async def test_a_lost_reply_of_refresh_is_no_loss(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """No answer is not a no."""
    semaphore = kind(proxied, "jobs", 1, lease=1.5, refresh_interval=0.3)
    async with semaphore as permit:
        fault = proxy.swallow("refresh")
        await asyncio.wait_for(fault.struck.wait(), 2)
        await until(lambda: len(proxy.operations("refresh")) >= 2, "it is sent again")
        await asyncio.sleep(1.5)
        assert not permit.lost
        assert (await semaphore.status(0)).held == 1
    await all_free(semaphore)


@pytest.mark.fault(18)
@pytest.mark.parametrize("end", ["released", "abandoned"])
async def test_a_delayed_duplicate_brings_nothing_back(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, end: str
) -> None:
    """Closing a socket recalls nothing: what was sent on it may run much later."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    if end == "released":
        permit = await semaphore.acquire()
        assert await permit.release()
    else:
        fault = proxy.cut("acquire")
        acquiring = in_background(semaphore.acquire())
        await fault.struck.wait()
        acquiring.cancel()
        await asyncio.wait([acquiring])
        await until(lambda: bool(proxy.operations("abandon")), "it is given up")
    await all_free(semaphore)

    reply = await say_again(server.port, proxy.operations("acquire")[0])

    assert isinstance(reply, list)
    assert reply[-1] == -1, "the duplicate did not run, or was granted"
    assert not await semaphore.exists()
    assert await semaphore.available() == 1


@pytest.mark.fault(18)
async def test_duplicates_of_everything_change_nothing(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_a: Redis
) -> None:
    """Release, refresh, abandon and heartbeat too, while somebody else holds."""
    semaphore = kind(proxied, "jobs", 1)
    there = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    await permit.refresh()
    assert await permit.release()
    successor = await there.acquire(timeout=0)
    waiter = await waits_in_line(semaphore)
    waiter.cancel()
    await asyncio.wait([waiter])

    async def nobody_waits() -> bool:
        return (await there.status(0)).waiting == 0

    await until(nobody_waits, "the line is empty")
    operations = {"acquire", "refresh", "release", "abandon", "heartbeat"}
    for sent in [sent for sent in proxy.sent if sent.operation in operations]:
        assert isinstance(await say_again(server.port, sent), list)
    status = await there.status()
    assert [entry.id for entry in status.holders] == [successor.id]
    assert not status.waiters
    assert await successor.release()


@pytest.mark.fault(20)
async def test_a_thousand_acquires_at_once_need_one_connection(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """redis-py's pool raises at a hundred."""
    semaphore = kind(client_a, "jobs", 1000)
    permits = await asyncio.gather(*(semaphore.acquire(timeout=20) for _ in range(1000)))
    clients = [c for c in await admin.client_list() if c["name"] == "here"]
    assert len(clients) == 1
    assert all(await asyncio.gather(*(permit.release() for permit in permits)))
    await all_free(semaphore)


@pytest.mark.fault(21)
async def test_a_pool_of_one_connection_is_no_stall(
    kind: Kind, server: EmbeddedRedis, connect: Connect
) -> None:
    """The hub brings its own connection, and leaves the user's one to the user."""
    redis = connect(server.url, max_connections=1)
    semaphore = kind(redis, "jobs", 5)
    pool: Any = redis.connection_pool
    held_by_user = await pool.get_connection()
    try:
        with takes_at_most(0.5):
            permits = await asyncio.gather(*(semaphore.acquire(timeout=5) for _ in range(5)))
        for permit in permits:
            assert await permit.release()
    finally:
        await pool.release(held_by_user)


@pytest.mark.fault(24)
@pytest.mark.parametrize("waiting", [False, True], ids=["holding", "waiting"])
async def test_a_half_open_connection_is_noticed(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis, waiting: bool
) -> None:
    """Nothing comes and nothing ends: what was asked and not answered tells."""
    semaphore = kind(proxied, "jobs", 1, lease=3.0)
    there = kind(client_a, "jobs", 1, lease=30.0)
    await warm(kind, proxied)
    if not waiting:
        async with semaphore as permit:
            proxy.half_open()
            await until(lambda: len(proxy.connections) == 2, "it reconnected", within=2.5)
            await until(lambda: permit.expires_in > 2.5, "it is refreshed", within=1.0)
            assert not permit.lost
        await all_free(there)
        return
    holder = await there.acquire()
    waiter = await waits_in_line(semaphore)
    proxy.half_open()
    assert await holder.release()
    with takes_at_most(2.0 + EPSILON):  # a heartbeat, and the patience for its answer
        granted = await waiter
    assert len(proxy.connections) == 2
    assert await granted.release()
    await all_free(there)


@pytest.mark.fault(23)
async def test_a_grant_whose_message_was_lost_is_found(
    proxied: Redis, proxy: Proxy, client_a: Redis
) -> None:
    """It was told to a connection that broke: the new one asks, and knows."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=30.0)
    there = FairSemaphore(client_a, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    waiter = await waits_in_line(semaphore)
    proxy.mute()
    assert await holder.release()
    status = await there.status()
    assert (status.held, status.waiting) == (1, 0), "it was handed over"
    assert not waiter.done()
    proxy.drop()
    with takes_at_most(0.2):
        permit = await waiter
    assert [entry.id for entry in status.holders] == [permit.id]
    assert await permit.release()


@pytest.mark.fault(25)
async def test_a_reply_that_belongs_to_another_command_is_noticed(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """A reply too many would answer the next caller with the last one's permit."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    first = await connection_of(admin, "proxied")
    proxy.inject(b"*5\r\n$1\r\n7\r\n:-1\r\n:0\r\n*0\r\n:1795000000000000\r\n")
    await until(lambda: proxy.connections[0].closed, "the connection is dropped", within=2)
    permit = await semaphore.acquire(timeout=2)
    assert await connection_of(admin, "proxied") != first
    assert permit.fencing_token != 1795000000000000
    assert (await semaphore.status()).holders[0].id == permit.id
    assert await permit.release()


@pytest.mark.fault(25)
async def test_a_reply_that_comes_in_anothers_place_is_noticed(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """It looks like a grant, and is none to what was asked."""
    semaphore = kind(proxied, "jobs", 1)
    await warm(kind, proxied)
    first = await connection_of(admin, "proxied")
    held_back = proxy.hold("acquire")
    acquiring = in_background(semaphore.acquire(timeout=5))
    await asyncio.wait_for(held_back.struck.wait(), 5)
    proxy.inject(b"*3\r\n$1\r\n0\r\n:1795000000000000\r\n:0\r\n")
    permit = await acquiring
    assert await connection_of(admin, "proxied") != first
    assert permit.fencing_token != 1795000000000000
    assert (await semaphore.status()).holders[0].id == permit.id
    assert await permit.release()


@pytest.mark.fault(25)
async def test_a_subscription_that_ends_unasked_is_made_anew(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis, admin: Redis
) -> None:
    """Without it grants would go unheard."""
    semaphore = kind(proxied, "jobs", 1, lease=30.0)
    there = kind(client_a, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    waiter = await waits_in_line(semaphore)
    first = await connection_of(admin, "proxied")
    channel = proxy.operations("SUBSCRIBE")[0].arguments[1]
    proxy.inject(b">3\r\n$11\r\nunsubscribe\r\n$%d\r\n%s\r\n:0\r\n" % (len(channel), channel))

    async def has_another() -> bool:
        return await connection_of(admin, "proxied") not in (first, None)

    await until(has_another, "it subscribed on a new connection", within=1.0)
    assert await holder.release()
    with takes_at_most(EPSILON):
        permit = await waiter
    assert await permit.release()


@pytest.mark.fault(26)
async def test_it_listens_before_it_asks(kind: Kind, proxied: Redis, proxy: Proxy) -> None:
    """On each connection anew: a grant before the subscription would go unheard."""
    semaphore = kind(proxied, "jobs", 1)
    for number in range(2):
        permit = await semaphore.acquire()
        assert await permit.release()
        spoken = [sent.operation for sent in proxy.sent if sent.connection == number]
        assert spoken.index("SUBSCRIBE") < spoken.index("acquire")
        proxy.drop()
        await until(lambda: not proxy.open_connections(), "the connection is closed")


@pytest.mark.fault(24)
async def test_a_slow_network_shortens_trust_and_breaks_nothing(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """Trust counts from sending: what the way back took is not trusted."""
    proxy.delay = 0.15
    semaphore = kind(proxied, "jobs", 1, lease=1.5)
    began = time.monotonic()
    async with semaphore.acquire(timeout=5) as permit:
        assert permit.expires_in <= 1.5 - 0.3 + 0.05
        await asyncio.sleep(1.6)
        assert not permit.lost
    assert time.monotonic() - began < 5 + NOISE
    proxy.delay = 0.0
    await all_free(semaphore)


async def test_an_adoption_that_was_answered_late_is_trusted_for_what_is_left(
    kind: Kind, client_a: Redis, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """It is asked for again, and answered as found: by then some of the lease has passed."""
    here, there = kind(client_a, "jobs", 1, lease=2.0), kind(proxied, "jobs", 1, lease=2.0)
    await there.reap()
    identity = await (await here.acquire()).detach()
    lost = proxy.swallow("adopt")

    slowed = asyncio.Event()

    async def slow_to_connect(sent: Sent) -> None:
        if sent.operation == "HELLO" and not slowed.is_set():
            slowed.set()
            await asyncio.sleep(1.0)

    proxy.before = slow_to_connect
    permit = await there.adopt(identity)
    assert slowed.is_set()
    trusted_until = time.time() + permit.expires_in
    expiry: Any = await admin.zscore(key_of(there, "holders"), permit.id)
    assert lost.struck.is_set()
    assert len(proxy.operations("adopt")) == 2
    assert trusted_until <= expiry / 1000
    assert await permit.release()
