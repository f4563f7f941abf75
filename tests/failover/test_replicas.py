"""Grants that replicas confirm before they are handed out: ``min_replicas``.

WAIT says how many replicas have what this connection wrote. It makes it unlikely that a failover
forgets a grant, and does not rule it out: docs/guarantees.md says why.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendUnavailable, Permit
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Kind, key_of, kill_connection
from tests.harness.replicas import Replicated
from tests.harness.servers import stopped
from tests.harness.wait import all_free, in_background, soon, takes_at_most, until, waits_in_queue

pytestmark = pytest.mark.release


@pytest.fixture
def server(replicated: Replicated) -> EmbeddedRedis:
    """The master of `replicated`."""
    return replicated.master


@pytest.fixture
async def replica(replicated: Replicated, admin: Redis) -> EmbeddedRedis:
    """A replica that confirms what it gets."""

    async def confirms() -> bool:
        await admin.set("written", "so that there is something to confirm")
        return await admin.wait(1, 100) == 1

    await until(confirms, "the replica confirms", 15)
    return replicated.replicas[0]


@pytest.fixture
async def copy(replica: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A client of the replica."""
    async with Redis.from_url(replica.url) as client:
        yield client


async def waits_run(admin: Redis) -> int:
    stats = await admin.info("commandstats")
    return int(stats.get("cmdstat_wait", {"calls": 0})["calls"])


async def more_waits(admin: Redis, than: int) -> None:
    async def asked_again() -> bool:
        return await waits_run(admin) > than

    await until(asked_again, "it asks again")


async def granted(admin: Redis, semaphore: AnySemaphore) -> None:
    """Wait until the master has a grant, which is not confirmed yet."""

    async def is_held() -> bool:
        return bool(await admin.zcard(key_of(semaphore, "holders")))

    await until(is_held, "it is granted, and not confirmed")


async def is_confirmed(permit: Permit, copy: Redis) -> bool:
    return await copy.zscore(f"redsem:{{{permit.name}}}:holders", permit.id) is not None


async def test_a_grant_is_confirmed_before_it_is_handed_out(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis
) -> None:
    """When the caller has the permit, a replica has it too."""
    semaphore = kind(client_a, "jobs", 2, min_replicas=1)
    before = await waits_run(admin)
    for _ in range(20):
        async with semaphore as permit:
            assert await is_confirmed(permit, copy)
    assert await waits_run(admin) >= before + 20
    await all_free(semaphore)


async def test_a_hand_off_is_confirmed_too(
    kind: Kind, client_a: Redis, client_b: Redis, copy: Redis
) -> None:
    """It was granted on another hub's connection; the winner's own refresh is waited for."""
    here, there = (kind(each, "jobs", 1, min_replicas=1) for each in (client_a, client_b))
    holder = await here.acquire()
    waiter = await waits_in_queue(there)
    await holder.release()
    permit = await soon(waiter, 5)
    assert await is_confirmed(permit, copy)
    await permit.release()
    await all_free(here)


async def test_too_few_replicas_are_waited_for(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """A replica that does not confirm is trouble that may pass: nothing is handed out before."""
    semaphore = kind(client_a, "jobs", 1, lease=2, min_replicas=1)
    with stopped(replica):
        with takes_at_most(0.2), pytest.raises(BackendUnavailable, match="was not confirmed"):
            await semaphore.acquire(timeout=0.2)  # before WAIT has ended
        with takes_at_most(1.0), pytest.raises(BackendUnavailable, match="0 of 1 rep") as caught:
            await semaphore.acquire(timeout=1.0)
        assert "jobs" in str(caught.value)
        with takes_at_most(1.0), pytest.raises(BackendUnavailable):
            await semaphore.try_acquire()
        waiter = in_background(semaphore.acquire(timeout=10))
        await more_waits(admin, await waits_run(admin) + 1)
        assert not waiter.done()
    permit = await soon(waiter, 10)
    assert await is_confirmed(permit, copy)
    await permit.release()
    await all_free(semaphore)


async def test_too_few_replicas_for_longer_than_a_lease(
    kind: Kind, client_a: Redis, replica: EmbeddedRedis
) -> None:
    """Without a deadline the caller gets the error after a lease; nothing stays held."""
    semaphore = kind(client_a, "jobs", 1, lease=1, min_replicas=3)
    with takes_at_most(2.0), pytest.raises(BackendUnavailable, match="1 of 3 replicas"):
        await semaphore.acquire()
    await (await kind(client_a, "jobs", 1).acquire(timeout=2)).release()


async def test_a_connection_lost_before_the_confirmation(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """On a new connection WAIT knows nothing of what was written on the old one."""
    semaphore = kind(client_a, "jobs", 1, lease=4, min_replicas=1)
    before = await waits_run(admin)
    with stopped(replica):
        waiter = in_background(semaphore.acquire(timeout=20))
        await granted(admin, semaphore)
        await more_waits(admin, before)
        await kill_connection(admin, "here")
        await more_waits(admin, await waits_run(admin))
        assert not waiter.done()
    permit = await soon(waiter, 10)
    assert await is_confirmed(permit, copy)
    await permit.release()
    await all_free(semaphore)


async def test_a_caller_that_leaves_meanwhile(
    kind: Kind, client_a: Redis, admin: Redis, replica: EmbeddedRedis
) -> None:
    """Cancelled while replicas are waited for, it gives back what it was granted."""
    semaphore = kind(client_a, "jobs", 1, lease=4, min_replicas=1)
    with stopped(replica):
        waiter = in_background(semaphore.acquire())
        await granted(admin, semaphore)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await all_free(kind(client_a, "jobs", 1))


async def test_many_at_once_share_a_confirmation(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis
) -> None:
    """One WAIT covers all that was written before it."""
    semaphore = kind(client_a, "jobs", 100, min_replicas=1)
    before = await waits_run(admin)
    permits = await asyncio.gather(*(semaphore.acquire() for _ in range(100)))
    assert await waits_run(admin) - before <= 5
    for permit in permits:
        assert await is_confirmed(permit, copy)
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_others_do_not_suffer_for_replicas_that_they_did_not_ask_for(
    kind: Kind, client_a: Redis, replica: EmbeddedRedis
) -> None:
    """Of one name and one client: full is full to a semaphore without confirmations."""
    waiter = in_background(kind(client_a, "jobs", 1, min_replicas=2).acquire(timeout=3))
    plain = kind(client_a, "jobs", 1)
    for _ in range(10):
        permit = await plain.try_acquire()
        if permit is not None:
            await permit.release()
        await asyncio.sleep(0.05)
    with pytest.raises(BackendUnavailable, match="not confirmed: 1 of 2"):
        await waiter
