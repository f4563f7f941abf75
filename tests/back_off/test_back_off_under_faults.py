"""A back-off over a network that loses and repeats commands: it takes effect once, and in time."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import in_background, until

PAUSE = 20.0


@pytest.fixture
async def here(kind: Kind, proxied: Redis) -> AnySemaphore:
    """A semaphore of a process behind the proxy, which is connected."""
    semaphore = kind(proxied, "jobs", 3, lease=5.0)
    await semaphore.reap()
    return semaphore


@pytest.fixture
def there(kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return kind(client_b, "jobs", 3, lease=5.0)


async def left(sem: AnySemaphore) -> float:
    """Seconds of the pause that are left."""
    back_off = (await sem.status()).back_off
    return 0.0 if back_off is None else back_off.seconds_left


@pytest.mark.fault(17)
async def test_a_lost_reply_leaves_one_back_off(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy
) -> None:
    fault = proxy.swallow("back_off")
    async with here.acquire() as permit:
        permit.back_off(PAUSE)
        await asyncio.wait_for(fault.struck.wait(), 5)
    await until(lambda: len(proxy.operations("back_off")) == 2, "it is sent again")
    assert 0 < await left(there) <= PAUSE


@pytest.mark.fault(17)
async def test_a_back_off_that_did_not_arrive_is_sent_again_and_is_shorter(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy
) -> None:
    fault = proxy.cut("back_off")
    proxy.refusing = True
    async with here.acquire() as permit:
        said_at = time.monotonic()
        permit.back_off(PAUSE)
        await asyncio.wait_for(fault.struck.wait(), 5)
        assert not await left(there)
        await until(lambda: time.monotonic() > said_at + 1.0)
        proxy.refusing = False
        await until(lambda: len(proxy.operations("back_off")) == 2, "it is sent again")
        await until(lambda: left(there), "it is in force")
        ends = time.monotonic() + await left(there)
        assert ends == pytest.approx(said_at + PAUSE, abs=0.5), "it is counted from the call"


@pytest.mark.fault(17)
async def test_a_back_off_that_an_outage_outlasts_is_not_sent(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy
) -> None:
    permit = await here.acquire()
    proxy.refusing = True
    proxy.drop()
    permit.back_off(0.3)
    over = time.monotonic() + 0.3
    await until(lambda: time.monotonic() > over)
    proxy.refusing = False
    await permit.refresh()
    assert not proxy.operations("back_off")
    assert (await there.status()).back_off is None
    assert await permit.release()


@pytest.mark.fault(18)
async def test_a_late_duplicate_begins_no_back_off(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, server: EmbeddedRedis
) -> None:
    async with here.acquire() as permit:
        permit.back_off(PAUSE)
        await until(lambda: left(there), "it is in force")
    await there.hold_off(0)
    [sent] = proxy.operations("back_off")
    reply: Any = await say_again(server.port, sent)
    assert reply[-1] == 0, "it ran"
    assert (await there.status()).back_off is None


@pytest.mark.fault(17)
async def test_a_hold_off_whose_reply_was_lost_does_not_end_a_later_back_off(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy
) -> None:
    await there.hold_off(PAUSE)
    fault = proxy.swallow("back_off")
    proxy.refusing = True
    ending = in_background(here.hold_off(0))
    await asyncio.wait_for(fault.struck.wait(), 5)
    async with there.acquire() as permit:
        permit.back_off(PAUSE)
        await until(lambda: left(there), "it is in force")
    proxy.refusing = False
    await ending
    assert len(proxy.operations("back_off")) == 2, "it is sent again"
    assert await left(there)


@pytest.mark.fault(30)
async def test_a_back_off_is_lost_with_its_keys_and_no_earlier(
    here: AnySemaphore, there: AnySemaphore, admin: Redis
) -> None:
    """No call uses the name meanwhile: what protects it is kept for as long as it lasts."""
    await here.hold_off(3600.0)
    kept_ms = await admin.pttl("redsem:{jobs}:meta")
    assert kept_ms > 3600_000
    await admin.flushall()
    assert (await there.status()).back_off is None
