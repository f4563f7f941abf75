"""Slots whose holder is killed: they come back with its lease, and never before."""

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.children import StartWorker
from tests.harness.wait import EPSILON, all_free, queue_up, soon, takes_at_most

GPUS = ["cuda:0", "cuda:1"]
MILLISECOND = 0.001  # the server rounds to it


@pytest.mark.fault(1)
async def test_the_slot_of_a_killed_holder_comes_back_with_its_lease(
    client_a: Redis, start: StartWorker
) -> None:
    semaphore = FairSemaphore(client_a, "jobs", slots=GPUS, lease=1.0)
    holder = await start("hold", kind=FairSemaphore, limit=None, slots=GPUS, lease=1.0)
    held = await holder.heard("held")
    own = await semaphore.acquire()
    (before,) = [h for h in (await semaphore.status()).holders if h.id == held["id"]]
    assert {*before.slots, own.slot} == {*GPUS}
    waiter = await queue_up(semaphore)
    await holder.kill()
    with takes_at_most(1.0 + EPSILON):
        asked = time.monotonic()
        left = [h.expires_in for h in (await semaphore.status()).holders if h.id == held["id"]]
        permit = await soon(waiter)
    assert time.monotonic() >= asked + max(left, default=0.0) - MILLISECOND
    assert permit.slots == before.slots
    await permit.release()
    await own.release()
    await all_free(semaphore)


@pytest.mark.fault(19)
async def test_the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next(
    client_a: Redis, start: StartWorker
) -> None:
    """The message to it has no subscriber: what it was to get is free again in the same script."""
    options: dict[str, Any] = {"slots": ["a"], "lease": 10.0}
    semaphore = FairSemaphore(client_a, "jobs", **options)
    holder = await semaphore.acquire()
    head = await start("wait", kind=FairSemaphore, limit=None, **options)
    await head.heard("waits")
    waiter = await queue_up(semaphore)
    await head.kill(client_a)
    await holder.release()
    async with await soon(waiter) as permit:
        assert permit.slots == ("a",)
