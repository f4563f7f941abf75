"""The short commands of a process that the server knows: they keep every promise, too."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    BackendError,
    FairSemaphore,
    ModeMismatch,
    Semaphore,
)
from tests.harness.clients import Kind, cut_off, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import all_free, cancelled, queue_up, soon, waits_in_queue


@pytest.mark.parametrize(
    ("weights", "set_limit"),
    [((1, 1), None), ((2,), None), ((1,), 1)],
    ids=["full", "held by a heavy one", "above a set limit"],
)
async def test_the_limit_holds_on_the_quick_path(
    kind: Kind, client_a: Redis, client_b: Redis, weights: tuple[int, ...], set_limit: int | None
) -> None:
    """A process that is known asks for what most do, and there is no room for it."""
    here, there = kind(client_a, "jobs", 2, lease=30.0), kind(client_b, "jobs", 2, lease=30.0)
    async with there:
        pass
    await here.set_limit(set_limit)
    permits = [await here.acquire(permits=weight) for weight in weights]
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)
    for permit in permits:
        assert await permit.release()


async def test_the_order_holds_on_the_quick_path(client_a: Redis, client_b: Redis) -> None:
    """There is room for the newcomer, and not for the waiter; both are known (fair)."""
    here, there = FairSemaphore(client_a, "jobs", 2), FairSemaphore(client_b, "jobs", 2)
    async with there:
        pass
    async with here.acquire():
        heavy = await waits_in_queue(here, permits=2)
        for _ in range(2):  # by the general path, which looks through the queue, and then quickly
            with pytest.raises(AcquireTimeout):
                await there.acquire(timeout=0.2)
    assert await (await heavy).release()


@pytest.mark.parametrize("before", ["refused", "flushed"])
async def test_the_mode_is_noted_whatever_came_before(
    client_a: Redis, client_b: Redis, admin: Redis, before: str
) -> None:
    """Another class on a name in use raises ModeMismatch, although the quick path notes none."""
    here = FairSemaphore(client_a, "jobs", 2, lease=3.0)
    if before == "refused":
        await here.set_limit(0)
        assert await here.try_acquire() is None
        await here.set_limit(None)
    else:
        holder = await here.acquire(permits=2)
        waiter = await waits_in_queue(here)
        await admin.flushall()
        await (await waiter).release()
        await holder.release()
    async with here.acquire(timeout=2) as permit:
        with pytest.raises(ModeMismatch):
            await Semaphore(client_b, "jobs", 2).acquire(timeout=0.2)
        await permit.refresh()


# -- releases


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_released_twice_in_one_turn(
    kind: Kind, client_a: Redis, client_b: Redis, elsewhere: bool
) -> None:
    """By its id, in one call of the script: one of the two says that it was held."""
    semaphore = kind(client_b if elsewhere else client_a, "jobs", 2)
    await semaphore.reap()
    identity = await (await kind(client_a, "jobs", 2).acquire()).detach(5.0)
    released = await asyncio.gather(*(semaphore.release(identity) for _ in range(2)))
    assert sorted(released) == [False, True]


@pytest.mark.fault(30)
async def test_release_after_the_holders_were_evicted(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """The key is gone, so the permit was not held until now."""
    semaphore = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    await admin.delete(key_of(semaphore, "holders"))
    assert not await permit.release()


# -- leases that have ended


async def test_the_quick_path_removes_expired_permits(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Also where there is room beside them: nothing is left of a permit but its lease."""
    semaphore = kind(client_a, "jobs", 2, lease=30.0)
    async with semaphore:  # it is known from now on
        pass
    dead = f"{'f' * 32}.1"
    await admin.zadd(key_of(semaphore, "holders"), {dead: 1.0})
    await admin.hset(key_of(semaphore, "facts"), dead, "1:1::")
    async with semaphore as permit:
        assert await admin.zrange(key_of(semaphore, "holders"), 0, -1) == [permit.id.encode()]
        assert await admin.hkeys(key_of(semaphore, "facts")) == [permit.id.encode()]


