"""After Redis lost what it kept: a grace period, in which holders put their permits back.

RELIABILITY's "grace period": nobody new is admitted for one lease, and the limit holds although
the state was lost. Without it, what was lost may be granted again at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, AnySemaphore
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of
from tests.harness.proxy import Proxy, say_again
from tests.harness.servers import StartServer
from tests.harness.topologies import tell
from tests.harness.wait import NOISE, all_free, in_background, takes_at_most, until, waits_in_line

LEASE = 1.0


async def make(kind: Kind, client: Redis, limit: int = 2, lease: float = LEASE) -> AnySemaphore:
    """A semaphore that recovers, and whose name is not new."""
    semaphore = kind(client, "jobs", limit, lease=lease, recovery="grace")
    async with semaphore:
        pass
    return semaphore


async def keys_on(admin: Redis) -> list[str]:
    keys = cast("AsyncIterator[bytes]", admin.scan_iter("redsem:*"))
    return [key.decode() async for key in keys]


async def is_held(semaphore: AnySemaphore, count: int) -> None:
    async def so_many() -> bool:
        return (await semaphore.status(0)).held == count

    await until(so_many, f"{count} are held", LEASE)


async def test_a_new_name_waits_for_a_lease_once(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """A name never seen and a name forgotten look the same; a name that is idle does not."""
    semaphore = kind(client_a, "jobs", 1, lease=LEASE, recovery="grace")
    began = time.monotonic()
    async with semaphore:
        assert time.monotonic() - began >= LEASE - 0.01
    with takes_at_most(0.1):
        async with semaphore:
            pass
    with takes_at_most(0.1):
        async with kind(client_b, "jobs", 1, lease=LEASE, recovery="grace"):
            pass


async def test_idle_keys_that_expire_are_no_loss(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """A marker without an expiry tells idleness from loss."""
    semaphore = await make(kind, client_a)
    kept = key_of(semaphore, "marker")
    gone = [key for key in await keys_on(admin) if key != kept]
    assert gone
    for key in gone:
        assert await admin.pttl(key) > 0
        assert await admin.pexpire(key, 1)
    assert await admin.pttl(kept) == -1

    async def expired() -> bool:
        return await keys_on(admin) == [kept]

    await until(expired, "idle keys have expired")
    with takes_at_most(0.1):
        async with semaphore:
            pass


@pytest.mark.fault(30)
@pytest.mark.parametrize("how", ["flush", "restart"])
async def test_holders_come_back_before_anybody_new_is_admitted(
    kind: Kind, server: EmbeddedRedis, client_a: Redis, client_b: Redis, how: str
) -> None:
    """What was lost is put back with its token, and the limit holds all the time."""
    here, there = await make(kind, client_a), await make(kind, client_b)
    async with here.acquire() as first, there.acquire() as second:
        token = first.fencing_token
        waiter = in_background(there.acquire(timeout=10))
        if how == "flush":
            async with Redis.from_url(server.url) as admin:
                await admin.flushall()
        else:
            server.kill()
            server.restart()
        await is_held(here, 2)
        assert not waiter.done()
        await asyncio.sleep(1.5 * LEASE)  # past the grace period: they are held as ever
        assert not waiter.done() and not first.lost and not second.lost
        assert first.fencing_token == token
        assert {holder.fencing_token for holder in (await here.status()).holders} == {
            token,
            second.fencing_token,
        }
    permit = await waiter
    assert permit.fencing_token > max(token, second.fencing_token)
    await permit.release()
    await all_free(here)


async def test_without_it_a_lost_permit_is_lost(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """The default: whoever held learns it within a refresh interval, and others go on at once."""
    here, there = kind(client_a, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    permit = await here.acquire()
    await admin.flushall()
    with takes_at_most(0.1):
        async with there:
            await asyncio.wait_for(permit.wait_lost(), LEASE)


async def test_a_crashed_holder_does_not_come_back(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """Its place is free when the grace period ends: a lease after the loss."""
    here, there = await make(kind, client_a, 1), await make(kind, client_b, 1)
    permit = await here.acquire()
    await permit.detach(LEASE)  # nobody refreshes it: as good as crashed
    await admin.flushall()
    began = time.monotonic()
    async with there.acquire(timeout=5):
        assert LEASE - 0.01 <= time.monotonic() - began <= LEASE + NOISE


async def test_what_was_released_is_not_put_back(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """A release in the grace period counts, also of a permit that is not back yet."""
    here, there = await make(kind, client_a), await make(kind, client_b)
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
    """What put it back arrives once more: the release counts, however short its way was."""
    here = await make(kind, proxied)
    permit = await here.acquire()
    await admin.flushall()
    await is_held(here, 1)
    assert await permit.release()
    for sent in proxy.operations("restore"):
        await say_again(server.port, sent)
    assert (await here.status(0)).held == 0
    assert await admin.hget(key_of(here, "meta"), "grace"), "it came in the grace period"


async def test_another_server_is_a_loss(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """A replica that took over has the marker as well, which names the master that it follows."""
    here = await make(kind, client_a)
    await admin.set(key_of(here, "marker"), 40 * "0")
    there = kind(client_b, "jobs", 2, lease=30.0, recovery="grace")
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)


async def test_nobody_slips_in_by_asking_again(kind: Kind, admin: Redis, client_a: Redis) -> None:
    """A process that is known again asks for what most do: that is answered the short way."""
    await make(kind, client_a)
    semaphore = kind(client_a, "jobs", 2, lease=30.0, recovery="grace")
    await admin.flushall()
    for _ in range(3):
        with pytest.raises(AcquireTimeout):
            await semaphore.acquire(timeout=0.1)


async def test_a_permit_released_elsewhere_meanwhile_stays_released(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """An operator's kick in the grace period is not undone by the holder's refresh."""
    here, there = await make(kind, client_a, 1), await make(kind, client_b, 1)
    permit = await here.acquire()
    await admin.flushall()
    assert not await there.release(permit.id), "it is not back yet"
    error = await asyncio.wait_for(permit.wait_lost(), 2 * LEASE)
    assert error.permit_id == permit.id
    async with there.acquire(timeout=5):
        pass


async def test_heavy_permits_come_back_whole(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """A permit of three is three again."""
    here, there = await make(kind, client_a, 3), await make(kind, client_b, 3)
    async with here.acquire(permits=3) as permit:
        await admin.flushall()
        await is_held(there, 3)
        assert await there.try_acquire() is None
        assert (await there.status()).holders[0].permits == 3
        assert not permit.lost
    await all_free(there)


async def test_one_lost_key_is_noticed_by_who_held(
    kind: Kind, admin: Redis, client_a: Redis, client_b: Redis
) -> None:
    """Holders evicted, tokens not: nobody released them, so they are put back."""
    here, there = await make(kind, client_a, 1), await make(kind, client_b, 1)
    async with here.acquire() as permit:
        assert await admin.delete(key_of(here, "holders")) == 1
        await is_held(there, 1)
        waiter = await waits_in_line(there)
        await asyncio.sleep(1.2 * LEASE)
        assert not permit.lost and not waiter.done()
    await (await waiter).release()


async def test_waiters_are_served_when_the_grace_period_ends(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """They sleep until then, and need no release to wake."""
    semaphore = await make(kind, client_a)
    await admin.flushall()
    began = time.monotonic()
    permits = await asyncio.gather(*(semaphore.acquire(timeout=5) for _ in range(2)))
    assert LEASE - 0.01 <= time.monotonic() - began <= LEASE + NOISE
    for permit in permits:
        await permit.release()


@pytest.mark.fault(30)
@pytest.mark.parametrize("how", ["flush", "restart"])
@pytest.mark.parametrize("grace", [False, True], ids=["at-once", "grace"])
async def test_a_set_limit_is_not_put_back(
    kind: Kind,
    server: EmbeddedRedis,
    client_a: Redis,
    client_b: Redis,
    grace: bool,
    how: str,
) -> None:
    """It is lost with the state: waiters and newcomers go by the limits they declare."""
    if grace:
        here, there = await make(kind, client_a), await make(kind, client_b)
    else:
        here, there = (
            kind(client_a, "jobs", 2, lease=LEASE),
            kind(client_b, "jobs", 2, lease=LEASE),
        )
    await here.set_limit(0)
    waiter = await waits_in_line(here)
    assert await tell(server, "EXISTS", key_of(here, "limit"))
    began = time.monotonic()
    if how == "flush":
        await tell(server, "FLUSHALL")
    else:
        server.kill()
        server.restart()
    newcomer = in_background(there.acquire(timeout=10))
    permits = [await waiter, await newcomer]
    assert not grace or time.monotonic() - began >= LEASE - 0.01
    assert not await tell(server, "EXISTS", key_of(here, "limit"))
    assert (await here.status()).limit == 2
    await here.set_limit(0)  # given again, it rules again
    for permit in permits:
        await permit.release()
    assert await there.try_acquire() is None


async def test_a_clear_is_no_loss(kind: Kind, client_a: Redis, client_b: Redis) -> None:
    """Whoever clears wants the holders gone: they do not come back."""
    here, there = await make(kind, client_a, 1), await make(kind, client_b, 1)
    permit = await here.acquire()
    await there.clear()
    await asyncio.wait_for(permit.wait_lost(), LEASE)
    async with there.acquire(timeout=5):
        assert permit.lost


async def test_servers_of_all_versions_tell_who_they_are(
    kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """Scripts read the run_id by INFO; it changes with every start."""
    server = embedded()
    semaphore = await make(kind, connect(server.url))
    async with Redis.from_url(server.url) as admin:
        marker = cast("bytes", await admin.get(key_of(semaphore, "marker")))
        assert marker.decode() == (await admin.info("server"))["run_id"]
