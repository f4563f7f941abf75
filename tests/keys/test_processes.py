"""Limits of keys change under real processes; and keys of Redis are lost that others need."""

import asyncio
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend
from tests.harness.children import StartWorker
from tests.harness.wait import give_back, in_background, queue_up, until, waiting
from tests.worlds.simulated_time import simulated


async def test_limits_of_keys_change_while_processes_run(
    client_a: Redis, admin: Redis, start: StartWorker
) -> None:
    """As an observer outside counts it; and each key goes on."""
    semaphore = FairSemaphore(client_a, "jobs", 6, key_limit=2, lease=10.0)
    for _ in range(3):
        worker = await start("count_in", kind=FairSemaphore, limit=6, key_limit=2, lease=10.0)
        await worker.heard("runs")

    async def most(what: str) -> int:
        return int(await admin.get(f"most:{what}") or 0)

    for limit in (1, 3, None):
        await semaphore.set_limit(limit, key="a")
        allowed = limit or 2

        async def fits(most: int = allowed) -> bool:
            """What was granted before the limit was lowered is released, counted or not."""
            return all(k.held <= most for k in (await semaphore.status()).keys if k.key == "a")

        async def reached(allowed: int = allowed) -> bool:
            return await most("a") >= allowed

        await until(fits, f"{allowed} hold", 20.0)
        await admin.set("most:a", 0)
        await until(reached, f"{allowed} are inside", 20.0)
        assert await most("a") <= allowed
        assert (await most("b") <= 2, await most("all") <= 6) == (True, True)


# -- one key of Redis is lost: evicted, or deleted

LOSE = "facts", "uses", "queue", "lines", "ready"


class MakeTwo(Protocol):
    def __call__(self, **options: Any) -> tuple[FairSemaphore, FairSemaphore]: ...


@pytest.fixture
def two(client: MemoryBackend) -> MakeTwo:
    """Makes two semaphores with keys, in two processes."""

    def make(**options: Any) -> tuple[FairSemaphore, FairSemaphore]:
        facts: dict[str, Any] = {"limit": 5, "key_limit": 1, "lease": 1.5, **options}
        here, there = (FairSemaphore(each, "jobs", **facts) for each in (client, client.peer()))
        return here, there

    return make


def lose(client: MemoryBackend, what: str) -> None:
    assert client._store.redis.command("DEL", f"redsem:{{jobs}}:{what}") == 1


@pytest.mark.fault(30)
@pytest.mark.parametrize("options", [{}, {"share": True}, {"slots": list("abcde"), "limit": None}])
@simulated
async def test_the_limit_of_a_key_is_kept_although_the_facts_of_holders_are_lost(
    client: MemoryBackend, two: MakeTwo, options: dict[str, Any]
) -> None:
    """The holder is told with its next refresh, and nothing is granted until it has ended."""
    here, there = two(**options)
    permit, plain = await here.acquire(key="a"), await here.acquire(key=None)
    lose(client, "facts")
    assert await there.try_acquire(key="a") is None
    assert await there.try_acquire(key="b") is None, "it may be the key of a holder"
    waiter = in_background(there.acquire(key="a"))
    for lost in (permit, plain):
        assert (await lost.wait_lost()).reason == "the server no longer holds it"
    assert not waiter.done()
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    await give_back(successor)


@pytest.mark.fault(30)
async def test_what_a_key_has_in_use_goes_with_an_evicted_holder(
    client: MemoryBackend, two: MakeTwo
) -> None:
    here, there = two(lease=30.0)
    permit = await here.acquire(key="a")
    assert client._store.redis.command("ZREM", "redsem:{jobs}:holders", permit.id) == 1
    async with there.acquire(key="a", timeout=5):
        assert not await permit.release()


@pytest.mark.fault(30)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("what", LOSE)
@simulated
async def test_waiters_are_served_although_a_key_of_redis_is_lost(
    client: MemoryBackend, two: MakeTwo, share: bool, what: str
) -> None:
    """They ask anew with their next heartbeat."""
    here, there = two(share=share)
    held = await here.acquire(key="a")
    waiters = [await queue_up(each, key="a") for each in (here, there, here)]
    lose(client, what)
    if what == "facts":
        await held.wait_lost()
    else:
        await waiting(there, 3)
        assert await held.release()
    async with asyncio.timeout(4.0):
        await asyncio.gather(*map(give_back, waiters))


@pytest.mark.fault(30)
@simulated
async def test_a_detached_permit_whose_key_is_not_known_is_not_adopted(
    client: MemoryBackend, two: MakeTwo
) -> None:
    """It would count for no key. Nothing is granted until it has ended."""
    here, there = two()
    job = await (await here.acquire(key="a")).detach(1.5)
    lose(client, "facts")
    with pytest.raises(PermitLost):
        await there.adopt(job)
    assert await there.try_acquire(key="a") is None
    assert await there.try_acquire(key="b") is None
    await give_back(await queue_up(there, key="a"))
