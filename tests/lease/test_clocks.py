"""Clocks that are set: a server's wall clock steps while it runs, or at a failover.

The server that keeps a lease compares its expiry with its own clock. A new master that is ahead by
d ends every lease d early, while its holder trusts the permit for as long as the old master said.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Connect, Kind, key_of
from tests.harness.clocks import SteppedServer, start_with_a_clock_of_its_own
from tests.harness.proxy import Proxy
from tests.harness.replicas import Replicated
from tests.harness.servers import StartServer
from tests.harness.topologies import REPLICATION, in_sync, settle, tell
from tests.harness.wait import (
    EPSILON,
    all_free,
    cancelled,
    is_served,
    soon,
    takes_at_most,
    until,
    waits_in_queue,
)

pytestmark = pytest.mark.release  # a C compiler makes the clock that is stepped
HOUR = 3600.0  # by which even the keys have expired
LEASE = 1.2
PAUSE = 1.0  # seconds at most between two attempts to reach a server


async def error_of(server: EmbeddedRedis) -> float:
    """By how much the clock of *server* is ahead of this machine's."""
    seconds, micros = await tell(server, "TIME")
    return float(seconds) + float(micros) / 1e6 - time.time()


# -- one server, whose clock steps


@pytest.fixture
def stepped(embedded: StartServer, tmp_path: Path) -> SteppedServer:
    """A server for this test alone, whose clock the test sets."""
    return start_with_a_clock_of_its_own(embedded, tmp_path)


@pytest.fixture
def server(stepped: SteppedServer) -> EmbeddedRedis:
    return stepped.server


@pytest.fixture
def here(kind: Kind, client_a: Redis) -> AnySemaphore:
    """A semaphore on that server."""
    return kind(client_a, "jobs", 1, lease=LEASE, refresh_interval=0.3)


