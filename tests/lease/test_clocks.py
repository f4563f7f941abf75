"""A server's wall clock that is set: while the server runs, or because a replica is promoted.

The server that keeps a lease compares its expiry with its own clock. A new master that is ahead by
d ends every lease d early, while its holder trusts the permit for as long as the old master said.
"""

import asyncio

import pytest

from redsem_async import FairSemaphore, Permit, PermitLost
from redsem_async.testing import MemoryBackend
from tests.harness.clients import MakePair
from tests.harness.memory import Distant
from tests.harness.wait import give_back, queue_up
from tests.worlds.simulated_time import simulated

HOUR = 3600.0  # by which even the keys have expired
LEASE = 6.0


def step(backend: MemoryBackend, seconds: float) -> None:
    """Set the server's clock forward, or back."""
    backend._store._epoch_us += round(seconds * 1_000_000)


@pytest.mark.fault(35)
@simulated
async def test_an_hour_forward_is_a_loss_and_tokens_stay_in_order(
    pair: MakePair, client: MemoryBackend
) -> None:
    """To the server all leases have ended: bodies are cancelled, and fencing orders."""
    here, there = pair(1, lease=LEASE)
    permit = await here.acquire()
    waiter = await queue_up(there)
    with pytest.raises(PermitLost):
        async with permit, asyncio.timeout(LEASE / 3 + 0.1):
            step(client, HOUR)
            await asyncio.sleep(HOUR)
    assert not await permit.release()
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    assert 0 < successor.expires_in <= LEASE
    await give_back(successor)


@pytest.mark.fault(36)
@pytest.mark.parametrize("late", [False, True], ids=["waiting", "late"])
@simulated
async def test_after_an_hour_back_a_crashed_holder_is_in_the_way_for_a_lease_at_most(
    late: bool,
) -> None:
    """Its expiry is an hour ahead of the clock now, and no call may have come since."""
    crashing = Distant()
    held = await FairSemaphore(crashing, "jobs", 1, lease=LEASE).acquire()
    semaphore = FairSemaphore(crashing.peer(), "jobs", 1, lease=30.0 if late else LEASE)
    waiter = None if late else await queue_up(semaphore)
    await asyncio.sleep(LEASE)  # refreshed since
    crashing.cut_off()
    step(crashing, -HOUR)
    # The clock is seen to have been set at the next call, a heartbeat away.
    async with asyncio.timeout(LEASE + LEASE / 3 + 0.1):
        permit = await (waiter or semaphore.acquire())
    assert permit.fencing_token > held.fencing_token
    assert 0 < permit.expires_in <= semaphore.lease
    await give_back(permit)


@pytest.mark.fault(36)
@simulated
async def test_an_hour_back_costs_a_holder_nothing(pair: MakePair, client: MemoryBackend) -> None:
    """It is trusted for a lease, refreshed, and alone."""
    here, there = pair(1, lease=LEASE)
    async with here as permit:
        waiter = await queue_up(there)
        step(client, -HOUR)
        for _ in range(20):
            await asyncio.sleep(LEASE / 10)
            assert not permit.lost
            assert permit.expires_in <= LEASE
            assert not waiter.done(), "two hold what is for one"
        [entry] = (await there.status()).holders
        assert entry.id == permit.id
        assert 0 < entry.expires_in <= LEASE
        assert entry.age < 60
    await give_back(waiter)


@pytest.mark.fault(35, 36)
@simulated
async def test_back_and_forth_tokens_grow(pair: MakePair, client: MemoryBackend) -> None:
    """Whatever the clock does, later grants have higher tokens."""
    both = pair(1, lease=LEASE)
    tokens: list[int] = []
    for seconds in (-HOUR, HOUR, HOUR, -60.0, -HOUR, -2.0, 0.5, -0.5, 0.0):
        for semaphore in both:
            permit = await semaphore.acquire(timeout=5)
            tokens.append(permit.fencing_token)
            assert 0 < permit.expires_in <= LEASE
            await give_back(permit)
        step(client, seconds)
        if seconds == -0.5:
            await both[0].delete()
    assert tokens == sorted(set(tokens))


# -- a replica is promoted whose clock differs from its master's; no write is lost


async def fail_over(far: Distant, ahead: float) -> tuple[Permit, Permit]:
    """A permit of a process that only knows the dead master, and its successor at the new one."""
    held, asking = (FairSemaphore(each, "jobs", 1, lease=10.0) for each in (far, far.peer()))
    permit = await held.acquire()
    waiter = await queue_up(asking)
    far.cut_off()
    step(far, ahead)
    successor = await waiter
    assert successor.fencing_token > permit.fencing_token
    return permit, successor


@pytest.mark.fault(44)
@simulated
async def test_a_clock_ahead_at_a_failover_lets_two_in_for_no_longer_than_that() -> None:
    """The guarantees page says so."""
    permit, successor = await fail_over(Distant(), 8.0)
    permit.check()  # two hold what is for one
    assert permit.expires_in < 8.0
    await give_back(successor)


@pytest.mark.fault(44)
@simulated
async def test_a_clock_behind_at_a_failover_makes_leases_longer_and_no_more() -> None:
    """A crashed holder is in the way until the next heartbeat shows the clock."""
    permit, successor = await fail_over(Distant(), -HOUR)
    assert permit.lost
    assert asyncio.get_running_loop().time() < 10.0 + 10.0 / 3 + 0.1
    await give_back(successor)
