"""Messages and replies that are late, too many, not understood or false."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from tests.harness.clients import connection_of, hub_of, scripts_run
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    is_served,
    soon,
    until,
    waits_in_queue,
)

LEASE = 30.0
HUGE = "9" * 400
GARBLED = [
    *(b"", b"\xff\xfe\x00", b"\xff granted jobs", b"x" * 100_000),
    *(b"nonsense 1 jobs", b"granted", b"granted 1 jobs", b"granted ,,, jobs", b"revoked  jobs"),
    *(b"granted 1:2:3:4 jobs", b"granted -1:1:1000 jobs", b"granted 0:1:1000 jobs"),
    *(b"granted 99999:1:1000 jobs", b"granted 99999:1:1000 another name", b"revoked 99999 jobs"),
    *(b"recheck", b"recheck - jobs", b"deleted - another name"),
    *(
        f"{text} jobs".encode()
        for text in (f"granted {HUGE}:1:1000", f"revoked {HUGE}", f"recheck {HUGE}")
    ),
]


@pytest.mark.fault(25)
async def test_garbled_messages_do_nothing(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """By a hub that holds, and by one that waits; no reply is shifted by them."""
    here, there = (
        FairSemaphore(client_a, "jobs", 1, lease=LEASE),
        FairSemaphore(client_b, "jobs", 1, lease=LEASE),
    )
    holder = await there.acquire()
    waiter = await waits_in_queue(here)
    hubs = (await here.status()).waiters[0].client.id, hub_of(holder)
    numbers = [await connection_of(admin, name) for name in ("here", "there")]
    for raw in GARBLED:
        for hub in hubs:
            assert await admin.publish(f"redsem:@{hub}", raw) == 1
    await holder.refresh()
    assert [entry.id for entry in (await here.status()).holders] == [holder.id]
    assert not waiter.done()
    assert not holder.lost
    assert [await connection_of(admin, name) for name in ("here", "there")] == numbers
    assert await holder.release()
    await is_served(waiter, EPSILON, after=holder)
    await all_free(here)


@pytest.mark.fault(25)
async def test_a_forged_grant_is_found_out(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """The refresh that follows it finds it, within one trip; the limit is kept."""
    here, there = (FairSemaphore(redis, "jobs", 1, lease=LEASE) for redis in (client_a, client_b))
    holder = await there.acquire()
    waiting = await waits_in_queue(here)
    [waiter] = (await there.status()).waiters
    hub, _, number = waiter.id.partition(".")
    number = number.partition(":")[0]
    forged = f"granted {number}:{holder.fencing_token + 1}:30000 jobs"
    assert await admin.publish(f"redsem:@{hub}", forged) == 1
    with pytest.raises(PermitLost):
        async with await waiting as permit:
            lost = await soon(permit.wait_lost(), EPSILON)
            assert lost.permit_id == permit.id
            await asyncio.sleep(1)
    assert not holder.lost
    assert await holder.release()
    await all_free(there)


@pytest.mark.fault(25)
async def test_a_stray_grant_is_given_back(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """A message for an id that no task waits for: whatever it stands for is freed."""
    here, there = (FairSemaphore(redis, "jobs", 1, lease=LEASE) for redis in (client_a, client_b))
    holder = await there.acquire()
    async with FairSemaphore(client_a, "others", 1) as former:
        hub, _, number = former.id.partition(".")
    waiter = await waits_in_queue(here)
    before = await scripts_run(admin)
    assert await admin.publish(f"redsem:@{hub}", f"granted {number}:1:30000 jobs") == 1

    async def answered() -> bool:
        return await scripts_run(admin) > before

    await until(answered, "it is given back")
    assert not holder.lost
    assert await holder.release()
    await is_served(waiter, EPSILON, after=holder)


@pytest.mark.fault(27)
async def test_10_000_messages_are_coalesced(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """One answer each would be a storm."""
    here, there = (
        FairSemaphore(client_a, "jobs", 2, lease=LEASE),
        FairSemaphore(client_b, "jobs", 2, lease=LEASE),
    )
    permit, holder = await here.acquire(), await there.acquire()
    waiter = await waits_in_queue(here)
    before = await scripts_run(admin)
    async with admin.pipeline(transaction=False) as pipeline:
        for n in range(10_000):
            said = f"granted {1000 + n}:1:30000 jobs" if n % 2 else "recheck - jobs"
            _ = pipeline.publish(f"redsem:@{hub_of(permit)}", said)
        assert set(await pipeline.execute()) == {1}
    await permit.refresh()
    assert await scripts_run(admin) - before < 500
    assert await permit.release()
    await is_served(waiter, 0.5, after=permit)
    assert await holder.release()
    await all_free(there)


async def test_a_grant_that_was_on_its_way_for_long_is_trusted_for_what_is_left(
    proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It lay behind a reply for a while, and its refresh does not arrive.

    The trust is counted from when the command was sent that the reply is to: the server had run
    that when it granted. Were it counted from the arrival, two would be inside.
    """
    lease = 3.0
    here, there = (FairSemaphore(redis, "jobs", 1, lease=lease) for redis in (proxied, client_b))
    await here.reap()
    holder = await there.acquire()
    reply = proxy.hold("acquire")
    _ = proxy.stop("refresh")
    waiter = in_background(here.acquire())
    await reply.struck.wait()
    next_in_line = await waits_in_queue(there, place=2)
    assert await holder.release()
    await asyncio.sleep(0.6)  # that is how late it is
    reply.lift()
    permit = await waiter
    assert permit.expires_in < lease - 0.6
    successor = await next_in_line
    assert permit.expires_in <= 0
    assert await successor.release()


async def test_heartbeats_come_beside_acquires(
    proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Other commands keep neither the line, nor do they find grants that were not heard of."""
    here, there = (
        FairSemaphore(proxied, "jobs", 1, lease=1.0),
        FairSemaphore(client_b, "jobs", 1, lease=30.0),
    )
    async with there:
        waiter = await waits_in_queue(here)

        async def two_came() -> bool:
            assert await here.try_acquire() is None
            return len(proxy.operations("heartbeat")) >= 2

        await until(two_came, "a heartbeat for each interval", within=30)
    assert await (await waiter).release()
