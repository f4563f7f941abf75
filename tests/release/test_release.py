"""Giving permits back, and handing them over."""

import asyncio
from typing import cast

import anyio
import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, aclose
from redsem_async._hub.model import RequestState
from tests.harness.clients import Client, Make, MakePair
from tests.harness.inside import lease_of, remote_of
from tests.harness.memory import Distant
from tests.harness.wait import all_free, queue_up, soon
from tests.worlds.simulated_time import TimedLoop, simulated

# -- release


@pytest.mark.fault(12)
async def test_releases_that_are_not_due_change_nothing(pair: MakePair) -> None:
    """Again, late, or of a foreign id: False, and no permit more, as a bare counter would give."""
    here, there = pair(2)
    permit, late = await here.acquire(), await here.acquire()
    again = await asyncio.gather(*(permit.release() for _ in range(3)))
    assert sorted(again) == [False, False, True]
    assert await permit.release() is False
    lost = await here.acquire()
    remote_of(here).lose(lease_of(lost), "it was not trusted any more")
    assert await lost.release() is False
    late_id = await late.detach(0.05)
    held = [await soon(there.acquire()) for _ in range(2)]
    foreign = ("", "x", f"{'0' * 32}.1", f"{held[0].id}0", "*", "a b\n{c}", "é.1")
    for permit_id in (permit.id, late_id, *foreign):
        for sem in (here, there):
            assert await sem.release(permit_id) is False, permit_id
    assert (await here.status(0)).held == 2
    with pytest.raises(AcquireTimeout):
        await here.acquire(timeout=0)
    for successor in held:
        await successor.refresh()
        assert await successor.release() is True
    await all_free(here)


async def test_a_release_in_a_cancelled_scope_waits_for_its_reply_in_peace() -> None:
    """A scope of anyio cancels in every turn of the loop, unless it is kept out."""
    far = Distant()
    permit = await FairSemaphore(far, "jobs", 1).acquire()
    far.delay = 0.05
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    began, cancellations = loop.time(), 0
    with anyio.CancelScope() as scope:
        loop.call_soon(scope.cancel)
        try:
            await permit.release()
        finally:
            cancellations = task.cancelling()
    assert scope.cancelled_caught
    assert cancellations == 1
    assert loop.time() - began >= 2 * far.delay
    assert await permit.release() is False


@pytest.mark.parametrize("same_process", [True, False])
async def test_release_by_id_is_a_loss_to_the_holder(pair: MakePair, same_process: bool) -> None:
    """An operator, or whatever the id was given to, ends a permit; its holder learns at once."""
    here, there = pair(5, lease=60.0)
    releasing = here if same_process else there
    permit = await here.acquire(permits=4)
    waiter = await queue_up(here, permits=5)
    assert await releasing.release(permit.id) is True
    assert (await soon(permit.wait_lost())).permit_id == permit.id
    assert permit.lost
    with pytest.raises(PermitLost):
        await permit.detach()
    await (await soon(waiter)).release()
    assert await releasing.release(permit.id) is False
    assert await permit.release() is False
    assert await releasing.available() == 5


# -- detach


@pytest.mark.parametrize("by", ["a close", "a release"])
@pytest.mark.parametrize("turns", range(3))
async def test_a_permit_given_back_meanwhile_cannot_be_detached(
    make: Make, client: Client, by: str, turns: int
) -> None:
    """Its id would be handed over with a job, and hold nothing."""
    sem = make(1)
    permit = await sem.acquire()
    detaching = asyncio.create_task(permit.detach())
    for _ in range(turns):
        await asyncio.sleep(0)
    await (aclose(client) if by == "a close" else permit.release())
    [result] = await asyncio.gather(detaching, return_exceptions=True)
    held = (await sem.status()).held
    assert result == permit.id if held else isinstance(result, PermitLost)
    assert held == bool(await sem.release(permit.id))


# -- adopt


@simulated
async def test_a_detached_permit_is_adopted_elsewhere(pair: MakePair) -> None:
    """A web request takes the permit, and the worker that gets the job runs under it."""
    here, there = pair(6, lease=5.0)
    permit = await here.acquire(permits=5)
    permit_id = await permit.detach()
    assert permit_id == permit.id
    for refused in (permit.refresh, permit.detach, permit.__aenter__):
        with pytest.raises((PermitLost, RuntimeError)):
            await refused()
    assert await permit.release() is False
    async with there.adopt(permit_id) as adopted:
        assert adopted.id != permit_id
        assert (adopted.name, adopted.permits) == (here.name, 5)
        assert adopted.fencing_token >= permit.fencing_token
        assert await here.release(permit_id) is False  # worth nothing any more
        await asyncio.sleep(12.0)  # it is refreshed
        adopted.check()
        assert await here.available() == 1
    await all_free(here)


async def test_the_second_adopter_gets_permit_lost(pair: MakePair) -> None:
    """A job that was delivered twice must not run twice under one permit."""
    here, there = pair(1)
    permit_id = await (await here.acquire()).detach()
    async with there.adopt(permit_id):
        for sem in (here, there):
            with pytest.raises(PermitLost) as caught:
                await soon(sem.adopt(permit_id))
            assert caught.value.permit_id == permit_id
            assert caught.value.name == here.name
    with pytest.raises(PermitLost):
        await there.adopt(permit_id)
    await all_free(here)


async def test_a_refresh_does_not_lower_an_expiry(make: Make, other: Client) -> None:
    """An hour for the job was an hour, also where the adopter's lease is a second."""
    here, there = make(1, lease=30.0), make(1, client=other, lease=1.0)
    permit_id = await (await here.acquire()).detach(3600.0)
    async with there.adopt(permit_id) as permit:
        await permit.refresh()
        (holder,) = (await here.status()).holders
        assert holder.expires_in > 3000


@simulated
async def test_an_adoption_whose_reply_is_read_too_late_is_no_other_permit(make: Make) -> None:
    """The job is the adopted permit's: another one, with another token, would not do."""
    sem = make(1, lease=1.0)
    permit_id = await (await sem.acquire()).detach(30)
    adopting = asyncio.create_task(sem.adopt(permit_id))
    asked = remote_of(sem).requests
    while not any(each.state is RequestState.SENT for each in asked.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    cast("TimedLoop", asyncio.get_running_loop()).now += 2.0  # it stands still
    with pytest.raises(PermitLost):
        await adopting


# -- entering a permit


async def test_a_permit_guards_one_block_at_a_time(make: Make) -> None:
    """Two blocks cannot both be the one that releases; and none runs on what was given back."""
    sem = make(1)
    permit = await sem.acquire()
    async with permit:
        with pytest.raises(RuntimeError):
            async with permit:
                pytest.fail("entered twice")
        assert await sem.available() == 0
    with pytest.raises((PermitLost, RuntimeError)):
        async with permit:
            pytest.fail("ran without a permit")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_released_twice_in_one_turn(
    client_a: Redis, client_b: Redis, elsewhere: bool
) -> None:
    """By its id, in one call of the script: one of the two says that it was held."""
    semaphore = FairSemaphore(client_b if elsewhere else client_a, "jobs", 2)
    await semaphore.reap()
    identity = await (await FairSemaphore(client_a, "jobs", 2).acquire()).detach(5.0)
    released = await asyncio.gather(*(semaphore.release(identity) for _ in range(2)))
    assert sorted(released) == [False, True]
