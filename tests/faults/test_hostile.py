"""Found by attack: orders of events in which promises are broken still."""

import asyncio

from redis.asyncio import Redis

from redsem_async import AnySemaphore
from tests.faults.helpers import (
    Kind,
    in_background,
    key_of,
)

HOUR = 3600.0
LEASE = 1.0


async def make(kind: Kind, client: Redis, limit: int = 2, lease: float = LEASE) -> AnySemaphore:
    """A semaphore that recovers, and whose name is not new."""
    semaphore = kind(client, "jobs", limit, lease=lease, recovery="grace")
    async with semaphore:
        pass
    return semaphore


async def test_replicas_that_are_missing_cost_nobody_else_a_permit(
    kind: Kind, client: Redis
) -> None:
    """WAIT blocks the connection that refreshes other semaphores' permits."""
    held = kind(client, "held", 1, lease=0.5)
    async with held as permit:
        waiters = [
            in_background(kind(client, f"confirmed-{n}", 1, min_replicas=1).acquire(timeout=4))
            for n in range(4)
        ]
        for _ in range(150):
            await asyncio.sleep(0.02)
            assert not permit.lost
        for waiter in waiters:
            waiter.cancel()


async def test_lost_holders_admit_nobody(
    kind: Kind, admin: Redis, client: Redis, other: Redis
) -> None:
    """Holders evicted, tokens and meta not: the next acquire could tell."""
    here, there = await make(kind, client, 1), await make(kind, other, 1)
    async with here.acquire() as permit:
        await admin.delete(key_of(here, "holders"))
        got = await there.try_acquire()
        assert got is None or permit.lost


async def test_detach_while_the_permit_is_not_back(
    kind: Kind, admin: Redis, client: Redis
) -> None:
    """A holder could put it back first."""
    here = await make(kind, client, 1)
    permit = await here.acquire()
    await admin.flushall()
    handed_over = await permit.detach(5)
    await (await here.adopt(handed_over)).release()
