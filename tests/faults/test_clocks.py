"""Clocks that somebody sets: the server's wall clock steps, forward and back, while it runs."""

import asyncio
import time
from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async import PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Kind
from tests.harness.clocks import SteppedServer, start_with_a_clock_of_its_own
from tests.harness.servers import StartServer
from tests.harness.wait import EPSILON, all_free, takes_at_most, until, waits_in_line

pytestmark = pytest.mark.one_mode

HOUR = 3600.0
LEASE = 1.2


@pytest.fixture
def stepped(embedded: StartServer, tmp_path: Path) -> SteppedServer:
    """A server for this test alone, whose clock the test sets."""
    return start_with_a_clock_of_its_own(embedded, tmp_path)


@pytest.fixture
def server(stepped: SteppedServer) -> EmbeddedRedis:
    return stepped.server


async def step(stepped: SteppedServer, admin: Redis, seconds: float) -> None:
    """Step the server's clock, and see in what it answers that it did."""

    async def error() -> float:
        at_s, at_us = await admin.time()
        return float(at_s) + float(at_us) / 1e6 - time.time()

    before = await error()
    stepped.step(seconds)

    async def stepped_by() -> bool:
        return abs(await error() - before - seconds) < 1

    await until(stepped_by, "the clock was set")


@pytest.mark.fault(35)
async def test_an_hour_forward_is_a_loss_and_tokens_stay_in_order(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, stepped: SteppedServer
) -> None:
    """To the server all leases have ended: holders learn of it, and fencing orders."""
    here = kind(client_a, "jobs", 1, lease=LEASE, refresh_interval=0.3)
    there = kind(client_b, "jobs", 1, lease=LEASE)
    permit = await here.acquire()
    waiter = await waits_in_line(there)
    await step(stepped, admin, HOUR)
    with takes_at_most(0.3 + EPSILON):
        await asyncio.wait_for(permit.wait_lost(), 5)
    assert not await permit.release()
    successor = await asyncio.wait_for(waiter, 5)
    assert successor.fencing_token > permit.fencing_token
    assert 0 < successor.expires_in <= LEASE
    assert not successor.lost
    assert await successor.release()
    await all_free(here)


@pytest.mark.fault(35)
async def test_an_hour_forward_cancels_the_body(
    kind: Kind, client_a: Redis, admin: Redis, stepped: SteppedServer
) -> None:
    """As any loss does."""
    semaphore = kind(client_a, "jobs", 1, lease=LEASE, refresh_interval=0.3)
    with pytest.raises(PermitLost):
        async with semaphore:
            await step(stepped, admin, HOUR)
            with takes_at_most(0.3 + EPSILON):
                await asyncio.sleep(5)


@pytest.mark.fault(36)
async def test_after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most(
    kind: Kind, client_a: Redis, admin: Redis, stepped: SteppedServer, start: StartWorker
) -> None:
    """Its expiry is an hour ahead of the clock now, and must not count like that."""
    semaphore = kind(client_a, "jobs", 1, lease=LEASE)
    holder = await start("hold", kind=kind.__name__, name="jobs", lease=LEASE)
    held = await holder.heard("held")
    waiter = await waits_in_line(semaphore)
    await holder.kill()
    await step(stepped, admin, -HOUR)
    # The clock is seen to have been set at the next call, a heartbeat away.
    with takes_at_most(LEASE + 1.0 + EPSILON):
        permit = await asyncio.wait_for(waiter, 10)
    assert permit.fencing_token > held["token"]
    assert 0 < permit.expires_in <= LEASE
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.fault(36)
async def test_after_an_hour_back_who_comes_late_waits_for_a_lease_at_most(
    kind: Kind, client_a: Redis, admin: Redis, stepped: SteppedServer, start: StartWorker
) -> None:
    """Nobody asked in the meantime, so nobody saw the clock go back."""
    holder = await start("hold", kind=kind.__name__, name="jobs", lease=LEASE)
    await holder.heard("held")
    await asyncio.sleep(LEASE)  # refreshed since
    await holder.kill()
    await step(stepped, admin, -HOUR)
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    with takes_at_most(LEASE + 1.0 + EPSILON):
        permit = await semaphore.acquire(timeout=10)
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.fault(36)
async def test_an_hour_back_costs_a_holder_nothing(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, stepped: SteppedServer
) -> None:
    """It goes on refreshing, is trusted for a lease, and a lease is all that it has."""
    here = kind(client_a, "jobs", 1, lease=LEASE, refresh_interval=0.3)
    there = kind(client_b, "jobs", 1, lease=LEASE)
    async with here as permit:
        waiter = await waits_in_line(there)
        await step(stepped, admin, -HOUR)
        ends = time.monotonic() + 2 * LEASE
        while time.monotonic() < ends:
            await asyncio.sleep(0.1)
            assert not permit.lost
            assert permit.expires_in <= LEASE
            assert not waiter.done(), "two hold what is for one"
        [entry] = (await there.status()).holders
        assert entry.id == permit.id
        assert 0 < entry.expires_in <= LEASE
        assert entry.age < 60
    with takes_at_most(EPSILON):
        successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    await all_free(here)


@pytest.mark.fault(35, 36)
async def test_back_and_forth_tokens_grow(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, stepped: SteppedServer
) -> None:
    """Whatever the clock does, later grants have higher tokens."""
    here, there = kind(client_a, "jobs", 2, lease=LEASE), kind(client_b, "jobs", 2, lease=LEASE)
    tokens: list[int] = []
    for seconds in (-HOUR, HOUR, HOUR, -60.0, -HOUR, -2.0, 0.5, -0.5):
        for semaphore in (here, there):
            permit = await semaphore.acquire(timeout=5)
            tokens.append(permit.fencing_token)
            assert 0 < permit.expires_in <= LEASE
            assert await permit.release()
        await step(stepped, admin, seconds)
    await there.clear()
    async with here.acquire(timeout=5) as permit:
        tokens.append(permit.fencing_token)
    assert tokens == sorted(set(tokens))
    await all_free(here)


@pytest.mark.fault(33, 36)
async def test_an_hour_back_at_maxmemory(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, stepped: SteppedServer
) -> None:
    """That the clock went back cannot be noted: holders go on all the same."""
    here = kind(client_a, "jobs", 1, lease=LEASE, refresh_interval=0.3)
    async with here as permit:
        await admin.config_set("maxmemory", "1")
        await step(stepped, admin, -HOUR)
        await asyncio.sleep(2 * LEASE)
        assert not permit.lost
        assert await kind(client_b, "jobs", 1, lease=LEASE).available() == 0
        await admin.config_set("maxmemory", "0")
    await all_free(here)
