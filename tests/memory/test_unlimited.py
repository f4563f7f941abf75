"""`unlimited`: every request is granted at once, and nothing is sent."""

import asyncio
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    Mutex,
    PermitLost,
    Semaphore,
    SemaphoreGroup,
)
from redsem_async.blocking import Portal
from redsem_async.testing import MemoryBackend, unlimited
from tests.harness.clients import Make
from tests.harness.wait import give_back, queue_up
from tests.worlds.simulated_time import simulated


class Nowhere(Redis):
    """A client that cannot be used."""

    def __init__(self) -> None:
        super().__init__(port=1)

    def __getattribute__(self, name: str) -> Any:
        assert name not in ("execute_command", "pipeline", "pubsub")
        return super().__getattribute__(name)


@pytest.fixture
def redis() -> Redis:
    return Nowhere()


@pytest.fixture
def granting() -> Iterator[None]:
    with unlimited():
        yield


MAKERS: list[Callable[[Redis], AnySemaphore]] = [
    lambda redis: Semaphore(redis, "jobs", 1),
    lambda redis: FairSemaphore(redis, "jobs", 1, max_waiters=0),
    lambda redis: FairSemaphore(redis, "jobs", 0),
    lambda redis: Mutex(redis, "jobs", clock="local"),
    lambda redis: SemaphoreGroup(redis, "jobs", 1)["acme"],
]


@pytest.mark.usefixtures("granting")
@pytest.mark.parametrize("make", MAKERS)
async def test_every_request_is_granted_at_once(
    make: Callable[[Redis], AnySemaphore], redis: Redis
) -> None:
    """In all forms, above every limit, with tokens as Redis's are: the next ones are higher."""
    sem, began = make(redis), time.time_ns() // 1000
    async with sem, sem, sem.acquire(timeout=0) as third:
        fourth = await sem.try_acquire()
        assert fourth is not None
        permits = [third, fourth, *await asyncio.gather(*(sem.acquire() for _ in range(5)))]
        assert len({permit.id for permit in permits}) == 7
        tokens = [permit.fencing_token for permit in permits]
        assert tokens == sorted(set(tokens))
        assert began <= tokens[0] <= time.time_ns() // 1000
        for permit in permits:
            permit.check()
            assert (permit.name, permit.permits) == (sem.name, 1)
            assert 0 <= permit.waited < 1.0
            assert 0 < permit.expires_in <= sem.lease
        for held in (True, False):
            assert [await permit.release() for permit in permits] == [held] * 7


@pytest.mark.usefixtures("granting")
@simulated
async def test_a_permit_lasts_beyond_its_lease(redis: Redis) -> None:
    """It is refreshed, but for a max_hold."""
    sem = FairSemaphore(redis, "jobs", 1, lease=1.0, max_hold=4.0)
    async with sem.acquire() as permit:
        await asyncio.sleep(2.5)
        await permit.refresh()
        permit.check()
        await sem.back_off(5)
        permit.back_off(5)
    async with sem.acquire(timeout=0):
        pass
    with pytest.raises(PermitLost, match="max_hold"):
        async with sem:
            await asyncio.sleep(5)


@pytest.mark.usefixtures("granting")
async def test_slots_and_keys_are_as_declared(redis: Redis) -> None:
    slotted = Semaphore(redis, "gpu", slots=["a", "b", "c"])
    permits = [await slotted.acquire() for _ in range(6)]
    assert sorted(str(permit.slot) for permit in permits) == sorted("abc" * 2)
    both = await slotted.acquire(permits=2)
    assert len(set(both.slots)) == both.permits == 2
    keyed = FairSemaphore(redis, "llm", 3, key_limit=1, share=True)
    async with keyed.acquire(key="acme"), keyed.acquire(key="acme") as second:
        second.back_off(1, key=True)
    for permit in (*permits, both):
        assert await permit.release()


@pytest.mark.usefixtures("granting")
async def test_what_is_wrong_is_refused_all_the_same(redis: Redis) -> None:
    """Tests are there to find it."""
    sem, keyed = Semaphore(redis, "jobs", 1), FairSemaphore(redis, "llm", 3, key_limit=1)
    for options in ({"permits": 2}, {"permits": 0}, {"timeout": -1}):
        asked: dict[str, Any] = options
        with pytest.raises(ValueError, match=next(iter(asked))):
            await sem.acquire(**asked)
    with pytest.raises(TypeError, match="key"):
        await keyed.acquire()


@pytest.mark.usefixtures("granting")
async def test_a_detached_permit_is_adopted_once(redis: Redis) -> None:
    """And one of another process always, because it is not known here."""
    sem = FairSemaphore(redis, "gpu", slots=["a", "b"])
    permit = await sem.acquire(permits=2)
    ticket = await permit.detach(expires_in=30)
    async with sem.adopt(ticket) as adopted:
        assert adopted.id != ticket
        assert (adopted.permits, adopted.slots) == (2, permit.slots)
        assert adopted.fencing_token == permit.fencing_token
        with pytest.raises(PermitLost):
            await asyncio.to_thread(asyncio.run, sem.adopt(ticket))
    with pytest.raises(PermitLost):
        await sem.adopt(adopted.id)
    async with sem.adopt(f"{'0' * 32}.7") as theirs:
        assert theirs.slot in ("a", "b")
    revoked = await sem.acquire()
    assert await sem.release(revoked.id)
    assert revoked.lost
    assert not await sem.release(revoked.id)


@pytest.mark.usefixtures("granting")
async def test_nothing_is_held_or_changed(redis: Redis) -> None:
    sem = FairSemaphore(redis, "jobs", 2)
    async with sem, sem, sem:
        await sem.set_limit(0)
        await sem.pause()
        status = await sem.status()
        assert (status.held, status.waiting, status.limit) == (0, 0, 2)
        assert not await sem.locked()
        assert (await sem.available(), await sem.exists(), await sem.reap()) == (2, False, 0)
        await sem.resume()
    await sem.delete()


async def test_it_holds_for_its_block_alone(redis: Redis) -> None:
    """What was granted inside ends inside, and what was granted outside stays where it is."""
    here, nowhere = FairSemaphore(MemoryBackend(), "jobs", 1), FairSemaphore(redis, "jobs", 1)
    async with here.acquire() as outside:
        with unlimited(), unlimited():
            inside = [await here.acquire(), await nowhere.acquire()]
        async with unlimited():
            inside.append(await here.acquire())
            await outside.refresh()
        status = await here.status()
        assert [holder.id for holder in status.holders] == [outside.id]
        for permit in inside:
            await permit.refresh()
            async with permit:
                pass
        assert await here.locked()
    with pytest.raises(BackendUnavailable):
        await nowhere.acquire(timeout=0)


async def test_a_request_that_waits_already_waits_on(make: Make) -> None:
    sem = make(1)
    async with sem:
        waiter = await queue_up(sem)
        with unlimited():
            async with sem:
                assert not waiter.done()
    await give_back(waiter)


@pytest.mark.usefixtures("granting")
def test_it_holds_in_all_threads_and_loops(redis: Redis) -> None:
    """Those of a portal too."""
    sem = FairSemaphore(redis, "jobs", 1)

    async def hold() -> None:
        async with sem, sem:
            await asyncio.sleep(0.05)

    threads = [Thread(target=asyncio.run, args=(hold(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    with Portal(redis) as portal:
        jobs = portal.fair("jobs", 1)
        with jobs.acquire(), jobs.acquire(timeout=0) as permit:
            permit.check()
    asyncio.run(hold())
    for thread in threads:
        thread.join()
