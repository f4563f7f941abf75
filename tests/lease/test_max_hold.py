"""A permit with ``max_hold`` is lost after so many seconds, by whomever it is refreshed."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from redsem_async._core.clock import now as clock
from tests.harness.children import StartWorker
from tests.harness.clients import Kind, MakePair
from tests.harness.inside import lease_of
from tests.harness.wait import NOISE, all_free, queue_up, soon, waits_in_queue

REASON = "it was held for its max_hold of 1.2 s"


async def test_it_ends_a_block_and_frees_the_permit(pair: MakePair) -> None:
    """However healthy its process is; and the next waiter gets the permit."""
    here, there = pair(1, lease=0.6, max_hold=1.2)
    began = time.monotonic()
    with pytest.raises(PermitLost) as lost:
        async with here:
            await asyncio.sleep(60)
    held = time.monotonic() - began
    assert lost.value.reason == REASON
    assert 1.1 < held < 1.2 + NOISE
    await (await there.acquire(timeout=NOISE)).release()
    await all_free(here)


async def test_it_ends_at_the_server_too(pair: MakePair) -> None:
    """Without a block to be cancelled it is not given back: it expires."""
    here, there = pair(1, lease=0.6, max_hold=1.2)
    permit = await here.acquire()
    waiter = await queue_up(there)
    assert (await asyncio.wait_for(permit.wait_lost(), 1.2 + NOISE)).reason == REASON
    successor = await asyncio.wait_for(waiter, 0.6 + NOISE)
    assert successor.fencing_token > permit.fencing_token
    await successor.release()
    assert not await permit.release()


async def test_a_refresh_asks_for_no_more_than_is_left(pair: MakePair) -> None:
    """So the permit of a process that is killed meanwhile is free by then, too."""
    here, there = pair(1, lease=10.0, max_hold=10.2)
    permit = await here.acquire()
    began = time.monotonic()
    await asyncio.sleep(0.4)
    await permit.refresh()
    [holder] = (await there.status()).holders
    assert holder.expires_in <= began + 10.2 + 0.2 - time.monotonic()  # a margin of lease / 100
    await permit.release()


async def test_it_counts_from_the_grant_and_not_from_the_request(pair: MakePair) -> None:
    here, there = pair(1, lease=0.6, max_hold=1.2)
    first = await there.acquire()
    waiter = await queue_up(here)
    await asyncio.sleep(0.5)
    await first.release()
    permit = await soon(waiter)
    began = time.monotonic()
    await asyncio.wait_for(permit.wait_lost(), 1.2 + NOISE)
    assert time.monotonic() - began > 1.1


@pytest.mark.one_mode
async def test_max_hold_counts_from_the_grant_that_a_blocked_loop_reads_late(
    kind: Kind, client_a: Redis, start: StartWorker
) -> None:
    semaphore = kind(client_a, "jobs", 1, lease=3.0, max_hold=4.0)
    holder = await start("wait", kind=kind, place=0, lease=3.0)
    for event in ("waits", "held"):
        await holder.heard(event)
    waiter = await waits_in_queue(semaphore)
    holder.go_on()
    time.sleep(1.0)  # noqa: ASYNC251 - that is the fault
    permit = await asyncio.wait_for(waiter, 10)
    await permit.refresh()
    [held] = (await semaphore.status()).holders
    if kind is FairSemaphore:
        assert held.age > 0.4, "it was granted before the loop went on"
    assert lease_of(permit).hold_left(clock()) <= 4.0 - held.age + 0.001  # the server counts in ms
    assert await permit.release()


async def test_a_detached_permit_expires_by_then(pair: MakePair) -> None:
    here, there = pair(1, lease=0.6, max_hold=1.2)
    permit = await here.acquire()
    began = time.monotonic()
    await permit.detach(expires_in=60)
    successor = await there.acquire(timeout=1.2 + NOISE)
    assert 1.0 < time.monotonic() - began
    await successor.release()


async def test_an_adopter_has_what_is_left(pair: MakePair) -> None:
    """Adopting again and again does not make it longer."""
    here, there = pair(1, lease=0.6, max_hold=1.2)
    permit = await here.acquire()
    began = time.monotonic()
    takers = (there, here)
    with pytest.raises(PermitLost):
        for turn in range(100):
            permit_id = await permit.detach(expires_in=0.6)
            await asyncio.sleep(0.1)
            permit = await takers[turn % 2].adopt(permit_id)
            assert permit.expires_in <= began + 1.2 - time.monotonic()
    assert time.monotonic() - began > 0.9
    await (await there.acquire(timeout=NOISE)).release()
