import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy
from tests.harness.wait import in_background

pytestmark = pytest.mark.release

LEASE = 3.0
DELAY = 0.04


@pytest.mark.parametrize("early", [0.06, 0.04, 0.015, -0.015, -0.035])
async def test_far_away_the_server_is_not_unavailable_because_a_permit_became_free(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis, early: float
) -> None:
    there, here = kind(client_b, "jobs", 1, lease=LEASE), kind(proxied, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    proxy.delay = DELAY
    for _ in range(3):
        await here.reap()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 1.5
    waiter = in_background(here.acquire(timeout=1.5))
    await asyncio.sleep(deadline - early - DELAY - loop.time())
    await holder.release()
    await asyncio.wait([waiter])
    error = waiter.exception()
    if error is None:
        await waiter.result().release()
    assert error is None or isinstance(error, AcquireTimeout), error
