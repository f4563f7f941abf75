"""Giving permits back, and handing them over."""

import asyncio

import pytest

from redsem_async import FairSemaphore, PermitLost, aclose
from tests.harness.clients import Client, Make
from tests.harness.wait import all_free, queue_up, soon, until

# -- release


async def test_a_second_release_changes_nothing(make: Make) -> None:
    """Capacity must not grow with each one, as a bare counter's would."""
    sem = make(2)
    permit = await sem.acquire()
    assert await permit.release() is True
    assert await permit.release() is False
    assert await sem.release(permit.id) is False
    assert await sem.available() == 2


async def test_of_two_releases_at_once_one_counts(make: Make) -> None:
    """A clean-up and a time-out may both come to it."""
    sem = make(1)
    permit = await sem.acquire()
    results = await asyncio.gather(permit.release(), permit.release(), permit.release())
    assert sorted(results) == [False, False, True]
    async with sem:
        assert await sem.available() == 0


async def test_a_heavy_permit_released_twice_at_once_frees_its_permits_once(
    make: Make, other: Client
) -> None:
    """By its handle and by its id, in one call: what it stands for must not count twice."""
    sem, there = make(4, lease=60.0), make(4, client=other, lease=60.0)
    first, second = await sem.acquire(permits=2), await sem.acquire(permits=2)
    waiter = await queue_up(there, permits=3)
    results = await asyncio.gather(sem.release(first.id), first.release())
    assert any(results)
    status = await sem.status()
    assert status.held == 2
    await second.release()
    await (await soon(waiter)).release()
    await all_free(sem)


async def test_release_inside_the_block(make: Make) -> None:
    """Early, because the rest of the block does not need it: leaving does nothing more."""
    sem = make(1)
    async with sem as permit:
        assert await permit.release() is True
        async with sem.acquire(timeout=1.0) as successor:
            pass
    assert successor.fencing_token > permit.fencing_token
    await all_free(sem)


async def test_release_by_id_from_another_process(make: Make, other: Client) -> None:
    """An operator, or whoever the id was given to, ends a permit; its holder is told at once."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    permit = await here.acquire()
    assert await there.release(permit.id) is True
    lost = await soon(permit.wait_lost(), 0.5)
    assert lost.permit_id == permit.id
    assert permit.lost
    assert await there.release(permit.id) is False
    assert await permit.release() is False
    assert await there.available() == 1


async def test_release_by_id_in_this_process(make: Make) -> None:
    """The same without a detour."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    assert await sem.release(permit.id) is True
    assert permit.lost
    assert await permit.release() is False
    assert await sem.release(permit.id) is False
    await all_free(sem)


async def test_release_by_id_serves_the_next(make: Make, other: Client) -> None:
    """It frees a place like any other release, wherever the next one waits."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    permit = await here.acquire()
    waiter = await queue_up(here)
    assert await there.release(permit.id) is True
    await (await soon(waiter, 0.5)).release()
    assert permit.lost


async def test_release_by_id_of_a_heavy_permit_frees_all_of_it(make: Make, other: Client) -> None:
    """The weight went with the id, and nobody has to say it again."""
    here, there = make(5), make(5, client=other)
    permit = await here.acquire(permits=4)
    assert await there.release(permit.id) is True
    assert await here.available() == 5
    assert await permit.release() is False
    assert await here.available() == 5


async def test_a_late_release_changes_nothing(make: Make) -> None:
    """The place is somebody else's by now."""
    sem = make(1)
    permit = await sem.acquire()
    permit_id = await permit.detach(0.05)
    successor = await soon(sem.acquire())
    assert await sem.release(permit_id) is False
    assert await sem.available() == 0
    assert await successor.release() is True


@pytest.mark.parametrize("foreign", ["", "nonsense", "0" * 32 + ".1", "*", "a b\n{c}", "é.1"])
async def test_a_foreign_id_releases_nothing(make: Make, foreign: str) -> None:
    """Whatever it looks like."""
    sem = make(1)
    async with sem as permit:
        assert await sem.release(foreign) is False
        await permit.refresh()
        assert await sem.available() == 0


