"""A rate limit and a semaphore together: the permit comes first, then the token."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.wait import until

LIMIT, CALLS = 3, 20


@pytest.mark.parametrize(("permit_first", "most_paid"), [(True, LIMIT), (False, CALLS)])
async def test_a_burst_after_an_outage_is_bounded_by_the_permits(
    server_url: str, name: str, *, permit_first: bool, most_paid: int
) -> None:
    """Calls that have their token start together once the upstream answers again."""
    upstream_is_back = asyncio.Event()
    paid = 0

    def pay() -> None:
        nonlocal paid
        paid += 1

    async with Redis.from_url(server_url) as redis:
        calls = FairSemaphore(redis, name, limit=LIMIT)

        async def call() -> None:
            if not permit_first:
                pay()
            async with calls:
                if permit_first:
                    pay()
                await upstream_is_back.wait()

        async def all_others_wait() -> bool:
            return (await calls.status()).waiting == CALLS - LIMIT

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLS):
                group.create_task(call())
            await until(all_others_wait, "the other calls wait for a permit")
            assert paid == most_paid
            upstream_is_back.set()
    assert paid == CALLS
