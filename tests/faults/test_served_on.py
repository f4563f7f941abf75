"""A call that stopped early is gone on with, whatever else is asked meanwhile."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.wait import in_background, until

pytestmark = pytest.mark.release

LEASE = 30.0


async def test_a_long_line_is_served_on_although_a_detach_comes_behind_the_limit(
    client_a: Redis, client_b: Redis
) -> None:
    """The limit's answer says that there is more to serve; a detach has waited for it."""
    here, there = (
        FairSemaphore(client_a, "jobs", 300, lease=LEASE),
        FairSemaphore(client_b, "jobs", 300, lease=LEASE),
    )
    permit = await here.acquire()
    await here.set_limit(0)
    waiters = [in_background(there.acquire()) for _ in range(200)]

    async def waiting() -> bool:
        return (await here.status(0)).waiting == 200

    await until(waiting, "all wait")
    await asyncio.gather(here.set_limit(300), permit.detach(60))
    await asyncio.wait(waiters, timeout=3.0)
    served = sum(waiter.done() for waiter in waiters)
    await asyncio.wait(waiters)
    for waiter in waiters:
        await waiter.result().release()
    assert served == 200
