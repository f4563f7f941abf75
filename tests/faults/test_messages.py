"""Messages that are lost, late, too many, not understood, false or not allowed."""

import asyncio
import logging

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost, Semaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import (
    Connect,
    Kind,
    connection_of,
    hub_of,
    kill_connection,
    scripts_run,
)
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    takes_at_most,
    until,
    waits_in_line,
)


@pytest.mark.fault(23)
@pytest.mark.parametrize("killed", ["here", "there"])
async def test_the_connection_is_killed_during_a_release(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, killed: str
) -> None:
    """The waiter's or the releaser's: served after a reconnection and a trip."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    there = kind(client_b, "jobs", 1, lease=30.0)
    for _ in range(5):
        holder = await there.acquire(timeout=1)
        waiter = await waits_in_line(semaphore)
        releasing = in_background(holder.release())
        await asyncio.sleep(0)  # it is being written
        number = await kill_connection(admin, killed)
        assert await releasing
        with takes_at_most(EPSILON):
            permit = await waiter
        # Whichever has nothing to say any more need not come back.
        assert await connection_of(admin, killed) != number
        assert await permit.release()
    await all_free(semaphore)


@pytest.mark.fault(23)
async def test_all_subscribers_are_killed(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """`CLIENT KILL TYPE pubsub`: the hubs' connections count as that."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    holder = await kind(client_b, "jobs", 1, lease=30.0).acquire()
    waiter = await waits_in_line(semaphore)
    before = {await connection_of(admin, name) for name in ("here", "there")}
    assert await admin.client_kill_filter(_type="pubsub") == 2
    assert await holder.release()
    with takes_at_most(EPSILON):
        permit = await waiter
    assert await connection_of(admin, "here") not in before
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.fault(23)
async def test_a_killed_connection_costs_a_holder_nothing(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Time and again, while it is refreshed."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0, refresh_interval=0.1)
    async with semaphore as permit:
        numbers: set[int] = set()
        for _ in range(8):
            numbers.add(await kill_connection(admin, "here"))

            async def back() -> bool:
                return await connection_of(admin, "here") not in (*numbers, None)

            await until(back, "it is back", within=0.5)
            await asyncio.sleep(0.15)
        assert len(numbers) == 8
        assert not permit.lost
        assert (await semaphore.status()).holders[0].id == permit.id
    await all_free(semaphore)


def garbled(name: str) -> list[bytes]:
    """Messages that nobody of ours sends."""
    text = name.encode()
    return [
        b"",
        b"\xff\xfe\x00",
        b"\xff granted " + text,
        b"nonsense 1 " + text,
        b"granted",
        b"granted " + text,
        b"granted x " + text,
        b"granted 1 " + text,
        b"granted 1:2 " + text,
        b"granted 1:2:x " + text,
        b"granted ,,, " + text,
        b"granted 1:2:3:4 " + text,
        b"granted 99999:1:1000 " + text,
        b"granted -1:1:1000 " + text,
        b"granted 0:1:1000 " + text,
        b"granted 99999:1:1000 another name",
        b"granted 1:1:" + b"9" * 400 + b" " + text,
        b"granted 1:" + b"9" * 400 + b":1000 " + text,
        b"granted " + b"9" * 400 + b":1:1000 " + text,
        b"gone " + b"9" * 400 + b" " + text,
        b"hint " + b"9" * 400 + b" " + text,
        b"gone x " + text,
        b"gone 99999 " + text,
        b"gone  " + text,
        b"hint x " + text,
        b"hint -5 " + text,
        b"hint 0 " + text,
        b"hint 99999999999999999999 " + text,
        b"cleared - another name",
        b"x" * 100_000,
    ]


@pytest.mark.fault(25)
async def test_garbled_messages_are_ignored(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """To a hub that holds, and to one that waits; no reply is shifted by them."""
    here, there = kind(client_a, "jobs", 1, lease=30.0), kind(client_b, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    waiter = await waits_in_line(here)
    hub = (await here.status()).waiters[0].client.id
    numbers = [await connection_of(admin, name) for name in ("here", "there")]
    for raw in garbled("jobs"):
        assert await admin.publish(f"redsem:@{hub}", raw) == 1
        assert await admin.publish(f"redsem:@{hub_of(holder)}", raw) == 1
    await holder.refresh()
    status = await here.status()
    assert [entry.id for entry in status.holders] == [holder.id]
    assert not waiter.done()
    assert not holder.lost
    assert [await connection_of(admin, name) for name in ("here", "there")] == numbers
    assert await holder.release()
    with takes_at_most(EPSILON):
        permit = await asyncio.wait_for(waiter, 3)
    assert (await there.status()).holders[0].id == permit.id
    assert await permit.release()
    with takes_at_most(EPSILON):
        assert await (await there.acquire(timeout=3)).release()
    await all_free(here)


@pytest.mark.fault(25)
async def test_a_forged_grant_is_found_out(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """The refresh that follows it tells, within one trip; the limit is kept."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=30.0)
    there = FairSemaphore(client_b, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    lost: list[PermitLost] = []

    async def body() -> None:
        while True:
            try:
                async with semaphore.acquire(timeout=20) as permit:
                    await asyncio.sleep(0.5)
                    assert (await there.status()).holders[0].id == permit.id
                    return
            except PermitLost as error:
                lost.append(error)

    working = asyncio.create_task(body())

    async def in_line() -> bool:
        return (await there.status(0)).waiting == 1

    await until(in_line, "the waiter is in line")
    [waiter] = (await there.status()).waiters
    hub, _, number = waiter.id.partition(".")
    number = number.partition(":")[0]
    forged = f"granted {number}:{holder.fencing_token + 1}:30000 jobs"
    assert await admin.publish(f"redsem:@{hub}", forged) == 1
    await until(lambda: bool(lost), "it is found out", within=0.3)
    assert not holder.lost
    assert await holder.release()
    await asyncio.wait_for(working, 2)
    await all_free(there)


@pytest.mark.fault(25)
async def test_a_stray_grant_is_given_back(client_a: Redis, client_b: Redis, admin: Redis) -> None:
    """A message for an id that is not waited for: whatever it stands for is freed."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=30.0)
    there = FairSemaphore(client_b, "jobs", 1, lease=30.0)
    holder = await there.acquire()
    async with FairSemaphore(client_a, "others", 1) as former:
        hub, _, number = former.id.partition(".")
    waiter = await waits_in_line(semaphore)
    before = await scripts_run(admin)
    assert await admin.publish(f"redsem:@{hub}", f"granted {number}:1:30000 jobs") == 1

    async def answered() -> bool:
        return await scripts_run(admin) > before

    await until(answered, "it is given back")
    assert not holder.lost
    assert await holder.release()
    with takes_at_most(EPSILON):
        assert await (await waiter).release()


@pytest.mark.fault(27)
@pytest.mark.parametrize("waiting", [False, True])
async def test_ten_thousand_messages_are_coalesced(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, waiting: bool
) -> None:
    """One answer each would be a storm."""
    semaphore = kind(client_a, "jobs", 2, lease=30.0)
    there = kind(client_b, "jobs", 2, lease=30.0)
    permit = await semaphore.acquire()
    holder = await there.acquire()
    waiter = await waits_in_line(semaphore) if waiting else None
    before = await scripts_run(admin)
    async with admin.pipeline(transaction=False) as pipeline:
        for n in range(10_000):
            said = "hint 1 jobs" if kind is Semaphore else f"granted {1000 + n}:1:30000 jobs"
            _ = pipeline.publish(f"redsem:@{hub_of(permit)}", said)
        heard = await pipeline.execute()
    assert set(heard) == {1}
    await permit.refresh()
    assert await scripts_run(admin) - before < 500
    assert await permit.release()
    if waiter is not None:
        with takes_at_most(0.5):
            assert await (await waiter).release()
    assert await holder.release()
    await all_free(there)


async def test_a_grant_that_was_on_its_way_for_long_is_trusted_for_what_is_left(
    proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It lay behind a reply for a while, and its refresh does not arrive.

    The trust is counted from when the command was sent that the reply is to: the server had run
    that when it granted. Were it counted from the arrival, two would be inside.
    """
    lease = 3.0  # handed over for two thirds of it
    there = FairSemaphore(client_b, "jobs", 1, lease=lease)
    here = FairSemaphore(proxied, "jobs", 1, lease=lease)
    await here.reap()
    holder = await there.acquire()
    reply = proxy.hold("acquire")
    _ = proxy.stop("refresh")
    waiter = in_background(here.acquire())
    await reply.struck.wait()
    next_in_line = await waits_in_line(there, place=2)
    assert await holder.release()
    await asyncio.sleep(0.6)  # that is how late it is
    reply.lift()
    permit = await waiter
    assert permit.expires_in < 2.0 - 0.6
    successor = await next_in_line
    assert permit.expires_in <= 0
    assert await successor.release()


@pytest.mark.fault(28)
async def test_denied_subscriptions_are_warned_of_once(
    kind: Kind,
    server: EmbeddedRedis,
    admin: Redis,
    client_b: Redis,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Heartbeats find the grants then, and the log says why it takes so long."""
    await admin.acl_setuser(
        "deaf",
        enabled=True,
        passwords=["+secret"],
        categories=["+@all"],
        commands=["-subscribe"],
        keys=["*"],
        channels=["*"],
    )
    redis = connect(server.url, username="deaf", password="secret", client_name="deaf")
    semaphore = kind(redis, "jobs", 1, lease=3.0)
    there = kind(client_b, "jobs", 1, lease=3.0)
    with caplog.at_level(logging.WARNING, "redsem_async"):
        for _ in range(2):
            holder = await there.acquire(timeout=2)
            waiter = await waits_in_line(semaphore)
            assert await holder.release()
            with takes_at_most(1.0 + EPSILON):  # a heartbeat
                permit = await waiter
            assert await permit.release()
        assert await connection_of(admin, "deaf") is None, "it is subscribed"
        [number] = [c["id"] for c in await admin.client_list() if c["name"] == "deaf"]
        assert await admin.client_kill_filter(_id=number) == 1
        async with semaphore.acquire(timeout=2):
            pass
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "heartbeat" in warnings[0].getMessage()
    await all_free(there)


@pytest.mark.fault(23)
async def test_a_grant_in_flight_when_the_connection_breaks(
    proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """The message arrived, its refresh did not: the permit is the waiter's."""
    semaphore = FairSemaphore(proxied, "jobs", 1, lease=9.0)
    holder = await FairSemaphore(client_b, "jobs", 1, lease=9.0).acquire()
    waiter = await waits_in_line(semaphore)
    fault = proxy.cut("refresh")
    assert await holder.release()
    with takes_at_most(0.2):
        permit = await waiter
    await asyncio.wait_for(fault.struck.wait(), 1)
    await until(lambda: permit.expires_in > 8, "it is made a whole lease", within=0.5)
    assert await permit.release()
