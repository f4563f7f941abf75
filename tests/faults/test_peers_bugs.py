"""What others got wrong, each as a test of ours; their names follow the list of the field.

What is tested elsewhere in this folder at length is here in its shortest form.
"""

import asyncio
import random
import time
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from redsem_async import (
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
)
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Connect, Kind, key_of, scripts_run, tokens_of
from tests.harness.proxy import Proxy, say_again
from tests.harness.servers import StartServer
from tests.harness.wait import EPSILON, all_free, in_background, takes_at_most, waits_in_line


async def test_bug_1_ticket_and_rank_are_one_trip(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Two processes that ask at the same moment, at limit 1: one of them holds."""
    semaphores = [FairSemaphore(redis, "jobs", 1) for redis in (client_a, client_b)]
    for _ in range(30):
        asked = [semaphore.try_acquire() for semaphore in semaphores for _ in range(5)]
        granted = [permit for permit in await asyncio.gather(*asked) if permit]
        assert len(granted) == 1
        before = await scripts_run(admin)
        assert await granted[0].release()
        assert await scripts_run(admin) == before + 1
    await all_free(semaphores[0])


async def test_bug_2_a_callers_timeout_is_its_own(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """A caller in a hurry, with a short lease, takes nobody's long one away."""
    permit = await kind(client_a, "jobs", 1, lease=10.0).acquire()
    hasty = kind(client_b, "jobs", 1, lease=0.05)
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError):
            await hasty.acquire(timeout=timeout)
    assert await hasty.reap() == 0
    await permit.refresh()
    assert await permit.release()


async def test_bug_3_one_object_many_tasks(kind: Kind, client_a: Redis) -> None:
    """Whoever leaves its block releases its own permit, in whatever order."""
    semaphore = kind(client_a, "jobs", 20)
    inside: set[str] = set()

    async def work(seconds: float) -> None:
        async with semaphore as outer:
            inside.add(outer.id)
            async with semaphore as inner:
                inside.add(inner.id)
                await asyncio.sleep(seconds)
                inside.discard(inner.id)
            held = {entry.id for entry in (await semaphore.status()).holders}
            assert inner.id not in held
            assert outer.id in held
            inside.discard(outer.id)

    await asyncio.gather(*(work(0.01 * n) for n in random.Random(3).sample(range(10), 10)))
    assert not inside
    await all_free(semaphore)


async def test_bug_4_cancellation_around_acquire(kind: Kind, client_a: Redis) -> None:
    """At any moment of it: every permit is free afterwards, at once."""
    semaphore = kind(client_a, "jobs", 3)
    dice = random.Random(4)
    attempts = [in_background(semaphore.acquire()) for _ in range(150)]
    for attempt in dice.sample(attempts, 150):
        await asyncio.sleep(0.0003 * dice.random())
        attempt.cancel()
    ended = await asyncio.gather(*attempts, return_exceptions=True)
    granted = [permit for permit in ended if isinstance(permit, Permit)]
    assert len(granted) < 150
    await asyncio.gather(*(permit.release() for permit in granted))
    await all_free(semaphore, within=0.5)


