"""What a MemoryBackend can do to code under test."""

import asyncio
import time

import pytest

from redsem_async import FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Make, MakePair
from tests.harness.wait import give_back, queue_up, soon
from tests.worlds.simulated_time import simulated


@simulated
async def test_a_lease_that_the_clock_ends_is_lost_and_served_at_once(
    pair: MakePair, client: MemoryBackend
) -> None:
    """What a suspended host finds when it wakes up: a waiter has the permit."""
    sem, there = pair(1, lease=60)
    permit = await sem.acquire()
    waiter = await queue_up(there)
    with pytest.raises(PermitLost):
        async with permit, asyncio.timeout(1):
            client.advance(61.0)
            assert permit.lost
            await asyncio.sleep(60)
    taken = await waiter
    assert taken.fencing_token > permit.fencing_token
    assert await taken.release()
    assert asyncio.get_running_loop().time() < 1


async def test_time_in_steps_shorter_than_the_lease_ends_no_holder(
    make: Make, pair: MakePair, client: MemoryBackend
) -> None:
    """Its process runs, and refreshes; what nothing refreshes ends."""
    sem, there = pair(3)
    await (await there.acquire()).detach(25.0)
    async with sem as permit, there as theirs:
        waiter = await queue_up(make(3, client=client.peer()))
        for _ in range(4):
            assert not waiter.done()
            client.advance(6.0)
        assert await sem.available() == 0
        client.advance(6.0)
        assert await (await soon(waiter)).release()
        permit.check()
        theirs.check()


async def test_waiters_keep_their_order_whatever_the_clock_says(client: MemoryBackend) -> None:
    """Their processes live: an advance of the clock must not make them count as dead."""
    clients = [client, client.peer(), client.peer()]
    holder = await FairSemaphore(client.peer(), "jobs", 1).acquire()
    waiters = [await queue_up(FairSemaphore(each, "jobs", 1)) for each in clients]
    client.advance(3600.0)
    assert holder.lost
    for number, waiter in enumerate(waiters):
        permit = await soon(waiter)
        assert not any(later.done() for later in waiters[number + 1 :])
        assert await permit.release()


@simulated
async def test_an_outage_that_outlasts_the_lease_ends_a_holder(
    make: Make, client: MemoryBackend
) -> None:
    """When trust ends, and not when the backend can be asked again."""
    sem = make(1, lease=10)
    with pytest.raises(PermitLost):
        async with sem as permit, asyncio.timeout(2):
            client.down()
            for seconds in (6.0, 3.8):
                client.advance(seconds)
                permit.check()
            await asyncio.sleep(5)
    client.up()
    assert await sem.available() == 1


@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("hours", [1, -1])
async def test_a_step_of_the_wall_clock_changes_no_lease(
    pair: MakePair, client: MemoryBackend, clock: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test moves it for reasons of its own: no lease ends early, and none lasts longer."""
    sem, there = pair(2, clock=clock)
    await (await there.acquire()).detach(30.0)
    async with sem as permit:
        really, really_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: really() + hours * 3600)
        monkeypatch.setattr(time, "time_ns", lambda: really_ns() + hours * 3600 * 10**9)
        assert await there.try_acquire() is None
        assert (await there.status()).held == 2
        await permit.refresh()
        waiter = await queue_up(there)
        for _ in range(5):
            assert not waiter.done()
            client.advance(6.0)
        taken = await soon(waiter)  # of the permit that was detached for 30 s
        assert taken.fencing_token > permit.fencing_token
        assert abs(taken.fencing_token / 1e6 - really()) < 60
        await give_back(taken)
        permit.check()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_the_clock_does_not_go_back(client: MemoryBackend, seconds: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        client.advance(seconds)


async def test_max_hold_ends_where_the_clock_is_moved(client: MemoryBackend) -> None:
    """In steps that are shorter than the lease, as on Redis."""
    sem = FairSemaphore(client, "jobs", 2, lease=10.0, max_hold=30.0)
    first, second = await sem.acquire(), await sem.acquire()
    adopted = await sem.adopt(await second.detach())
    for _ in range(4):
        client.advance(7.0)
        assert not first.lost
        assert not adopted.lost
    client.advance(7.0)
    for permit in (first, adopted):
        with pytest.raises(PermitLost, match="max_hold of 30 s"):
            permit.check()
    assert await sem.available() == 2


def test_a_loop_that_was_only_closed_holds_up_no_other(client: MemoryBackend) -> None:
    """One backend serves event loops in turn, however the ones before ended."""
    sem = FairSemaphore(client, "jobs", 2)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    held = first.run_until_complete(sem.acquire())
    first.close()

    async def use() -> None:
        await sem.set_limit(3)
        async with sem:
            assert await sem.available() == 1
        client.down()
        client.up()
        await sem.set_limit(None)

    second.run_until_complete(use())
    second.close()
    assert held.permits == 1  # it is kept until here, because dropping it releases it
