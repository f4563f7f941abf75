"""Servers that lack things, as services and forks of Redis do: every promise holds on them."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, BackendError, FairSemaphore, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Connect, kill_connection
from tests.harness.lacking import LACKS, Lacking
from tests.harness.wait import (
    EPSILON,
    all_free,
    is_served,
    noise,
    queue_up,
    soon,
    takes_at_most,
    until,
    waits_in_queue,
)

LEASE = 3.0
HEARTBEAT = 2.0  # seconds at most between two
# What the log says of one, once.
SAID = {
    "set_repl": "redis.set_repl",
    "time": "TIME",
    "count": "PUBLISH",
    "resp3": "RESP3",
    "subscribe": "SUBSCRIBE",
    "lua51": "redis.set_repl",
}


@pytest.fixture(params=[lack for lack in LACKS if lack != "pexpiretime"])
async def lacking(request: pytest.FixtureRequest, server: EmbeddedRedis) -> AsyncIterator[Lacking]:
    """A stand-in that lacks one thing."""
    if request.param == "time":
        needs_pexpiretime(server)
    async with Lacking(server.port, request.param) as lacking:
        yield lacking
        assert lacking.met, "nothing was asked for that it lacks"


@pytest.fixture
async def no_time(server: EmbeddedRedis) -> AsyncIterator[Lacking]:
    """A stand-in that refuses TIME in scripts."""
    needs_pexpiretime(server)
    async with Lacking(server.port, "time") as lacking:
        yield lacking


def needs_pexpiretime(server: EmbeddedRedis) -> None:
    if server.flavour == "redis" and server.version < (7,):
        pytest.skip("no PEXPIRETIME: see test_without_any_clock_the_error_says_what_to_do")


@pytest.fixture
def here(lacking: Lacking, connect: Connect) -> Redis:
    return connect(lacking.url)


@pytest.fixture
def there(lacking: Lacking, connect: Connect) -> Redis:
    return connect(lacking.url)


def late_by(lacking: Lacking) -> float:
    """Seconds that a hand-over takes at most: less than to a heartbeat, where messages tell."""
    return HEARTBEAT if {*lacking.lacks} & {"resp3", "subscribe"} else HEARTBEAT / 4


async def test_permits_are_handed_over_in_order(
    here: Redis, there: Redis, lacking: Lacking, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """From process to process and back, with nothing left half done; what is lacking is logged."""
    caplog.set_level(logging.WARNING, "redsem_async")
    one, other = (FairSemaphore(client, "jobs", 1, lease=LEASE) for client in (here, there))
    holder = await one.acquire()
    count = 4 if late_by(lacking) == HEARTBEAT else 16
    requests = [await queue_up((one, other)[place % 2]) for place in range(count)]
    served: list[int] = []
    last = holder.fencing_token

    async def take(place: int) -> None:
        nonlocal last
        async with await requests[place] as permit:
            served.append(place)
            assert permit.fencing_token > last
            assert (await one.status()).held == 1
            last = permit.fencing_token

    with takes_at_most(count * late_by(lacking)):
        await holder.release()
        await asyncio.gather(*map(take, range(count)))
    assert served == [*range(count)]
    await all_free(one)
    for key in ("holders", "facts", "queue"):
        assert not await admin.exists(f"redsem:{{jobs}}:{key}")
    [lack] = lacking.lacks
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (2 if lack in SAID else 0), "each process says it once"
    assert all(SAID[lack] in text for text in said)


async def test_keys_slots_and_many_are_handed_over(
    here: Redis, there: Redis, lacking: Lacking
) -> None:
    """Lua 5.4 tells 2 ^ 2 from 4, and so does who reads a reply."""
    one, other = (
        FairSemaphore(client, "jobs", lease=LEASE, key_limit=1, share=True, slots=["a", "b"])
        for client in (here, there)
    )
    ours, theirs = await one.acquire(key="x"), await other.acquire(key="y")
    assert {ours.slot, theirs.slot} == {"a", "b"}
    second, third = await queue_up(other, key="x"), await queue_up(one, key="x")
    with takes_at_most(2 * late_by(lacking)):
        assert await ours.release()
        permit = await second
        assert permit.slot == ours.slot
        assert not third.done()
        assert await permit.release()
        assert await (await third).release()
    assert await theirs.release()
    one, other = (FairSemaphore(client, "many", 5, lease=LEASE) for client in (here, there))
    heavy = await one.acquire(permits=4)
    with pytest.raises(AcquireTimeout):
        await other.acquire(permits=2, timeout=0.5)
    assert (await other.status()).holders[0].permits == (await one.status()).held == 4
    waiter = await queue_up(other, permits=3)
    await one.set_limit(7)
    with takes_at_most(late_by(lacking)):
        lighter = await waiter
    assert await heavy.release()
    assert (await one.status()).held == lighter.permits == 3
    assert await lighter.release()


async def test_a_dead_waiter_is_passed(here: Redis, lacking: Lacking, start: StartWorker) -> None:
    """At once where Redis says that nothing listens, else when the hand-over was not confirmed."""
    semaphore = FairSemaphore(here, "jobs", 1, lease=1.0)
    holder = await semaphore.acquire()
    head = await start("wait", kind=FairSemaphore, url=lacking.url, lease=1.0, named=False)
    await head.heard("waits")
    second = await waits_in_queue(semaphore, place=2)
    await head.kill()
    assert await holder.release()
    await is_served(second, 2.0 + EPSILON)


async def test_after_a_lost_connection_it_is_known_that_publish_does_not_count(
    server: EmbeddedRedis, connect: Connect, admin: Redis
) -> None:
    """The server is asked once, and what it said holds for each connection after that."""
    async with Lacking(server.port, "count") as lacking:
        here = FairSemaphore(connect(lacking.url, client_name="here"), "jobs", 1, lease=LEASE)
        there = FairSemaphore(connect(lacking.url), "jobs", 1, lease=LEASE)
        for _ in range(2):
            async with there as holder:
                waiter = await queue_up(here)
                [_, status] = await asyncio.gather(kill_connection(admin, "here"), there.status())
                hub = status.waiters[0].client.id
                await admin.hset("redsem:{jobs}:meta", f"{hub}:no_push", "0")

                async def told(hub: str = hub) -> bool:
                    return await admin.hget("redsem:{jobs}:meta", f"{hub}:no_push") == b"2"

                await until(told, "it says so again")
            await is_served(waiter, EPSILON, after=holder)


@pytest.mark.fault(1, 30)
async def test_leases_end_by_the_derived_clock(
    no_time: Lacking, connect: Connect, admin: Redis, start: StartWorker
) -> None:
    """It is that of a key which is there for a moment only: looking at nothing leaves nothing."""
    semaphore = FairSemaphore(connect(no_time.url), "jobs", 1, lease=1.0)
    assert (await semaphore.status()).held == 0
    assert not await semaphore.exists()
    assert not await semaphore.release(f"{'0' * 32}.1")
    assert await admin.keys() == []
    holder = await start("hold", kind=FairSemaphore, url=no_time.url, lease=1.0)
    await holder.heard("held")
    waiter = await waits_in_queue(semaphore)
    await holder.kill()
    with takes_at_most(1.0 + EPSILON):
        permit = await waiter
    [found] = (await semaphore.status()).holders
    assert (found.id, 0 <= found.age < noise(), 0 < found.expires_in <= 1.0) == (
        permit.id,
        True,
        True,
    )
    await admin.flushall()
    with pytest.raises(PermitLost):
        await permit.refresh()
    async with semaphore as another:
        assert another.fencing_token > permit.fencing_token


@pytest.mark.fault(33)
@pytest.mark.parametrize("stored", [True, False], ids=["with state", "without"])
async def test_a_full_server_grants_nothing_and_lets_go(
    no_time: Lacking, connect: Connect, admin: Redis, stored: bool
) -> None:
    semaphore = FairSemaphore(connect(no_time.url), "jobs", 2, lease=30.0)
    permit = await semaphore.acquire()
    other = FairSemaphore(connect(no_time.url), "jobs" if stored else "others", 1)
    await other.status()
    await admin.config_set("maxmemory", "1")
    with pytest.raises(BackendError, match="OOM"):
        await other.acquire(timeout=2)
    assert not await admin.exists("redsem:{others}:holders", "redsem:{others}:facts")
    assert (await other.status()).held == int(stored)
    await permit.refresh()
    assert await permit.release()
    assert not await other.release(f"{'0' * 32}.1")


async def test_without_any_clock_the_error_says_what_to_do(
    server: EmbeddedRedis, connect: Connect, admin: Redis
) -> None:
    """Redis before 7.0 has no PEXPIRETIME."""
    async with Lacking(server.port, "time", "pexpiretime") as lacking:
        client = connect(lacking.url)
        with pytest.raises(BackendError, match='clock="local"'):
            await soon(FairSemaphore(client, "jobs", 1).acquire(timeout=30.0))
        assert await admin.keys() == []
        async with FairSemaphore(client, "jobs", 1, clock="local"):
            with pytest.raises(BackendError, match="jobs"):
                await FairSemaphore(client, "jobs", 1).try_acquire()
