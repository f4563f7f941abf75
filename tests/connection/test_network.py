"""Connections that break, fall silent or are slow: no permit is lost, and no waiter forgotten."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from redsem_async import AnySemaphore, FairSemaphore
from tests.harness.clients import connection_of, key_of, kill_connection
from tests.harness.inside import lease_of
from tests.harness.proxy import Proxy
from tests.harness.topologies import Cluster, tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one


@pytest.fixture
def here(proxied: Redis) -> AnySemaphore:
    return FairSemaphore(proxied, "jobs", 1, lease=LEASE)


@pytest.fixture
def there(client_b: Redis) -> AnySemaphore:
    return FairSemaphore(client_b, "jobs", 1, lease=LEASE)


@pytest.mark.fault(23)
@pytest.mark.parametrize("killed", [["here"], ["there"], ["here", "there"]], ids="-".join)
async def test_the_connection_is_killed_during_a_release(
    client_a: Redis, there: AnySemaphore, admin: Redis, killed: list[str]
) -> None:
    """The waiter's or the releaser's: served after a reconnection and a trip."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=LEASE)
    for _ in range(3):
        holder = await there.acquire(timeout=1)
        waiter = await waits_in_queue(semaphore)
        releasing = in_background(holder.release())
        await asyncio.sleep(0)  # it is being written
        numbers = {name: await kill_connection(admin, name) for name in killed}
        assert await releasing
        with takes_at_most(EPSILON):
            permit = await waiter
        for name, number in numbers.items():
            # One that has nothing to say any more need not come back.
            assert await connection_of(admin, name) != number
        assert await permit.release()


@pytest.mark.fault(23)
async def test_a_killed_connection_costs_a_holder_nothing(client_a: Redis, admin: Redis) -> None:
    """Time and again, while it is refreshed."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=3.0, refresh_interval=0.1)
    async with semaphore as permit:
        for _ in range(4):
            number = await kill_connection(admin, "here")

            async def back(number: int = number) -> bool:
                return await connection_of(admin, "here") not in (number, None)

            await until(back, "it is back", within=0.5)
            trusted = lease_of(permit).trusted_until
            await until(lambda: lease_of(permit).trusted_until > trusted, "it is refreshed")  # noqa: B023
        assert not permit.lost
        assert (await semaphore.status()).holders[0].id == permit.id


@pytest.mark.fault(23)
@pytest.mark.parametrize("lost", ["the message", "its refresh"])
async def test_a_grant_whose_message_was_lost_is_found(
    proxied: Redis, proxy: Proxy, client_b: Redis, lost: str
) -> None:
    """It went to a connection that broke: the new one asks, or renews (fair)."""
    here, there = (FairSemaphore(redis, "jobs", 1, lease=LEASE) for redis in (proxied, client_b))
    holder = await there.acquire()
    waiter = await waits_in_queue(here)
    if lost == "the message":
        proxy.mute()
    else:
        proxy.cut("refresh")
    assert await holder.release()
    status = await there.status()
    assert (status.held, status.waiting) == (1, 0), "it was handed over"
    if lost == "the message":
        assert not waiter.done()
        proxy.drop()
    with takes_at_most(0.2):
        permit = await waiter
    trusted = lease_of(permit).trusted_until
    assert [entry.id for entry in status.holders] == [permit.id]
    await until(lambda: lease_of(permit).trusted_until > trusted, "it is refreshed", within=0.5)
    assert len(proxy.connections) == 2
    assert await permit.release()


@pytest.mark.fault(24)
@pytest.mark.parametrize("waiting", [False, True], ids=["holding", "waiting"])
async def test_a_half_open_connection_is_noticed(
    proxied: Redis, proxy: Proxy, there: AnySemaphore, waiting: bool
) -> None:
    """Nothing comes and nothing ends: a question that stays unanswered tells."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=3.0)
    if waiting:
        holder = await there.acquire()
        waiter = await waits_in_queue(semaphore)
        proxy.half_open()
        assert await holder.release()
        # A heartbeat, and the patience for its answer.
        await is_served(waiter, 2.0 + EPSILON, after=holder)
        assert len(proxy.connections) == 2
    else:
        async with semaphore as permit:
            proxy.half_open()
            await until(lambda: len(proxy.connections) == 2, "it reconnected", within=2.5)
            await until(lambda: permit.expires_in > 2.5, "it is refreshed", within=1.0)
            assert not permit.lost
    await all_free(there)


@pytest.mark.release
def test_the_end_of_a_program_releases_where_the_slot_went(cluster: Cluster) -> None:
    """asyncio.run ends, and only then is it learned that the slot has moved."""
    kept: list[object] = []

    async def main() -> str:
        name = await cluster.name_on(cluster.shards[0])
        client = RedisCluster.from_url(cluster.url)
        semaphore = FairSemaphore(client, name, 1, lease=30.0)
        kept.extend([client, await semaphore.acquire(timeout=5)])
        await cluster.move(name, cluster.shards[1].master)
        return key_of(semaphore, "holders")

    key = asyncio.run(main())
    assert asyncio.run(tell(cluster.shards[1].master.server, "ZCARD", key)) == 0
