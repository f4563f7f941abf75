"""A replica is promoted whose clock differs from its master's. No write is lost.

The server that keeps a lease compares its expiry with its own clock. A new master that is ahead by
d ends every lease d early, while its holder trusts the permit for as long as the old master said.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of
from tests.harness.clocks import SteppedServer, start_with_a_clock_of_its_own
from tests.harness.proxy import Proxy
from tests.harness.replicas import Replicated
from tests.harness.servers import StartServer
from tests.harness.topologies import REPLICATION, in_sync, settle, tell
from tests.harness.wait import all_free, in_background, takes_at_most, until, waits_in_line

pytestmark = pytest.mark.release

LEASE = 3.0
PAUSE = 1.0  # seconds at most between two attempts to reach a server
HOUR = 3600.0  # by which even the keys have expired


@pytest.fixture
def stepped(embedded: StartServer, tmp_path: Path) -> tuple[Replicated, SteppedServer]:
    """A master, and a replica in sync with it whose clock the test steps."""
    master = embedded(*REPLICATION)
    follow = ("--replicaof", "127.0.0.1", str(master.port))
    replica = start_with_a_clock_of_its_own(embedded, tmp_path, *REPLICATION, *follow)
    settle(lambda: in_sync(replica.server), "the replica is in sync")
    return Replicated(master, (replica.server,)), replica


@pytest.fixture
def replicated(stepped: tuple[Replicated, SteppedServer]) -> Replicated:
    return stepped[0]


@pytest.fixture
async def near(replicated: Replicated) -> AsyncIterator[Proxy]:
    """The holder's way to the master."""
    async with Proxy(replicated.master.port) as proxy:
        yield proxy


@pytest.fixture
async def far(replicated: Replicated) -> AsyncIterator[Proxy]:
    """The way of everybody else."""
    async with Proxy(replicated.master.port) as proxy:
        yield proxy


@pytest.fixture
def here(near: Proxy, connect: Connect) -> Redis:
    return connect(near.url, client_name="here")


@pytest.fixture
def there(far: Proxy, connect: Connect) -> Redis:
    return connect(far.url, client_name="there")


async def error_of(server: EmbeddedRedis) -> float:
    """By how much the clock of *server* is ahead of this machine's."""
    seconds, micros = await tell(server, "TIME")
    return float(seconds) + float(micros) / 1e6 - time.time()


class FailOver:
    """Replaces the master by its replica, whose clock is set first, and proves it."""

    def __init__(self, stepped: tuple[Replicated, SteppedServer]) -> None:
        self._servers, self._replica = stepped

    async def __call__(self, ahead: float, held: AnySemaphore, permit: Permit) -> EmbeddedRedis:
        await permit.refresh()
        await self._servers.caught_up()
        master = self._servers.master
        expiry = await tell(master, "ZSCORE", key_of(held, "holders"), permit.id)
        self._replica.step(ahead)
        replica = self._servers.replicas[0]
        assert (await tell(replica, "ROLE"))[0] == "slave"
        # No write is lost: what the master keeps of the permit, the replica keeps.
        copied = await tell(replica, "ZSCORE", key_of(held, "holders"), permit.id)
        assert copied == expiry or ahead == HOUR  # a replica shows no key that it holds expired
        master.kill()
        new = await self._servers.promote()  # sees that it is a master now
        assert abs(await error_of(new) - ahead) < 1
        return new


@pytest.fixture
def fail_over(stepped: tuple[Replicated, SteppedServer]) -> FailOver:
    return FailOver(stepped)


class Belief:
    """When the holder's client last said that its permit may be trusted, by the test's clock."""

    last: float = 0.0


@asynccontextmanager
async def watched(permit: Permit) -> AsyncGenerator[Belief]:
    """Ask `check()` all the time."""
    belief = Belief()

    async def ask() -> None:
        with contextlib.suppress(PermitLost):
            while True:
                permit.check()
                belief.last = time.monotonic()
                await asyncio.sleep(0.001)

    asking = asyncio.create_task(ask())
    try:
        yield belief
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def known(kind: Kind, client: Redis) -> None:
    """Use the name once, so that the first `acquire` of the test waits for no grace period."""
    async with kind(client, "jobs", 1, lease=0.05, recovery="grace"):
        pass


@pytest.mark.fault(44)
@pytest.mark.parametrize("ahead", [2.0, HOUR])
async def test_a_clock_ahead_at_a_failover_lets_nobody_in_early_with_grace(
    kind: Kind,
    ahead: float,
    fail_over: FailOver,
    far: Proxy,
    here: Redis,
    there: Redis,
) -> None:
    """The holder is cut off. Waiters and newcomers enter after its trust has ended."""
    await known(kind, here)
    held = kind(here, "jobs", 1, lease=LEASE, recovery="grace")
    asking = kind(there, "jobs", 1, lease=LEASE, recovery="grace")
    permit = await held.acquire()
    waiter = await waits_in_line(asking)
    async with watched(permit) as belief:
        new = await fail_over(ahead, held, permit)
        far.lead_to(new.port)  # the holder's way leads to the dead master
        newcomer = asyncio.create_task(asking.acquire(timeout=30))
        await asyncio.wait([waiter, newcomer], return_when=asyncio.FIRST_COMPLETED)
        granted = time.monotonic()
        assert permit.lost
    assert 0 < belief.last < granted
    first, second = (waiter, newcomer) if waiter.done() else (newcomer, waiter)
    assert (await first).fencing_token > permit.fencing_token
    assert await (await first).release()
    assert await (await second).release()