async def test_the_id_of_another_semaphore_releases_nothing(make: Make, name: str) -> None:
    """Of either one."""
    sem, stranger = make(1), make(1, name=f"{name}-stranger")
    async with sem as permit, stranger as foreign:
        assert await stranger.release(permit.id) is False
        assert await sem.release(foreign.id) is False
        await permit.refresh()
        await foreign.refresh()
    await all_free(sem)
    await all_free(stranger)


async def test_a_waiters_id_releases_nothing(make_fair: Make, other: Client) -> None:
    """Its place in the line is not a permit."""
    here, there = make_fair(1), make_fair(1, client=other)
    async with here:
        waiter = await queue_up(here)
        (standing,) = (await here.status()).waiters
        assert await there.release(standing.id) is False
        assert (await here.status()).waiting == 1
    await (await soon(waiter)).release()


# -- detach and adopt


async def test_a_detached_permit_is_adopted_elsewhere(make: Make, other: Client) -> None:
    """A web request takes the permit, and the worker that gets the job runs under it."""
    here, there = make(1), make(1, client=other)
    permit = await here.acquire()
    permit_id = await permit.detach()
    assert permit_id == permit.id
    assert await here.available() == 0
    adopted = await there.adopt(permit_id)
    assert adopted.id != permit_id
    assert adopted.name == here.name
    assert adopted.fencing_token >= permit.fencing_token
    assert await here.available() == 0
    await adopted.refresh()
    assert await here.release(permit_id) is False  # worth nothing any more
    assert await adopted.release() is True
    await all_free(here)


async def test_adopt_guards_a_block(make: Make, other: Client) -> None:
    """It is used as `acquire` is."""
    here, there = make(1), make(1, client=other)
    permit_id = await (await here.acquire()).detach()
    async with there.adopt(permit_id) as permit:
        assert await here.available() == 0
        permit.check()
    await all_free(here)


async def test_the_second_adopter_gets_permit_lost(make: Make, other: Client) -> None:
    """A job that was delivered twice must not run twice under one permit."""
    here, there = make(1), make(1, client=other)
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


