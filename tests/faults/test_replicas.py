"""Grants that replicas confirm before they are handed out: ``min_replicas``.

WAIT says how many replicas have what this connection wrote. It makes it unlikely that a failover
forgets a grant, and does not rule it out: docs/guarantees.md says why.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import redis
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendUnavailable
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Kind, kill_connection
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, takes_at_most, until, waits_in_line

pytestmark = pytest.mark.release


@pytest.fixture
def replica(server: EmbeddedRedis, embedded: StartServer) -> EmbeddedRedis:
    """A replica of the server, in sync."""
    with redis.Redis(port=server.port) as master:
        master.config_set("repl-diskless-sync-delay", 0)  # others to wait for there are none
    return embedded("--replicaof", "127.0.0.1", str(server.port))


@pytest.fixture
async def copy(replica: EmbeddedRedis, admin: Redis) -> AsyncIterator[Redis]:
    """A client of the replica."""
    async with Redis.from_url(replica.url) as client:

        async def linked() -> bool:
            return bool((await client.info("replication"))["master_link_status"] == "up")

        async def confirms() -> bool:
            await admin.set("written", "so that there is something to confirm")
            return await admin.wait(1, 100) == 1

        # While it loads, it is counted as one that has what was written before it came.
        await until(linked, "the replica has loaded", 15)
        await until(confirms, "the replica confirms", 15)
        yield client


async def waits_run(admin: Redis) -> int:
    stats = await admin.info("commandstats")
    return int(stats.get("cmdstat_wait", {"calls": 0})["calls"])


async def is_known(copy: Redis, semaphore: AnySemaphore, permit_id: str) -> bool:
    return await copy.zscore(f"redsem:{{{semaphore.name}}}:holders", permit_id) is not None


async def test_a_grant_is_confirmed_before_it_is_handed_out(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis
) -> None:
    """When the caller has the permit, a replica has it too."""
    semaphore = kind(client_a, "jobs", 2, min_replicas=1)
    before = await waits_run(admin)
    for _ in range(20):
        async with semaphore as permit:
            assert await is_known(copy, semaphore, permit.id)
    assert await waits_run(admin) >= before + 20
    await all_free(semaphore)


async def test_a_hand_off_is_confirmed_too(
    kind: Kind, client_a: Redis, client_b: Redis, copy: Redis
) -> None:
    """It was granted on somebody else's connection; the winner's own refresh is waited for."""
    here, there = (kind(each, "jobs", 1, min_replicas=1) for each in (client_a, client_b))
    holder = await here.acquire()
    waiter = await waits_in_line(there)
    await holder.release()
    permit = await asyncio.wait_for(waiter, 5)
    assert await is_known(copy, there, permit.id)
    await permit.release()
    await all_free(here)


async def test_too_few_replicas_are_waited_for(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """A replica that does not confirm is trouble that may pass: nothing is handed out before."""
    semaphore = kind(client_a, "jobs", 1, lease=2, min_replicas=1)
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        with (
            takes_at_most(1.0),
            pytest.raises(BackendUnavailable, match="0 of 1 replicas") as caught,
        ):
            await semaphore.acquire(timeout=1.0)
        assert "jobs" in str(caught.value)
        with takes_at_most(1.0), pytest.raises(BackendUnavailable):
            await semaphore.try_acquire()
        waiter = asyncio.create_task(semaphore.acquire(timeout=10))
        asked = await waits_run(admin)

        async def asked_again() -> bool:
            return await waits_run(admin) > asked + 1

        await until(asked_again, "it goes on asking")
        assert not waiter.done()
    finally:
        os.kill(replica.pid, signal.SIGCONT)
    permit = await asyncio.wait_for(waiter, 10)
    assert await is_known(copy, semaphore, permit.id)
    await permit.release()
    await all_free(semaphore)


async def test_a_timeout_shorter_than_a_confirmation(
    kind: Kind, client_a: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """Redis did answer: the error says that it is a replica that did not."""
    semaphore = kind(client_a, "jobs", 1, min_replicas=1)
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        with takes_at_most(0.2), pytest.raises(BackendUnavailable, match="was not confirmed"):
            await semaphore.acquire(timeout=0.2)
    finally:
        os.kill(replica.pid, signal.SIGCONT)
    async with semaphore as permit:
        assert await is_known(copy, semaphore, permit.id)
    await all_free(semaphore)


async def test_too_few_replicas_for_longer_than_a_lease(
    kind: Kind, client_a: Redis, copy: Redis
) -> None:
    """Without a deadline the caller is told after a lease, as with any outage."""
    semaphore = kind(client_a, "jobs", 1, lease=1, min_replicas=2)
    with takes_at_most(2.0), pytest.raises(BackendUnavailable, match="1 of 2 replicas"):
        await semaphore.acquire()


async def test_more_replicas_than_there_are(kind: Kind, client_a: Redis, copy: Redis) -> None:
    """The error says how many there were, and nothing stays held."""
    semaphore = kind(client_a, "jobs", 1, min_replicas=3)
    with pytest.raises(BackendUnavailable, match="1 of 3 replicas"):
        await semaphore.acquire(timeout=0.8)
    plain = kind(client_a, "jobs", 1)
    await (await plain.acquire(timeout=2)).release()


async def test_a_connection_lost_before_the_confirmation(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """On a new connection WAIT knows nothing of what was written on the old one."""
    semaphore = kind(client_a, "jobs", 1, lease=4, min_replicas=1)
    os.kill(replica.pid, signal.SIGSTOP)
    waiter = asyncio.create_task(semaphore.acquire(timeout=20))
    try:

        async def confirming() -> bool:
            return bool(await admin.zcard("redsem:{jobs}:holders")) and await waits_run(admin) > 0

        await until(confirming, "a grant waits for its confirmation")
        await kill_connection(admin, "here")
        asked = await waits_run(admin)

        async def asked_again() -> bool:
            return await waits_run(admin) > asked

        await until(asked_again, "it asks on the new connection")
        assert not waiter.done()
    finally:
        os.kill(replica.pid, signal.SIGCONT)
    permit = await asyncio.wait_for(waiter, 10)
    assert await is_known(copy, semaphore, permit.id)
    await permit.release()
    await all_free(semaphore)


async def test_a_caller_that_leaves_meanwhile(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis, replica: EmbeddedRedis
) -> None:
    """Cancelled while replicas are waited for, it gives back what it was granted."""
    semaphore = kind(client_a, "jobs", 1, lease=4, min_replicas=1)
    os.kill(replica.pid, signal.SIGSTOP)
    try:
        waiter = asyncio.create_task(semaphore.acquire())

        async def granted() -> bool:
            return bool(await admin.zcard("redsem:{jobs}:holders"))

        await until(granted, "it is granted, and not confirmed")
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await all_free(kind(client_a, "jobs", 1))
    finally:
        os.kill(replica.pid, signal.SIGCONT)


async def test_many_at_once_share_a_confirmation(
    kind: Kind, client_a: Redis, admin: Redis, copy: Redis
) -> None:
    """One WAIT covers all that was written before it."""
    semaphore = kind(client_a, "jobs", 100, min_replicas=1)
    before = await waits_run(admin)
    permits = await asyncio.gather(*(semaphore.acquire() for _ in range(100)))
    assert await waits_run(admin) - before <= 5
    for permit in permits:
        assert await is_known(copy, semaphore, permit.id)
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_others_do_not_suffer_for_replicas_that_they_did_not_ask_for(
    kind: Kind, client_a: Redis, copy: Redis
) -> None:
    """Of one name and one client: full is full to who wants no confirmation."""
    waiter = asyncio.create_task(kind(client_a, "jobs", 1, min_replicas=2).acquire(timeout=3))
    plain = kind(client_a, "jobs", 1)
    for _ in range(10):
        permit = await plain.try_acquire()
        if permit is not None:
            await permit.release()
        await asyncio.sleep(0.05)
    with pytest.raises(BackendUnavailable, match="not confirmed: 1 of 2"):
        await waiter
