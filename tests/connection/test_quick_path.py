"""The short commands of a process that the server knows: what tests/scripts cannot see of them."""

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, ModeMismatch, Semaphore
from tests.harness.clients import key_of
from tests.harness.wait import waits_in_queue


@pytest.mark.parametrize("weights", [(1, 1), (2,)])
async def test_the_limit_holds_on_the_quick_path(
    client_a: Redis, client_b: Redis, weights: tuple[int, ...]
) -> None:
    """A process that is known asks for what most do, and there is no room for it."""
    here, there = FairSemaphore(client_a, "jobs", 2), FairSemaphore(client_b, "jobs", 2)
    async with there:
        pass
    permits = [await here.acquire(permits=weight) for weight in weights]
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)  # the quick path is for requests that may wait
    for permit in permits:
        assert await permit.release()


async def test_lost_uses_of_keys_count_for_all_of_it(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """A holder may have any key, once it is not known which."""
    here, there = (FairSemaphore(each, "jobs", 3, key_limit=1) for each in (client_a, client_b))
    async with here.acquire(key="a"):
        assert await there.try_acquire(key="a") is None
        assert await admin.delete(key_of(here, "uses")) == 1
        assert await there.try_acquire(key="a") is None
        assert await admin.delete(key_of(here, "facts")) == 1
        assert await there.try_acquire(key="d") is None


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
