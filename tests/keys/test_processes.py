"""Real processes with keys: some are killed, limits change under them, old ones are refused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from tests.harness.children import StartWorker
from tests.harness.clients import key_of
from tests.harness.wait import (
    EPSILON,
    NOISE,
    all_free,
    give_back,
    in_background,
    is_served,
    queue_up,
    until,
    waiting,
)

LINES = ("queue", "lines", "ready")  # what is kept while anybody waits

MakeTwo = Callable[..., tuple[FairSemaphore, FairSemaphore]]


@pytest.fixture
def two(client_a: Redis, client_b: Redis) -> MakeTwo:
    """Makes two semaphores with keys on a server of the test's own, in two processes."""

    def make(limit: int | None = 5, **options: Any) -> tuple[FairSemaphore, FairSemaphore]:
        facts: dict[str, Any] = {"limit": limit, "key_limit": 1, **options}
        here, there = (FairSemaphore(client, "jobs", **facts) for client in (client_a, client_b))
        return here, there

    return make


@pytest.mark.fault(19)
@pytest.mark.parametrize("permits", [1, 2])
async def test_a_killed_head_of_a_key_is_passed_over(
    client_a: Redis, start: StartWorker, permits: int
) -> None:
    """Others of its key are served, however heavy it was, and nothing of it stays for ever."""
    options = {"limit": 5, "key_limit": 2, "key": "a", "lease": 10.0}
    semaphore = FairSemaphore(client_a, "jobs", 5, key_limit=2, lease=10.0)
    held = [await semaphore.acquire(key="a") for _ in range(2)]
    head = await start("wait", kind=FairSemaphore, permits=permits, **options)
    await head.heard("waits")
    second = await queue_up(semaphore, key="a")
    await head.kill(client_a)
    await give_back(*held[:permits])
    await is_served(second, EPSILON)
    await give_back(*held[permits:])


async def test_a_killed_head_of_a_key_is_no_reason_to_say_full(
    client_a: Redis, start: StartWorker
) -> None:
    """Where no request waits behind it, so that no heartbeat is about its key."""
    options = {"limit": 9, "key_limit": 4, "key": "a", "lease": 1.0}
    semaphore = FairSemaphore(client_a, "jobs", 9, key_limit=4, lease=1.0)
    held = await semaphore.acquire(permits=2, key="a")
    full = await semaphore.acquire(permits=4, key="b")
    waiter = await queue_up(semaphore, key="b")  # or else the whole line would expire
    head = await start("wait", kind=FairSemaphore, permits=3, place=2, **options)
    await head.heard("waits")
    assert await semaphore.try_acquire(key="a") is None
    await head.kill()

    async def has_room() -> bool:
        permit = await semaphore.try_acquire(key="a")
        return permit is not None and await permit.release()

    await until(has_room, "the killed one counts as dead", within=20)
    await give_back(held, full, waiter)


@pytest.mark.timeout(120)
async def test_limits_of_keys_change_while_processes_run(
    client_a: Redis, admin: Redis, start: StartWorker
) -> None:
    """As an observer outside counts it; and each key goes on."""
    semaphore = FairSemaphore(client_a, "jobs", 6, key_limit=2, lease=10.0)
    workers = [
        await start("count_in", kind=FairSemaphore, limit=6, key_limit=2, lease=10.0)
        for _ in range(4)
    ]
    for worker in workers:
        await worker.heard("runs")

    async def count(what: str) -> int:
        return int(await admin.get(what) or 0)

    for limit in (1, 3, 2, 1, 4, None):
        await semaphore.set_limit(limit, key="a")
        allowed = 2 if limit is None else limit

        async def fits(most: int = allowed) -> bool:
            """What was granted before the limit was lowered is released, counted or not."""
            keys = (await semaphore.status()).keys
            return all(key.held <= most for key in keys if key.key == "a")

        await until(fits, f"{allowed} hold", 5.0)
        await admin.set("most:a", 0)
        await _reaches(admin, allowed)
        assert await count("most:a") <= allowed, limit
        assert await count("most:b") <= 2
        assert await count("most:all") <= 6


async def _reaches(admin: Redis, most: int) -> None:
    """The key has so many inside, at some moment, and goes on for a while."""

    async def reached() -> bool:
        return int(await admin.get("most:a") or 0) >= most

    await until(reached, f"{most} are inside", 20.0)
    await asyncio.sleep(0.2)


# -- one key of Redis is lost: evicted, or deleted


@pytest.mark.fault(30)
@pytest.mark.parametrize("options", [{}, {"share": True}, {"slots": list("abcde"), "limit": None}])
async def test_the_limit_of_a_key_is_kept_although_the_facts_of_holders_are_lost(
    two: MakeTwo, admin: Redis, options: dict[str, Any]
) -> None:
    """The holder is told with its next refresh, and nothing is granted until it has ended."""
    here, there = two(lease=1.5, **options)
    permit, plain = await here.acquire(key="a"), await here.acquire(key=None)
    assert await admin.delete(key_of(here, "facts")) == 1
    assert await there.try_acquire(key="a") is None
    assert await there.try_acquire(key="b") is None, "it may be the key of a holder"
    waiter = in_background(there.acquire(key="a", timeout=5))
    for lost in (permit, plain):
        reason = (await asyncio.wait_for(lost.wait_lost(), 0.5 + NOISE)).reason
        assert reason == "the server no longer holds it"
    assert not waiter.done()
    await is_served(waiter, 1.5 + NOISE, after=permit)
    await all_free(here)


@pytest.mark.fault(30)
async def test_what_a_key_has_in_use_goes_with_an_evicted_holder(
    two: MakeTwo, admin: Redis
) -> None:
    here, there = two()
    permit = await here.acquire(key="a")
    assert await admin.zrem(key_of(here, "holders"), permit.id) == 1
    async with there.acquire(key="a", timeout=5):
        assert not await permit.release()


@pytest.mark.fault(30)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", ["facts", "uses", *LINES])
async def test_waiters_are_served_although_a_key_of_redis_is_lost(
    two: MakeTwo, admin: Redis, share: bool, kind: str
) -> None:
    """They ask anew with their next heartbeat."""
    here, there = two(lease=1.5, share=share)
    held = await here.acquire(key="a")
    waiters = [await queue_up(each, key="a") for each in (here, there, here)]
    assert await admin.delete(key_of(here, kind)) == 1
    if kind == "facts":
        await asyncio.wait_for(held.wait_lost(), 0.5 + NOISE)
    else:
        await waiting(there, 3)
        assert await held.release()
    await asyncio.gather(*(is_served(waiter, 4.0) for waiter in waiters))
    await all_free(here)


@pytest.mark.fault(30)
async def test_a_detached_permit_whose_key_is_not_known_is_not_adopted(
    two: MakeTwo, admin: Redis
) -> None:
    """It would count for no key. Nothing is granted until it has ended."""
    here, there = two(lease=1.0)
    job = await (await here.acquire(key="a")).detach(1.5)
    assert await admin.delete(key_of(here, "facts")) == 1
    with pytest.raises(PermitLost):
        await there.adopt(job)
    assert await there.try_acquire(key="a") is None
    assert await there.try_acquire(key="b") is None
    await is_served(await queue_up(there, key="a"), 1.5 + EPSILON)
