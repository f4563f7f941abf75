"""What a limit means: the declared one, and the one that is set."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from redsem_async import AcquireTimeout, AnySemaphore, Permit, Semaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make, MakePair, key_of
from tests.harness.wait import cancelled, give_back, queue_up, soon, until
from tests.worlds.simulated_time import simulated

# -- the declared limit


async def test_a_waiter_goes_by_its_own_limit(make: Make, other: Client) -> None:
    """Served by the same release as the one before it, whose limit is higher."""
    wide, narrow = make(3), make(2, client=other)
    async with wide:
        heavy = await wide.acquire(permits=2)
        first, second = await queue_up(wide), await queue_up(narrow)
        await heavy.release()
        async with await soon(first):
            assert await wide.available() == 1
            assert not second.done()
        await give_back(second)


# -- the set limit


@pytest.mark.fault(41)
@pytest.mark.parametrize("raised", [3, None], ids=["higher", "taken away"])
async def test_raising_the_limit_serves_waiters_at_once(
    pair: MakePair, raised: int | None
) -> None:
    """In whichever process they wait: nothing polls."""
    here, there = pair(3, lease=60.0)
    await here.set_limit(1)
    async with here:
        waiters = [await queue_up(there), await queue_up(here)]
        await here.set_limit(raised)
        for waiter in waiters:
            await give_back(waiter)


@pytest.mark.fault(41)
async def test_lowering_the_limit_takes_no_permit(make: Make) -> None:
    """All stay held, and no request is granted until it fits."""
    sem = make(3)
    permits = [await sem.acquire() for _ in range(3)]
    await sem.set_limit(1)
    status = await sem.status()
    assert (status.held, status.limit, status.available) == (3, 1, 0)
    assert await sem.available() == 0  # and not less
    for permit in permits:
        await permit.refresh()
        assert not permit.lost
    waiter = await queue_up(sem)
    await give_back(*permits[:2])
    assert (await sem.status()).waiting == 1
    await give_back(permits[2], waiter)


@pytest.mark.parametrize("found", [None, 5, 0])
async def test_resume_gives_back_the_limit_that_pause_found(make: Make, found: int | None) -> None:
    """A set limit of 0 is a pause, too. Holders go on meanwhile, and the queue forms."""
    sem = make(1)
    permit = await sem.acquire()
    await sem.set_limit(found)
    for _ in range(2):
        await sem.pause()
        assert await sem.try_acquire() is None
        assert (await sem.status()).limit == 0
    waiter = await queue_up(sem)
    await give_back(permit)
    assert (await sem.status()).waiting == 1
    for _ in range(2):
        await sem.resume()
        status = await sem.status()
        assert (status.set_limit, status.limit) == (found or None, found or 1)
    await give_back(waiter)
    await sem.pause()
    await sem.set_limit(3)
    await sem.resume()
    assert (await sem.status()).set_limit == 3


# -- how long things are kept


async def test_a_set_limit_stays_and_everything_else_has_an_expiry(
    make: Make, client: MemoryBackend
) -> None:
    """It is kept until it is taken away."""
    sem, redis = make(5), client._store.redis
    await sem.set_limit(2)
    async with sem.acquire(permits=2):
        waiter = await queue_up(sem)
        expiries = {key: expiry for key, (_, expiry) in redis.snapshot().items()}
        assert expiries.pop(key_of(sem, "limit").encode()) is None
        assert key_of(sem, "queue").encode() in expiries
        assert all(expiries.values())
        await cancelled(waiter)
    client._store._epoch_us += 3600_000_000
    assert (await sem.status()).limit == 2
    await sem.set_limit(None)
    assert not await sem.exists()


@pytest.mark.fault(42)
@simulated
async def test_different_leases_and_limits_leave_one_another_alone(
    client: MemoryBackend, other: Client
) -> None:
    """Each request goes by its own client's limit, and no key dies before the longest lease."""
    narrow, wide = Semaphore(client, "jobs", 2, lease=2.0), Semaphore(other, "jobs", 3, lease=60.0)
    permit = await wide.acquire()
    async with narrow.acquire(timeout=0):
        assert await narrow.try_acquire() is None
        await give_back(await wide.acquire(timeout=0))
        await asyncio.sleep(3.0)  # past its lease: refreshed
    [holder] = (await narrow.status()).holders
    assert (holder.id, holder.expires_in > 50) == (permit.id, True)
    left = [client._store.redis.command("PTTL", key_of(wide, key)) for key in ("holders", "meta")]
    assert min(left) > 50_000
    await give_back(permit)


async def cut(sem: AnySemaphore) -> None:
    """The next overload cuts again: only a pause was asked for."""
    async with sem as permit, sem:
        permit.back_off(0)


async def remove(sem: AnySemaphore) -> None:
    await sem.set_limit(3)
    await let_go(await sem.try_acquire())
    await sem.set_limit(None)


async def delete(sem: AnySemaphore) -> None:
    await sem.set_limit(3)
    await let_go(await sem.try_acquire())
    await sem.delete()


CHANGES: list[tuple[Callable[[AnySemaphore], Awaitable[None]], list[str]]] = [
    (lambda sem: sem.set_limit(3), ["the set limit of 3"]),
    (lambda sem: sem.pause(), ["the pause"]),
    (lambda sem: sem.back_off(600.0), ["the back-off"]),
    *((nothing, list[str]()) for nothing in (cut, remove, delete)),
]


@pytest.mark.parametrize(("change", "lost"), CHANGES)
async def test_what_redis_lost_of_a_limit_is_logged_once(
    change: Callable[[AnySemaphore], Awaitable[None]],
    lost: list[str],
    make: Make,
    client: MemoryBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The clients' own limits apply again, which an operator has to know. Or has ended it."""
    sem = make(5)
    await change(sem)
    for _ in range(2):  # an operator may have ended it before the second one
        await let_go(await sem.try_acquire())
        client._store.redis.restore({})
        await until(lambda: gets_one(sem))
    said = [record.getMessage() for record in caplog.records if event_of(record) == "limit lost"]
    assert said == [f"{sem.name!r}: {each} was lost with Redis's data" for each in lost]


def event_of(record: logging.LogRecord) -> str:
    return getattr(record, "event", "")


async def gets_one(sem: AnySemaphore) -> bool:
    return await let_go(await sem.try_acquire())


async def let_go(permit: Permit | None) -> bool:
    return permit is not None and await permit.release()


@pytest.mark.parametrize("weights", [(1, 1), (2,)])
@simulated
async def test_the_limit_holds_on_the_quick_path(pair: MakePair, weights: tuple[int, ...]) -> None:
    """A process that is known asks for what most do, and there is no room for it."""
    here, there = pair(2)
    async with there:
        pass
    permits = [await here.acquire(permits=weight) for weight in weights]
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)  # the quick path is for requests that may wait
    for permit in permits:
        assert await permit.release()
