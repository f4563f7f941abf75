"""At maxmemory: what makes a call void is let through, or its permit would be lost for nothing."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy
from tests.harness.wait import in_background, until

pytestmark = pytest.mark.one_mode

LEASE = 3.0
SHORT = 0.8


async def test_a_detach_is_made_void_at_maxmemory(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, admin: Redis
) -> None:
    """Its call is lost and its caller leaves: the permit is held on, as at any other time."""
    semaphore = kind(proxied, "jobs", 1, lease=LEASE)
    permit = await semaphore.acquire()
    await admin.config_set("maxmemory", "1")
    fault = proxy.cut("detach")  # the server has not seen it
    detaching = in_background(permit.detach(expires_in=SHORT))
    await fault.struck.wait()
    detaching.cancel()
    await asyncio.wait([detaching])
    await until(lambda: bool(proxy.operations("abandon")), "it is made void")
    await until(lambda: permit.expires_in > SHORT or permit.lost, "a later refresh was answered")
    permit.check()
    await admin.config_set("maxmemory", "0")
    assert await permit.release()