async def test_heavy_permits_that_have_expired_are_not_counted(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Nor by a call that only looks, and takes nothing out."""
    await (await kind(client_a, "jobs", 4, lease=30.0).acquire(permits=4)).detach(0.1)
    await all_free(kind(client_b, "jobs", 4))


async def test_a_heavy_permit_stays_whole_for_as_long_as_it_is_refreshed(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """All of it is renewed, and not the first of its permits alone."""
    there = kind(client_b, "jobs", 3)
    async with kind(client_a, "jobs", 3, lease=2.0).acquire(permits=3):
        await asyncio.sleep(2.2)  # past the expiry that it was granted with
        status = await there.status()
        assert (status.held, status.holders[0].permits) == (3, 3)
        assert await there.try_acquire() is None


# -- a key of another type


@pytest.mark.fault(37)
async def test_a_key_of_another_type_on_the_quick_path(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """The quick paths, too, write nothing before they know that they can write all."""
    semaphore = kind(client_a, "jobs", 2)
    async with semaphore:
        pass
    holders, facts, meta = (key_of(semaphore, what) for what in ("holders", "facts", "meta"))
    await admin.rpush(facts, "not ours")
    before = await admin.hgetall(meta)
    with pytest.raises(BackendError):
        await semaphore.acquire(timeout=2)
    assert await admin.hgetall(meta) == before
    assert not await admin.exists(holders)
    await admin.delete(facts)
    permit = await semaphore.acquire()
    await admin.delete(facts)
    await admin.rpush(facts, "not ours")
    with pytest.raises(BackendError):
        await permit.release()
    assert await admin.zcard(holders) == 1
    await admin.delete(facts)
    assert await semaphore.release(permit.id)


@pytest.mark.fault(19)
async def test_no_request_waits_behind_one_that_is_cut_off(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis, admin: Redis
) -> None:
    """Its process counts as dead, and asks again. An attack found it."""
    here, dead = (kind(redis, "jobs", 1, lease=10.0) for redis in (client_a, proxied))
    held = await here.acquire()
    waiter = await queue_up(dead)
    await cut_off(proxy, here, admin)
    assert await held.release()
    for _ in range(3):
        async with here.acquire(timeout=1.0):
            pass
    await cancelled(waiter)
    proxy.refusing = False


async def test_a_release_hands_over_by_the_limit_of_the_waiter(
    client_a: Redis, client_b: Redis
) -> None:
    here, there = FairSemaphore(client_a, "jobs", 3), FairSemaphore(client_b, "jobs", 1)
    held = [await here.acquire() for _ in range(3)]
    waiter = await queue_up(there)
    for _ in range(2):
        await held.pop().release()
        assert (await there.status()).held == len(held)
    await held.pop().release()
    await (await soon(waiter)).release()


# -- with keys


async def with_keys(
    client_a: Redis, client_b: Redis, limit: int, **options: Any
) -> tuple[FairSemaphore, FairSemaphore]:
    """Of two processes that are known. Their first release leaves nothing of its key."""
    here, there = (
        FairSemaphore(each, "jobs", limit, lease=30.0, **options) for each in (client_a, client_b)
    )
    for semaphore in (here, there, here, there):
        async with semaphore.acquire(key="a", timeout=1.0):
            pass
    return here, there


async def test_the_limits_of_keys_hold_on_the_quick_path(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    here, there = await with_keys(client_a, client_b, 3, key_limit=1)
    async with here.acquire(key="a"):
        assert await there.try_acquire(key="a") is None
        await here.set_limit(0, key="b")
        assert await there.try_acquire(key="b") is None
        await here.set_limit(None, key="b")
        await here.set_limit(1)
        assert await there.try_acquire(key="c") is None
        await here.set_limit(None)
        assert await admin.delete(key_of(here, "uses")) == 1
        assert await there.try_acquire(key="a") is None
        assert await admin.delete(key_of(here, "facts")) == 1
        assert await there.try_acquire(key="d") is None, "a holder may have that key"


async def test_the_order_of_keys_holds_on_the_quick_path(client_a: Redis, client_b: Redis) -> None:
    here, there = await with_keys(client_a, client_b, 2, key_limit=2)
    async with here.acquire(key="a"):
        heavy = await queue_up(here, key="b", permits=2)
        for _ in range(2):  # by the general path, which looks through the queue, and then quickly
            assert await there.try_acquire(key="c") is None
    assert await (await heavy).release()


async def test_the_line_of_a_key_is_kept_beside_quick_paths_of_others(
    client_a: Redis, client_b: Redis
) -> None:
    """They are taken while only its own key holds up who waits."""
    here, there = await with_keys(client_a, client_b, 9, key_limit=2)
    async with here.acquire(key="b"):
        heavy = await queue_up(here, key="b", permits=2)
        for _ in range(2):  # by the general path, which looks through the queue, and then quickly
            async with there.acquire(key="c"):
                assert await there.try_acquire(key="b") is None
    assert await (await soon(heavy)).release()


async def test_a_turn_goes_by_what_was_granted_before(client_a: Redis, client_b: Redis) -> None:
    """Grants of the key "a" count while it holds a permit, and not after that."""
    here, there = await with_keys(client_a, client_b, 3, share=True)
    held = [await here.acquire(key=key) for key in ("b", "a", "a")]
    await held.pop(1).release()
    held.append(await here.acquire(key="c"))
    first, second = await queue_up(there, key="a"), await queue_up(there, key="b")
    await held.pop().release()
    held.append(await soon(second))
    assert not first.done()
    await cancelled(first)
    for permit in held:
        await permit.release()
    held = [await here.acquire(permits=3, key=None)]
    first, second = await queue_up(there, key="a"), await queue_up(there, key="d")
    await here.set_limit(1)
    await held.pop().release()
    permit = await soon(first)
    assert not second.done()
    await permit.release()
    await (await soon(second)).release()
