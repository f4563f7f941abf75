"""What a limit means: the declared one, and the one that is set."""

import asyncio

from redis.asyncio import Redis

from redsem_async import AnySemaphore
from tests.harness.clients import Client, Make, keys_of
from tests.harness.wait import all_free, queue_up, soon, until


async def test_each_client_goes_by_its_own_limit(make: Make, other: Client) -> None:
    """A rolling deployment that changes the limit takes effect as it rolls."""
    old, new = make(1), make(2, client=other)
    async with old:
        assert await old.try_acquire() is None
        async with new.acquire(timeout=0):
            assert await new.try_acquire() is None
            assert (await old.status()).limit == 1
            assert (await new.status()).limit == 2
            assert await old.available() == 0


async def test_the_set_limit_wins_over_every_clients_own(make: Make, other: Client) -> None:
    """An operator's word counts for all, and can be taken back."""
    here, there = make(1), make(5, client=other)
    await here.set_limit(2)
    assert here.limit == 1  # the declared one
    for sem in (here, there):
        assert (await sem.status()).limit == 2
        assert await sem.available() == 2
    async with here, here:
        assert await there.try_acquire() is None
    await there.set_limit(None)
    assert await here.available() == 1
    assert await there.available() == 5


async def test_raising_the_limit_serves_waiters_at_once(make: Make, other: Client) -> None:
    """Wherever they wait: nobody polls for it."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    async with here:
        waiters = [await queue_up(here), await queue_up(there)]
        await here.set_limit(3)
        for waiter in waiters:
            await (await soon(waiter, 0.5)).release()


async def test_taking_the_set_limit_away_serves_waiters_at_once(make: Make, other: Client) -> None:
    """Their own limits rule again, and may be higher."""
    here, there = make(2, lease=60.0), make(2, client=other, lease=60.0)
    await here.set_limit(0)
    waiters = [await queue_up(there), await queue_up(here)]
    await here.set_limit(None)
    for waiter in waiters:
        await (await soon(waiter, 0.5)).release()


async def test_lowering_the_limit_evicts_nobody(make: Make) -> None:
    """Who holds a permit keeps it; nobody new comes in until it fits."""
    sem = make(3)
    permits = [await sem.acquire() for _ in range(3)]
    await sem.set_limit(1)
    status = await sem.status()
    assert (status.held, status.limit, status.available) == (3, 1, 0)
    for permit in permits:
        await permit.refresh()
        assert not permit.lost
    waiter = await queue_up(sem)
    for permit in permits[:2]:
        await permit.release()
    await asyncio.sleep(0.05)
    assert not waiter.done()
    await permits[2].release()
    await (await soon(waiter)).release()


async def test_a_limit_of_zero_pauses(make: Make) -> None:
    """Holders go on, nobody new comes in, and the line forms."""
    sem = make(2)
    permit = await sem.acquire()
    await sem.set_limit(0)
    assert await sem.try_acquire() is None
    waiter = await queue_up(sem)
    assert await permit.release() is True
    await asyncio.sleep(0.05)
    assert not waiter.done()
    assert (await sem.status()).limit == 0
    await sem.set_limit(1)
    await (await soon(waiter, 0.5)).release()


async def test_a_declared_limit_of_zero_waits_for_a_set_one(make: Make) -> None:
    """Zero is a limit, and any weight may be asked for under it."""
    sem = make(0)
    assert await sem.try_acquire() is None
    waiter = await queue_up(sem, permits=3)
    await sem.set_limit(3)
    await (await soon(waiter, 0.5)).release()


async def test_a_set_limit_stays_while_the_semaphore_is_idle(
    make_on_redis: Make, redis: Redis
) -> None:
    """It is kept until it is taken away; everything else has an expiry."""
    sem = make_on_redis(5)
    await sem.set_limit(2)
    async with sem.acquire(permits=2):
        ttls = {key: await redis.pttl(key) for key in await keys_of(redis, sem)}
        assert len(ttls) > 3
        kept = {key: ttl for key, ttl in ttls.items() if ttl < 0}
        assert len(kept) == 1
        (key,) = kept
        assert await redis.get(key) == b"2"
        ttls.pop(key)
    await redis.unlink(*ttls)  # what time would do
    assert (await sem.status()).limit == 2
    assert await sem.exists()
    await sem.set_limit(None)
    assert not await sem.exists()


async def test_without_a_set_limit_everything_has_an_expiry(
    make_on_redis: Make, redis: Redis
) -> None:
    """What nobody uses any more goes away by itself."""
    sem = make_on_redis(1)
    async with sem:
        waiter = await queue_up(sem)
        keys = await keys_of(redis, sem)
        assert keys
        for key in keys:
            assert 0 < await redis.pttl(key) < 600_000
    await (await soon(waiter)).release()


async def test_a_set_limit_that_is_raised_while_idle_holds(make: Make) -> None:
    """Nobody holds and nobody waits when the operator comes."""
    sem = make(1)
    await sem.set_limit(3)
    async with sem, sem, sem:
        assert await sem.try_acquire() is None
    await all_free(sem)
    assert await sem.available() == 3


async def test_whoever_stands_in_line_goes_by_its_own_limit(make: Make, other: Client) -> None:
    """Served by the same release as the one before it, whose limit is higher."""
    wide, narrow = make(3), make(2, client=other)
    async with wide:
        heavy = await wide.acquire(permits=2)
        first, second = await queue_up(wide), await queue_up(narrow)
        await heavy.release()
        async with await soon(first):
            assert await wide.available() == 1
            assert not second.done()
        await (await soon(second)).release()


async def test_mixed_leases_leave_each_other_alone(make: Make, other: Client) -> None:
    """A short lease must not cut a long one, nor take the keys of both along when it ends."""
    short, long = make(2, lease=0.1), make(2, client=other, lease=30.0)
    permit = await long.acquire()
    for _ in range(20):
        async with short.acquire(timeout=1.0):
            await asyncio.sleep(0.02)
    status = await long.status()
    assert status.held == 1
    assert status.holders[0].expires_in > 20
    await permit.refresh()
    assert await permit.release() is True


async def test_mixed_leases_expire_each_in_its_time(make: Make, other: Client) -> None:
    """Neither outlives its own because of the other's."""
    short, long = make(2, lease=0.2), make(2, client=other, lease=30.0)
    async with long:
        permit = await short.acquire()
        await permit.detach()
        assert await short.available() == 0

        async def one_is_free() -> bool:
            return await short.available() == 1

        await until(one_is_free, within=0.5)


async def test_mixed_limits_in_one_process(make: Make) -> None:
    """Two objects of one name share a connection, but each goes by what it declares."""
    narrow: AnySemaphore = make(1)
    wide: AnySemaphore = make(3)
    async with wide:
        assert await narrow.try_acquire() is None
        async with wide, wide:
            waiters = [await queue_up(narrow), await queue_up(wide)]
    for waiter in waiters:
        await (await soon(waiter)).release()
    await all_free(wide)
