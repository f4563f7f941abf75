"""A back-off over a network that loses and repeats commands: it takes effect once, and in time."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore
from redsem_async.testing import MemoryBackend
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.memory import Distant
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import cancelled, give_back, queue_up, until
from tests.worlds.simulated_time import simulated

PAUSE = 20.0


@pytest.fixture
async def here(proxied: Redis) -> AnySemaphore:
    """A semaphore of a process behind the proxy, which is connected."""
    semaphore = FairSemaphore(proxied, "jobs", 3, lease=5.0)
    await semaphore.reap()
    return semaphore


@pytest.fixture
def there(client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return FairSemaphore(client_b, "jobs", 3, lease=5.0)


async def left(sem: AnySemaphore) -> float:
    """Seconds of the pause that are left."""
    back_off = (await sem.status()).back_off
    return 0.0 if back_off is None else back_off.seconds_left


@pytest.mark.fault(17)
@simulated
async def test_a_back_off_that_did_not_arrive_is_sent_again_and_is_shorter() -> None:
    """It is counted from the call. One that is over by then is not sent."""
    far = Distant()
    sem, there = (FairSemaphore(each, "jobs", 3, lease=30.0) for each in (far, far.peer()))
    for seconds in (0, 0.3, PAUSE):
        async with sem.acquire() as permit:
            far.cut_off()
            await asyncio.sleep(0.01)
            permit.back_off(seconds)
            await asyncio.sleep(1.0)
            far.refusing = False
            await permit.refresh()
        assert far.asked("back_off") == (seconds == PAUSE)
    await asyncio.sleep(1.0)
    assert PAUSE - 4.0 < await left(there) <= PAUSE - 2.0


@pytest.mark.fault(18)
async def test_a_late_duplicate_begins_no_back_off(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, server: EmbeddedRedis
) -> None:
    async with here.acquire() as permit:
        permit.back_off(PAUSE)
        await until(lambda: left(there), "it is in force")
    await there.back_off(0)
    [sent] = proxy.operations("back_off")
    reply: Any = await say_again(server.port, sent)
    assert reply[-1] == 0, "it ran"
    assert (await there.status()).back_off is None


@pytest.mark.fault(46)
async def test_a_back_off_whose_reply_was_lost_does_not_begin_anew_after_its_end(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy
) -> None:
    """An operator ended it, and nobody met an overload since."""
    fault = proxy.swallow("back_off")
    proxy.refusing = True
    async with here.acquire() as permit:
        permit.back_off(PAUSE)
        await asyncio.wait_for(fault.struck.wait(), 5)
    await there.back_off(0)
    proxy.refusing = False
    await here.reap()
    assert len(proxy.operations("back_off")) == 2, "it is sent again"
    assert not await left(there)


@pytest.mark.fault(29, 32)
@pytest.mark.parametrize("error", ["NOSCRIPT No.", "BUSY A script.", "TRYAGAIN A slot."])
async def test_a_back_off_that_was_not_taken_is_not_overtaken_by_its_release(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, error: str
) -> None:
    """A waiter would be served before the pause."""
    await here.back_off(0)  # the server has its script
    await give_back(await here.acquire())
    first, *others = [await here.acquire() for _ in range(3)]
    waiter = await queue_up(there)
    struck = proxy.answer("back_off", error).struck
    first.back_off(PAUSE)
    assert await first.release()
    assert struck.is_set()
    assert await left(there)
    assert not waiter.done()
    await cancelled(waiter)
    await give_back(*others)


@pytest.mark.fault(30)
async def test_a_back_off_is_lost_with_its_keys_and_no_earlier(client: MemoryBackend) -> None:
    """No call uses the name meanwhile: what protects it is kept for as long as it lasts."""
    sem, redis = FairSemaphore(client, "jobs", 3), client._store.redis
    await sem.back_off(3600.0)
    client._store._epoch_us += 3_599_000_000
    assert await left(sem)
    redis.restore({})
    assert not await left(sem)