@pytest.mark.fault(44)
@pytest.mark.parametrize("ahead", [2.0, HOUR])
async def test_a_clock_ahead_at_a_failover_costs_no_permit_with_grace(
    kind: Kind,
    ahead: float,
    fail_over: FailOver,
    near: Proxy,
    far: Proxy,
    here: Redis,
    there: Redis,
) -> None:
    """The others are there before the holder, and wait until it has released."""
    lease = 5.0
    await known(kind, here)
    held = kind(here, "jobs", 1, lease=lease, recovery="grace")
    asking = kind(there, "jobs", 1, lease=lease, recovery="grace")
    permit = await held.acquire()
    waiter = await waits_in_line(asking)
    new = await fail_over(ahead, held, permit)
    far.lead_to(new.port)

    async def in_grace() -> bool:
        return bool(await tell(new, "HGET", key_of(held, "meta"), "grace"))

    await until(in_grace, "the others have noticed the new master")
    assert await asking.try_acquire() is None
    near.lead_to(new.port)

    async def is_back() -> bool:
        now_s, now_us = await tell(new, "TIME")
        expiry = await tell(new, "ZSCORE", key_of(held, "holders"), permit.id)
        return expiry is not None and float(expiry) > 1000 * now_s + now_us / 1000

    await until(is_back, "the holder has put its permit back")
    await asyncio.sleep(lease + 0.5)  # past the grace period
    permit.check()
    assert not waiter.done()
    assert await asking.try_acquire() is None
    assert await permit.release()
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    await all_free(held)


@pytest.mark.fault(44)
async def test_a_release_that_reaches_a_new_master_first_serves_nobody_early_with_grace(
    kind: Kind, fail_over: FailOver, far: Proxy, here: Redis, there: Redis
) -> None:
    """The holder's lease has ended there, and nobody has looked for a loss yet."""
    await known(kind, here)
    held = kind(here, "jobs", 2, lease=2.0, recovery="grace")
    asking = kind(there, "jobs", 2, lease=6.0, recovery="grace")
    permit, theirs = await held.acquire(), await asking.acquire()
    waiters = [await waits_in_line(asking, place=n) for n in (1, 2)]
    async with watched(permit) as belief:
        new = await fail_over(2.5, held, permit)
        releasing = in_background(theirs.release())
        await asyncio.sleep(0)  # it is to be written once there is a connection
        far.lead_to(new.port)
        await asyncio.wait([releasing])
        await permit.wait_lost()
        assert not any(waiter.done() for waiter in waiters)
        assert belief.last > 0
    for successor in await asyncio.gather(*waiters):
        assert await successor.release()


@pytest.mark.fault(44)
async def test_a_clock_ahead_at_a_failover_lets_two_in_for_no_longer_than_that_without_grace(
    kind: Kind, fail_over: FailOver, near: Proxy, far: Proxy, here: Redis, there: Redis
) -> None:
    """The guarantees page says so; it shows that the tests above cause the fault."""
    ahead, lease = 8.0, 10.0
    held, asking = kind(here, "jobs", 1, lease=lease), kind(there, "jobs", 1, lease=lease)
    permit = await held.acquire()
    waiter = await waits_in_line(asking)
    new = await fail_over(ahead, held, permit)
    far.lead_to(new.port)
    successor = await waiter
    permit.check()  # two hold what is for one
    assert permit.expires_in < ahead
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
    near.lead_to(new.port)
    await asyncio.wait_for(permit.wait_lost(), 30)  # the new master tells it


@pytest.mark.fault(44)
async def test_a_clock_behind_at_a_failover_makes_leases_longer_and_no_more(
    kind: Kind, fail_over: FailOver, far: Proxy, here: Redis, there: Redis
) -> None:
    """A crashed holder is in the way for two seconds more at most; tokens grow."""
    held, asking = kind(here, "jobs", 1, lease=LEASE), kind(there, "jobs", 1, lease=LEASE)
    permit = await held.acquire()
    waiter = await waits_in_line(asking)
    new = await fail_over(-HOUR, held, permit)  # the holder's way leads to the dead master
    far.lead_to(new.port)
    with takes_at_most(LEASE + 2.0 + PAUSE):
        async with watched(permit) as belief:
            successor = await waiter
            granted = time.monotonic()
    assert belief.last < granted
    assert permit.lost
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
