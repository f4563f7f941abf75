"""After Redis lost its keys: a grace period, in which holders put their permits back.

Nothing new is granted for one lease, and the limit holds although the state was lost. Without
``recovery="grace"``, what was lost may be granted again at once.
"""

import asyncio
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, AnySemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of, keys_of
from tests.harness.clocks import start_with_a_clock_of_its_own
from tests.harness.proxy import Proxy, say_again
from tests.harness.servers import StartServer
from tests.harness.topologies import tell
from tests.harness.wait import NOISE, all_free, in_background, takes_at_most, until, waits_in_queue

LEASE = 1.0
HOUR = 3600.0


async def known(kind: Kind, client: Redis) -> AnySemaphore:
    """A semaphore that recovers, and whose name is not new."""
    semaphore = kind(client, "jobs", 2, lease=LEASE, recovery="grace")
    async with semaphore:
        pass
    return semaphore


@pytest.fixture
async def here(kind: Kind, client_a: Redis) -> AnySemaphore:
    """A semaphore whose name is not new."""
    return await known(kind, client_a)


@pytest.fixture
async def there(here: AnySemaphore, kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return await known(kind, client_b)


async def is_held(semaphore: AnySemaphore, count: int) -> None:
    async def so_many() -> bool:
        return (await semaphore.status(0)).held == count

    await until(so_many, f"{count} are held", LEASE)


async def lose(server: EmbeddedRedis, how: str) -> None:
    """Have the server lose what it kept."""
    if how == "flush":
        await tell(server, "FLUSHALL")
    else:
        server.kill()
        server.restart()


async def test_a_new_name_waits_for_a_lease_once(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """A name never seen and a name forgotten look the same; a name that is idle does not."""
    semaphore = kind(client_a, "jobs", 1, lease=LEASE, recovery="grace")
    began = time.monotonic()
    async with semaphore:
        assert time.monotonic() - began >= LEASE - 0.01
    for client in (client_a, client_b):
        with takes_at_most(0.1):
            async with kind(client, "jobs", 1, lease=LEASE, recovery="grace"):
                pass


async def test_idle_keys_that_expire_are_no_loss(here: AnySemaphore, admin: Redis) -> None:
    """A marker without an expiry tells idleness from loss."""
    marker = key_of(here, "marker").encode()
    kept = await keys_of(admin, here)
    assert len(kept) > 1
    for key in kept:
        if key == marker:
            assert await admin.pttl(key) == -1
        else:
            assert await admin.pttl(key) > 0
            assert await admin.pexpire(key, 1)

    async def expired() -> bool:
        return await keys_of(admin, here) == [marker]

    await until(expired, "idle keys have expired")
    with takes_at_most(0.1):
        async with here:
            pass


@pytest.mark.fault(30)
@pytest.mark.parametrize("how", ["flush", "restart"])
async def test_holders_come_back_before_new_requests_are_granted(
    here: AnySemaphore, there: AnySemaphore, server: EmbeddedRedis, how: str
) -> None:
    """What was lost is put back with its token, and the limit holds all the time."""
    async with here.acquire() as first, there.acquire() as second:
        tokens = {first.fencing_token, second.fencing_token}
        waiter = in_background(there.acquire(timeout=10))
        await lose(server, how)
        await is_held(here, 2)
        assert not waiter.done()
        await asyncio.sleep(1.5 * LEASE)  # past the grace period: they are held as ever
        assert not waiter.done() and not first.lost and not second.lost
        assert {holder.fencing_token for holder in (await here.status()).holders} == tokens
        assert {first.fencing_token, second.fencing_token} == tokens
    permit = await waiter
    assert permit.fencing_token > max(tokens)
    await permit.release()
    await all_free(here)


async def test_what_was_released_is_not_put_back(
    here: AnySemaphore, there: AnySemaphore, admin: Redis
) -> None:
    """A release in the grace period counts, also of a permit that is not back yet."""
    kept, dropped = await here.acquire(), await here.acquire()
    await admin.flushall()
    await dropped.release()
    noted = await admin.zscore(key_of(here, "released"), dropped.id)
    assert noted is not None, "the release came in the grace period"
    await is_held(there, 1)
    async with there.acquire(timeout=5):
        assert not kept.lost
    await kept.release()
    await all_free(here)


async def test_what_was_put_back_and_released_does_not_come_back_late(
    kind: Kind, admin: Redis, proxied: Redis, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """The command that put it back arrives once more: the release counts."""
    here = await known(kind, proxied)
    permit = await here.acquire()
    await admin.flushall()
    await is_held(here, 1)
    assert await permit.release()
    for sent in proxy.operations("restore"):
        await say_again(server.port, sent)
    assert (await here.status(0)).held == 0
    assert await admin.hget(key_of(here, "meta"), "grace"), "it came in the grace period"


async def test_a_permit_released_elsewhere_meanwhile_stays_released(
    here: AnySemaphore, there: AnySemaphore, admin: Redis
) -> None:
    """An operator's kick in the grace period is not undone by the holder's refresh."""
    permit = await here.acquire(permits=2)
    await admin.flushall()
    assert not await there.release(permit.id), "it is not back yet"
    error = await asyncio.wait_for(permit.wait_lost(), 2 * LEASE)
    assert error.permit_id == permit.id
    async with there.acquire(timeout=5, permits=2):
        pass


async def test_another_server_is_a_loss(
    here: AnySemaphore, kind: Kind, admin: Redis, client_b: Redis
) -> None:
    """A replica that took over has the marker as well, which names the master that it follows."""
    assert (
        await admin.get(key_of(here, "marker")) == (await admin.info("server"))["run_id"].encode()
    )
    await admin.set(key_of(here, "marker"), 40 * "0")
    there = kind(client_b, "jobs", 2, lease=30.0, recovery="grace")
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)


async def test_asking_again_in_a_grace_period_grants_nothing(
    here: AnySemaphore, kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """A process that is known again sends the short command, which grants nothing either."""
    semaphore = kind(client_a, "jobs", 2, lease=30.0, recovery="grace")
    await admin.flushall()
    for _ in range(3):
        with pytest.raises(AcquireTimeout):
            await semaphore.acquire(timeout=0.1)


@pytest.mark.parametrize("lost", ["all keys", "the holders"])
async def test_a_heavy_permit_comes_back_whole(
    here: AnySemaphore, there: AnySemaphore, admin: Redis, lost: str
) -> None:
    """A permit of two is two again, also where one key alone was evicted."""
    async with here.acquire(permits=2) as permit:
        await (admin.flushall() if lost == "all keys" else admin.delete(key_of(here, "holders")))
        assert await there.try_acquire() is None
        await is_held(there, 2)
        waiter = await waits_in_queue(there)
        assert (await there.status()).holders[0].permits == 2
        await asyncio.sleep(1.2 * LEASE)
        assert not permit.lost and not waiter.done()
    await (await waiter).release()
    await all_free(there)


@pytest.mark.parametrize("crashed", [False, True], ids=["nothing held", "a holder crashed"])
async def test_waiters_are_served_when_the_grace_period_ends(
    here: AnySemaphore, there: AnySemaphore, admin: Redis, crashed: bool
) -> None:
    """They sleep until then, and need no release to wake. A crashed holder does not come back."""
    if crashed:
        await (await there.acquire(permits=2)).detach(LEASE)  # not refreshed: as good as crashed
    await admin.flushall()
    began = time.monotonic()
    permits = await asyncio.gather(*(here.acquire(timeout=5) for _ in range(2)))
    assert LEASE - 0.01 <= time.monotonic() - began <= LEASE + NOISE
    for permit in permits:
        await permit.release()


@pytest.mark.fault(30)
@pytest.mark.parametrize("how", ["flush", "restart"])
@pytest.mark.parametrize("grace", [False, True], ids=["at-once", "grace"])
async def test_a_set_limit_is_not_put_back(
    kind: Kind, server: EmbeddedRedis, client_a: Redis, client_b: Redis, grace: bool, how: str
) -> None:
    """It is lost with the state: waiters and newcomers go by the limits they declare."""
    here, there = (
        kind(client, "jobs", 2, lease=LEASE, recovery="grace" if grace else None)
        for client in (client_a, client_b)
    )
    async with here, there:  # the name is not new
        pass
    await here.set_limit(0)
    waiter = await waits_in_queue(here)
    assert await tell(server, "EXISTS", key_of(here, "limit"))
    began = time.monotonic()
    await lose(server, how)
    newcomer = in_background(there.acquire(timeout=10))
    permits = [await waiter, await newcomer]
    assert not grace or time.monotonic() - began >= LEASE - 0.01
    assert not await tell(server, "EXISTS", key_of(here, "limit"))
    assert (await here.status()).limit == 2
    await here.set_limit(0)  # given again, it rules again
    for permit in permits:
        await permit.release()
    assert await there.try_acquire() is None


@pytest.mark.parametrize("messages", [True, False], ids=["with messages", "without messages"])
async def test_a_clear_is_no_loss(
    kind: Kind, client_a: Redis, unsubscribed: Redis, there: AnySemaphore, messages: bool
) -> None:
    """Its holders do not come back, and no grace period delays the next one."""
    here = await known(kind, client_a if messages else unsubscribed)
    permit = await here.acquire(permits=2)
    await there.clear()
    with takes_at_most(0.1):
        async with there.acquire(timeout=5, permits=2):
            pass
    await asyncio.wait_for(permit.wait_lost(), 2 * LEASE)


@pytest.mark.release
async def test_a_permit_that_is_not_back_yet_is_detached(here: AnySemaphore, admin: Redis) -> None:
    """State was lost a moment ago: its holder puts it back first."""
    permit = await here.acquire()
    await admin.flushall()
    await (await here.adopt(await permit.detach(5))).release()


@pytest.mark.release
async def test_grace_holds_though_the_clock_was_set_back(
    kind: Kind, embedded: StartServer, connect: Connect, tmp_path: Path
) -> None:
    """The tokens that come back lead the clock: that ends neither the grace nor what is back."""
    stepped = start_with_a_clock_of_its_own(embedded, tmp_path)
    url = stepped.server.url
    here, there = await known(kind, connect(url)), await known(kind, connect(url))

    async def is_kept(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
            assert not permit.lost

    permit = await here.acquire(permits=2)
    stepped.step(-HOUR)
    await lose(stepped.server, "flush")
    waiter = in_background(there.acquire(timeout=10))
    await is_kept(4 * LEASE)
    assert not waiter.done()
    await permit.release()
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    await successor.release()
    permit = await here.acquire(timeout=5)
    assert permit.fencing_token > successor.fencing_token
    stepped.step(-HOUR)  # and the next step back is noticed all the same
    await is_kept(2 * LEASE)
    assert (await here.status()).held == 1
    await permit.release()
