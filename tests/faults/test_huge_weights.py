import asyncio

import pytest
from redis.asyncio import Redis

from tests.harness.clients import Kind
from tests.harness.wait import waits_in_line

pytestmark = pytest.mark.release


async def test_a_request_for_very_many_permits_waits_as_others_do(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Its weight is written in full: nobody's scripts fail on it."""
    here, there = kind(client_a, "jobs", 10**15), kind(client_b, "jobs", 10**15)
    holder = await there.acquire()
    waiter = await waits_in_line(here, permits=10**15)
    assert await holder.release()
    permit = await asyncio.wait_for(waiter, 5)
    assert (await there.status()).held == 10**15
    assert await permit.release()