@pytest.fixture
def there(kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return kind(client_b, "jobs", 1, lease=LEASE)


async def step(stepped: SteppedServer, seconds: float) -> None:
    """Step the server's clock, and see in what it answers that it did."""
    before = await error_of(stepped.server)
    stepped.step(seconds)

    async def stepped_by() -> bool:
        return abs(await error_of(stepped.server) - before - seconds) < 1

    await until(stepped_by, "the clock was set")


@pytest.mark.one_mode
@pytest.mark.fault(35)
async def test_an_hour_forward_is_a_loss_and_tokens_stay_in_order(
    here: AnySemaphore, there: AnySemaphore, stepped: SteppedServer
) -> None:
    """To the server all leases have ended: bodies are cancelled, and fencing orders."""
    permit = await here.acquire()
    waiter = await waits_in_queue(there)
    with pytest.raises(PermitLost):
        async with permit:
            await step(stepped, HOUR)
            with takes_at_most(0.3 + EPSILON):
                await asyncio.sleep(5)
    assert not await permit.release()
    successor = await soon(waiter, 5)
    assert successor.fencing_token > permit.fencing_token
    assert 0 < successor.expires_in <= LEASE
    assert not successor.lost
    assert await successor.release()
    await all_free(here)


@pytest.mark.one_mode
@pytest.mark.fault(36)
@pytest.mark.parametrize("late", [False, True], ids=["waiting", "late"])
async def test_after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most(
    kind: Kind, client_a: Redis, stepped: SteppedServer, start: StartWorker, late: bool
) -> None:
    """Its expiry is an hour ahead of the clock now, and no call may have come since."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0 if late else LEASE)
    holder = await start("hold", kind=kind, lease=LEASE)
    held = await holder.heard("held")
    waiter = None if late else await waits_in_queue(semaphore)
    await asyncio.sleep(LEASE)  # refreshed since
    await holder.kill()
    await step(stepped, -HOUR)
    # The clock is seen to have been set at the next call, a heartbeat away.
    with takes_at_most(LEASE + 1.0 + EPSILON):
        permit = await (waiter or semaphore.acquire(timeout=10))
    assert permit.fencing_token > held["token"]
    assert 0 < permit.expires_in <= semaphore.lease
    assert await permit.release()
    await all_free(semaphore)


@pytest.mark.one_mode
@pytest.mark.fault(33, 36)
@pytest.mark.parametrize("maxmemory", [0, 1], ids=["with memory", "at maxmemory"])
async def test_an_hour_back_costs_a_holder_nothing(
    here: AnySemaphore,
    there: AnySemaphore,
    admin: Redis,
    stepped: SteppedServer,
    maxmemory: int,
) -> None:
    """It is trusted for a lease, refreshed, and alone, also where the step cannot be noted."""
    async with here as permit:
        waiter = await waits_in_queue(there)
        await admin.config_set("maxmemory", maxmemory)
        await step(stepped, -HOUR)
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
        await admin.config_set("maxmemory", 0)
    await is_served(waiter, EPSILON, after=permit)
    await all_free(here)


@pytest.mark.one_mode
@pytest.mark.fault(35, 36)
async def test_back_and_forth_tokens_grow(
    here: AnySemaphore, there: AnySemaphore, stepped: SteppedServer
) -> None:
    """Whatever the clock does, later grants have higher tokens."""
    tokens: list[int] = []
    for seconds in (-HOUR, HOUR, HOUR, -60.0, -HOUR, -2.0, 0.5, -0.5):
        for semaphore in (here, there):
            permit = await semaphore.acquire(timeout=5)
            tokens.append(permit.fencing_token)
            assert 0 < permit.expires_in <= LEASE
            assert await permit.release()
        await step(stepped, seconds)
    await there.delete()
    async with here.acquire(timeout=5) as permit:
        tokens.append(permit.fencing_token)
    assert tokens == sorted(set(tokens))
    await all_free(here)


# -- a replica is promoted whose clock differs from its master's; no write is lost


@dataclass(frozen=True)
class FailOver:
    """A master and a replica, which replaces it once the replica's clock was set."""

    servers: Replicated
    clock: SteppedServer
    near: Proxy  # the holder's way to the master
    far: Proxy  # the way of everybody else

    async def __call__(self, ahead: float, held: AnySemaphore, permit: Permit) -> EmbeddedRedis:
        """The master is dead, and the replica a master, *ahead* of it and with all of its data."""
        await permit.refresh()
        await self.servers.caught_up()
        master, replica = self.servers.master, self.clock.server
        score = ("ZSCORE", key_of(held, "holders"), permit.id)
        expiry = float(await tell(master, *score))
        self.clock.step(ahead)
        assert (await tell(replica, "ROLE"))[0] == "slave"
        # No write is lost: the replica keeps that expiry, or the one of a later refresh.
        copied = await tell(replica, *score)
        assert ahead == HOUR or float(copied) >= expiry  # by an hour, the key has expired there
        master.kill()
        await self.servers.promote()
        assert abs(await error_of(replica) - ahead) < 1
        return replica


@pytest.fixture
async def fail_over(embedded: StartServer, tmp_path: Path) -> AsyncIterator[FailOver]:
    master = embedded(*REPLICATION)
    follow = (*REPLICATION, "--replicaof", "127.0.0.1", str(master.port))
    clock = start_with_a_clock_of_its_own(embedded, tmp_path, *follow)
    settle(lambda: in_sync(clock.server), "the replica is in sync")
    async with Proxy(master.port) as near, Proxy(master.port) as far:
        yield FailOver(Replicated(master, (clock.server,)), clock, near, far)


class Trust:
    """When `check()` of the holder last passed, by the test's clock."""

    last: float = 0.0


@asynccontextmanager
async def watched(permit: Permit) -> AsyncGenerator[Trust]:
    """Call `check()` all the time."""
    trust = Trust()

    async def check() -> None:
        with contextlib.suppress(PermitLost):
            while True:
                permit.check()
                trust.last = time.monotonic()
                await asyncio.sleep(0.001)

    checking = asyncio.create_task(check())
    try:
        yield trust
    finally:
        await cancelled(checking)


class Contend(Protocol):
    """Gives a holder's semaphore with its permit, and another process's with a waiter for it."""

    async def __call__(
        self, lease: float
    ) -> tuple[AnySemaphore, Permit, AnySemaphore, "asyncio.Task[Permit]"]: ...


@pytest.fixture
def contend(kind: Kind, fail_over: FailOver, connect: Connect) -> Contend:
    """Makes two semaphores of processes that reach the master through a proxy each."""
    near, far = connect(fail_over.near.url), connect(fail_over.far.url)

    async def contend(
        lease: float,
    ) -> tuple[AnySemaphore, Permit, AnySemaphore, "asyncio.Task[Permit]"]:
        held, asking = (kind(each, "jobs", 1, lease=lease) for each in (near, far))
        permit = await held.acquire()
        return held, permit, asking, await waits_in_queue(asking)

    return contend


@pytest.mark.fault(44)
async def test_a_clock_ahead_at_a_failover_lets_two_in_for_no_longer_than_that(
    fail_over: FailOver, contend: Contend
) -> None:
    """The guarantees page says so."""
    ahead = 8.0
    held, permit, _, waiter = await contend(10.0)
    new = await fail_over(ahead, held, permit)
    fail_over.far.lead_to(new.port)
    successor = await waiter
    permit.check()  # two hold what is for one
    assert permit.expires_in < ahead
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    fail_over.near.lead_to(new.port)
    await soon(permit.wait_lost(), within=30)  # the new master's reply


@pytest.mark.fault(44)
async def test_a_clock_behind_at_a_failover_makes_leases_longer_and_no_more(
    fail_over: FailOver, contend: Contend
) -> None:
    """A crashed holder is in the way for two seconds more at most; tokens grow."""
    held, permit, _, waiter = await contend(3.0)
    new = await fail_over(-HOUR, held, permit)  # the holder's way leads to the dead master
    fail_over.far.lead_to(new.port)
    with takes_at_most(3.0 + 2.0 + PAUSE):
        async with watched(permit) as trust:
            successor = await waiter
            granted = time.monotonic()
    assert trust.last < granted
    assert permit.lost
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