async def test_bug_5_cancellation_at_exit_is_not_swallowed(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """Cancelled while it releases: it is released, and the task ends as cancelled."""
    semaphore = kind(proxied, "jobs", 1)

    async def work() -> None:
        async with semaphore:
            pass
        await asyncio.sleep(10)  # where a swallowed cancellation would leave it

    fault = proxy.hold("release")
    working = asyncio.create_task(work())
    await asyncio.wait_for(fault.struck.wait(), 2)
    working.cancel()
    await asyncio.sleep(0)
    assert not working.done(), "it did not wait for the release to be confirmed"
    fault.lift()
    await asyncio.wait([working], timeout=1)
    assert working.cancelled()
    await all_free(semaphore)


async def test_bug_6_a_hold_longer_than_the_expiry(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Refreshed, it holds on; expired, its late release frees nothing a second time."""
    semaphore, there = kind(client_a, "jobs", 1, lease=0.3), kind(client_b, "jobs", 1, lease=5.0)
    async with semaphore:
        await asyncio.sleep(0.5)
        assert await there.try_acquire() is None
    late = await semaphore.acquire()
    await admin.zadd(key_of(semaphore, "holders"), {late.id: 1})
    successor = await there.acquire(timeout=0)
    assert not await late.release()
    assert await there.available() == 0
    assert await successor.release()
    assert await there.available() == 1


async def test_bug_7_an_unreachable_store_is_no_permit(
    kind: Kind, client_a: Redis, server: EmbeddedRedis
) -> None:
    """Neither for who asks, nor for who holds already."""
    semaphore = kind(client_a, "jobs", 1, lease=0.6)
    with pytest.raises(PermitLost):
        async with semaphore:
            server.kill()
            with takes_at_most(0.6):
                with pytest.raises(BackendUnavailable):
                    await semaphore.acquire(timeout=0.1)
                with pytest.raises(BackendUnavailable):
                    await semaphore.try_acquire()
                await asyncio.sleep(5)
    server.restart()


async def test_bug_8_the_clients_retries_do_not_add_up(
    kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """A client that retries ten times, with pauses; and half a second to wait."""
    server = embedded()
    server.kill()
    redis = Redis(host="127.0.0.1", port=server.port)
    assert redis.get_retry() is not None
    semaphore = kind(redis, "jobs", 1)
    with takes_at_most(0.5), pytest.raises(BackendUnavailable):
        await semaphore.acquire(timeout=0.5)
    await redis.aclose()


async def test_bug_9_a_replayed_script_changes_nothing(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """Each acquire is run twice by the server, while it holds and after."""
    semaphore = kind(proxied, "jobs", 2)
    permit = await semaphore.acquire()
    sent = proxy.operations("acquire")[-1]
    reply = await say_again(server.port, sent)
    *_, [token, _left_ms] = cast("list[list[bytes]]", reply)
    assert int(token) == permit.fencing_token, "the same permit, once more"
    assert (await semaphore.status(0)).held == 1
    assert await permit.release()
    await say_again(server.port, sent)
    assert (await semaphore.status(0)).held == 0


async def test_bug_10_what_is_left_of_the_lease(
    kind: Kind, client_a: Redis, start: StartWorker
) -> None:
    """Who waits behind a crashed holder waits for its expiry, not for a lease from now."""
    holder = await start("hold", kind=kind.__name__, name="jobs", lease=1.5, refresh_interval=1.4)
    said = await holder.heard("held")
    await holder.kill()
    await asyncio.sleep(max(0.0, said["at"] + 0.8 - time.monotonic()))
    with takes_at_most(0.7 + EPSILON):
        permit = await kind(client_a, "jobs", 1, lease=60.0).acquire()
    assert await permit.release()


async def test_bug_11_wake_ups_do_not_pile_up(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """A release without a waiter leaves nothing for later, and an idle name nothing at all."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)
    for _ in range(50):
        async with semaphore:
            pass
    before = sorted(await admin.keys("*"))
    sizes = [await admin.memory_usage(key) for key in before]
    for _ in range(50):
        async with semaphore:
            pass
    assert sorted(await admin.keys("*")) == before
    assert [await admin.memory_usage(key) for key in before] == sizes
    permit = await kind(client_b, "jobs", 1).acquire(timeout=0)
    assert await semaphore.try_acquire() is None, "a wake-up was left over"
    assert await permit.release()


async def test_bug_12_a_crash_between_the_hand_over_and_its_hearing(
    kind: Kind, client_a: Redis, client_b: Redis, proxied: Redis, proxy: Proxy
) -> None:
    """The waiter's process hears nothing of its grant, and never will: no slot is lost."""
    there = kind(client_b, "jobs", 1, lease=3.0)
    holder = await there.acquire()
    doomed = await waits_in_line(kind(proxied, "jobs", 1, lease=3.0))
    heir = await waits_in_line(kind(client_a, "jobs", 1, lease=3.0), place=2)
    proxy.half_open()  # from here on it is as good as crashed
    proxy.refusing = True
    assert await holder.release()
    assert not doomed.done()
    with takes_at_most(2.0 + EPSILON):  # the short lease of a hand-over
        permit = await heir
    assert await permit.release()
    doomed.cancel()
    await asyncio.wait([doomed])


async def test_bug_13_a_redelivery_does_not_release_the_first_holders(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """A job that is delivered twice carries one id: the second adopter gets nothing."""
    semaphore, there = kind(client_a, "jobs", 1), kind(client_b, "jobs", 1)
    carried = await (await semaphore.acquire()).detach()
    async with there.adopt(carried) as permit:
        with pytest.raises(PermitLost):
            async with semaphore.adopt(carried):
                pass
        assert not await semaphore.release(carried)
        await permit.refresh()
        assert (await semaphore.status(0)).held == 1
    await all_free(semaphore)


@pytest.mark.parametrize("operation", ["acquire", "release", "cancel"])
async def test_bug_14_thousands_at_once(kind: Kind, client_a: Redis, operation: str) -> None:
    """Lua unpacks some 8,000 values at most: 9,000 ids in one turn of the loop."""
    semaphore = kind(client_a, "jobs", 1 if operation == "cancel" else 9_000)
    held = await semaphore.acquire()
    acquiring = [in_background(semaphore.acquire()) for _ in range(8_999)]
    if operation == "cancel":
        await asyncio.sleep(0.3)
        for attempt in acquiring:
            attempt.cancel()
        await asyncio.wait(acquiring)
    else:
        permits = await asyncio.gather(*acquiring)
        assert (await semaphore.status(0)).held == 9_000
        if operation == "release":
            assert all(await asyncio.gather(*(permit.release() for permit in permits)))
        else:
            await semaphore.clear()
            held = await semaphore.acquire(timeout=1)
    assert await held.release()
    await all_free(semaphore)


async def test_bug_15_one_source_of_truth(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """What is in use is counted from the holders: one that vanishes takes its place along."""
    semaphore = kind(client_a, "jobs", 4)
    permits = [await semaphore.acquire(permits=n) for n in (1, 2)]
    assert await semaphore.available() == 1
    assert await admin.zrem(key_of(semaphore, "holders"), permits[1].id) == 1
    await semaphore.reap()
    assert not await permits[1].release()
    assert await semaphore.available() == 3
    assert await permits[0].release()
    assert await semaphore.available() == 4
    assert not await admin.zcard(key_of(semaphore, "extra"))
    assert not await tokens_of(admin, semaphore)


async def test_bug_16_every_key_is_declared_and_in_the_slot_of_its_name(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis, client_a: Redis
) -> None:
    """A cluster refuses the rest, and one slot for all names is one shard for all."""
    for name in ("jobs", "mails"):
        semaphore = kind(proxied, name, 1, lease=0.6)
        permit = await semaphore.acquire()
        waiter = await waits_in_line(semaphore)
        await permit.refresh()
        await permit.release()
        await (await waiter).detach()
        await semaphore.set_limit(2)
        await semaphore.clear()
    slots: dict[bytes, set[int]] = {}
    scripts = [sent for sent in proxy.sent if sent.arguments[0] in (b"EVAL", b"EVALSHA")]
    declared: set[bytes] = set()
    for sent in scripts:
        keys = sent.arguments[3 : 3 + int(sent.arguments[2])]
        assert len(keys) >= 4
        for key in keys:
            declared.add(key)
            tag = key[key.index(b"{") + 1 : key.index(b"}")]
            slots.setdefault(tag, set()).add(key_slot(key))
    assert {len(of_name) for of_name in slots.values()} == {1}
    assert slots[b"jobs"] != slots[b"mails"]
    async with kind(client_a, "jobs", 1) as held:
        assert set(await admin.keys("*jobs*")) <= declared
        assert held.permits == 1


async def test_bug_17_a_name_that_is_done_with_leaves_no_key(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Names may be made by the million: each key has an expiry, whatever was done."""
    semaphores = [kind(client_a, f"tenant-{n}", 2, lease=0.2 * (1 + n)) for n in range(5)]
    for semaphore in semaphores:
        permit = await semaphore.acquire(permits=2)
        waiter = await waits_in_line(kind(client_b, semaphore.name, 2, lease=5.0))
        attempt = in_background(semaphore.acquire())
        await asyncio.sleep(0.01)
        attempt.cancel()
        await asyncio.wait([attempt])
        await permit.refresh()
        assert await permit.release()
        await (await waiter).detach(0.5)
        await semaphore.reap()
    keys = await admin.keys("*")
    assert keys
    for key in keys:
        assert 0 < await admin.ttl(key) < 600, key
    [semaphore, *_] = semaphores
    await semaphore.set_limit(3)
    forever = [key for key in await admin.keys("*") if await admin.ttl(key) == -1]
    assert forever == [key_of(semaphore, "limit").encode()]
    await semaphore.set_limit(None)
    assert not await admin.exists(key_of(semaphore, "limit"))