async def test_of_many_adopters_at_once_one_wins(make: Make, other: Client) -> None:
    """Delivered twice at the same time, too."""
    here, there = make(1), make(1, client=other)
    permit_id = await (await here.acquire()).detach()
    results = await asyncio.gather(
        *(sem.adopt(permit_id) for sem in (here, there) * 3), return_exceptions=True
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert all(isinstance(result, PermitLost) for result in results if result not in won)
    assert await won[0].release() is True
    await all_free(here)


@pytest.mark.parametrize("same_process", [True, False])
async def test_adopting_a_permit_that_is_still_held_takes_it_away_at_once(
    make: Make, other: Client, same_process: bool
) -> None:
    """Two must not believe in one permit: the old holder is told, and not by its next refresh."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    permit = await here.acquire()
    adopted = await (here if same_process else there).adopt(permit.id)
    await soon(permit.wait_lost(), 0.5)
    assert await permit.release() is False
    await adopted.refresh()
    assert await here.available() == 0
    await adopted.release()
    await all_free(here)


async def test_detach_inside_a_block(make: Make) -> None:
    """The usual place: leaving the block then releases nothing, and raises nothing."""
    sem = make(1)
    async with sem as permit:
        permit_id = await permit.detach(30.0)
    assert await sem.available() == 0
    assert await sem.release(permit_id) is True


async def test_a_detached_permit_is_not_refreshed(make: Make) -> None:
    """It ends when its time is over: nobody may ever fetch the job."""
    sem = make(1, lease=0.3)
    await (await sem.acquire()).detach()
    await (await soon(sem.acquire(), 0.45)).release()


async def test_detach_sets_the_expiry_once(make: Make) -> None:
    """For as long as the job may lie in a queue: longer than the lease, or shorter."""
    sem = make(2, lease=5.0)
    for expires_in in (60.0, 0.2):
        permit = await sem.acquire()
        await permit.detach(expires_in)
    soonest, latest = (await sem.status()).holders
    assert 0 < soonest.expires_in <= 0.2
    assert 59 < latest.expires_in <= 60


async def test_an_adopted_permit_is_refreshed_by_its_adopter(make: Make, other: Client) -> None:
    """On the adopter's own lease."""
    here, there = make(1, lease=30.0), make(1, client=other, lease=0.3)
    permit_id = await (await here.acquire()).detach(0.2)
    async with there.adopt(permit_id) as permit:
        await asyncio.sleep(0.5)
        permit.check()
        assert await here.available() == 0


async def test_a_refresh_does_not_lower_an_expiry(make: Make, other: Client) -> None:
    """An hour for the job was an hour, also where the adopter's lease is a second."""
    here, there = make(1, lease=30.0), make(1, client=other, lease=1.0)
    permit_id = await (await here.acquire()).detach(3600.0)
    async with there.adopt(permit_id) as permit:
        await permit.refresh()
        (holder,) = (await here.status()).holders
        assert holder.expires_in > 3000


async def test_adopt_keeps_the_weight(make: Make, other: Client) -> None:
    """Five permits that were handed over are five permits."""
    here, there = make(6), make(6, client=other)
    permit_id = await (await here.acquire(permits=5)).detach()
    async with there.adopt(permit_id) as permit:
        assert permit.permits == 5
        assert await here.available() == 1
    assert await here.available() == 6


async def test_a_detached_permit_is_not_usable_where_it_was(make: Make) -> None:
    """It is somebody else's from now on."""
    sem = make(1)
    permit = await sem.acquire()
    permit_id = await permit.detach()
    with pytest.raises(PermitLost):
        permit.check()
    with pytest.raises(PermitLost):
        await permit.refresh()
    with pytest.raises(PermitLost):
        await permit.detach()
    assert await permit.release() is False
    assert await sem.release(permit_id) is True


async def test_an_expired_or_unknown_id_cannot_be_adopted(make: Make) -> None:
    """There is nothing to adopt, and the error says which id it was."""
    sem = make(1)
    permit_id = await (await sem.acquire()).detach(0.05)

    async def is_free() -> bool:
        return await sem.available() == 1

    await until(is_free)
    for unknown in (permit_id, "nonsense", "0" * 32 + ".7"):
        with pytest.raises(PermitLost) as caught:
            await sem.adopt(unknown)
        assert caught.value.permit_id == unknown
    await all_free(sem)


async def test_a_lost_permit_cannot_be_detached(make: Make, other: Client) -> None:
    """Whoever adopted it would find nothing."""
    here, there = make(1), make(1, client=other)
    permit = await here.acquire()
    await there.release(permit.id)
    await permit.wait_lost()
    with pytest.raises(PermitLost):
        await permit.detach()


async def test_entering_a_permit_that_was_given_back_does_not_run_the_block(make: Make) -> None:
    """The block would run with nothing to guard it."""
    sem = make(1)
    permit = await sem.acquire()
    await permit.release()
    with pytest.raises((PermitLost, RuntimeError)):
        async with permit:
            pytest.fail("ran without a permit")


async def test_a_permit_guards_one_block_at_a_time(make: Make) -> None:
    """Two blocks cannot both be the one that releases."""
    sem = make(1)
    permit = await sem.acquire()
    async with permit:
        with pytest.raises(RuntimeError):
            async with permit:
                pytest.fail("entered twice")
        assert await sem.available() == 0
    await all_free(sem)


async def test_waiters_are_not_served_by_an_adoption(make_fair: Make, other: Client) -> None:
    """No place becomes free when one holder takes over from another."""
    here, there = make_fair(1), FairSemaphore(other, make_fair(1).name, 1)
    permit_id = await (await here.acquire()).detach()
    waiter = await queue_up(here)
    async with there.adopt(permit_id):
        await here.reap()
        assert not waiter.done()
    await (await soon(waiter)).release()


@pytest.mark.parametrize("by", ["a close", "a release"])
async def test_a_permit_given_back_meanwhile_cannot_be_detached(
    by: str, make: Make, client: Client
) -> None:
    """Its id would be handed over with a job, and hold nothing."""
    sem = make()
    for turns in range(4):
        permit = await sem.acquire()
        detaching = asyncio.create_task(permit.detach())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not detaching.done():
            await (aclose(client) if by == "a close" else permit.release())
        [told] = await asyncio.gather(detaching, return_exceptions=True)
        held = (await sem.status()).held
        assert isinstance(told, PermitLost) if held == 0 else told == permit.id
        if held:
            assert await sem.release(permit.id)
    await all_free(sem)
