import asyncio
import time

import pytest
from redis.asyncio import Redis

from tests.harness.clients import Kind
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, NOISE, in_background

pytestmark = pytest.mark.one_mode


async def test_trust_that_ends_while_a_detach_is_unanswered_is_told(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The permit is lost when its trusted time is over, and not when the detach gives up."""
    permit = await kind(proxied, "jobs", 1, lease=6.0).acquire()
    ends = time.monotonic() + permit.expires_in
    proxy.refusing = True
    proxy.drop()
    losing = in_background(permit.wait_lost())
    await asyncio.sleep(ends - 0.6 - time.monotonic())
    detaching = in_background(permit.detach(expires_in=60))
    await asyncio.wait([losing], timeout=10)
    late = time.monotonic() - ends
    await asyncio.wait([detaching])
    assert late < EPSILON + NOISE


async def test_a_detach_in_an_outage_ends_in_grace_mode(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The refresh before it is not answered either."""
    permit = await kind(proxied, "jobs", 1, lease=1.0, recovery="grace").acquire(timeout=5)
    proxy.refusing = True
    proxy.drop()
    losing = in_background(permit.wait_lost())
    detaching = in_background(permit.detach(expires_in=60))
    await asyncio.wait([losing, detaching], timeout=6)
    done = losing.done() and detaching.done()
    proxy.refusing = False
    await asyncio.wait([losing, detaching], timeout=6)
    assert done
