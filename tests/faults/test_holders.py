"""Bodies that do not behave, blocks that are left elsewhere, limits that move."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, Permit, PermitLost
from tests.harness.clients import Kind, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, all_free, takes_at_most, waits_in_line


@pytest.mark.fault(6)
async def test_a_body_in_a_thread(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """The block is left as lost; the thread itself cannot be stopped, and runs on."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.2)
    stop, ran_on = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait(10)
        ran_on.set()

    with takes_at_most(0.2 + EPSILON), pytest.raises(PermitLost):
        async with semaphore:
            await admin.delete(key_of(semaphore, "holders"))
            await asyncio.to_thread(work)
    assert not ran_on.is_set()
    stop.set()
    assert await asyncio.to_thread(ran_on.wait, 5)


@pytest.mark.fault(7)
async def test_a_suspended_host(
    kind: Kind, client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still meanwhile; the leases go on.

    No test can suspend its host: the clock is patched here, as it is after a night.
    """
    clock_boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if clock_boottime is None:
        pytest.skip("this system has no clock that goes on while it is suspended")
    semaphore = kind(client_a, "jobs", 1, lease=10.0)
    permit = await semaphore.acquire()
    assert not permit.lost
    real = time.clock_gettime

    def after_a_night(clock: int) -> float:
        return real(clock) + (10.0 if clock == clock_boottime else 0.0)

    monkeypatch.setattr(time, "clock_gettime", after_a_night)
    assert permit.expires_in <= 0
    with pytest.raises(PermitLost):
        permit.check()
    assert permit.lost
    monkeypatch.undo()
    assert not await permit.release()


@pytest.mark.fault(10)
async def test_a_body_that_swallows_the_cancellation(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """PermitLost leaves the block all the same, and the task is not left cancelled."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.2)
    swallowed = False
    with pytest.raises(PermitLost):
        async with semaphore:
            await admin.delete(key_of(semaphore, "holders"))
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                swallowed = True
            await asyncio.sleep(0.01)  # the body's own clean-up may await
    assert swallowed
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.fault(11)
@pytest.mark.parametrize("lose", [False, True], ids=["held", "lost"])
async def test_a_block_that_is_left_in_another_task(
    kind: Kind, client_a: Redis, admin: Redis, lose: bool
) -> None:
    """Fixtures and some frameworks do that: it releases, and tells of a loss."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.2)
    entered: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()

    async def enter() -> None:
        entered.set_result(await semaphore.__aenter__())

    async def leave() -> None:
        await semaphore.__aexit__(None, None, None)

    await asyncio.create_task(enter())
    permit = await entered
    if lose:
        await admin.delete(key_of(semaphore, "holders"))
        await asyncio.wait_for(permit.wait_lost(), 2)
        with pytest.raises(PermitLost):
            await asyncio.create_task(leave())
    else:
        await asyncio.create_task(leave())
        assert not permit.lost
    await all_free(semaphore)


@pytest.mark.fault(12)
async def test_releases_that_are_not_due_change_nothing(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Twice, late, of another's, of nobody's: False, and no place more."""
    semaphore, there = kind(client_a, "jobs", 2, lease=5.0), kind(client_b, "jobs", 2, lease=5.0)
    twice = await semaphore.acquire()
    assert await twice.release()
    assert not await twice.release()
    assert not await there.release(twice.id)

    late = await semaphore.acquire()
    await admin.zadd(key_of(semaphore, "holders"), {late.id: 1})  # its lease has ended
    await there.reap()
    assert not await late.release()

    first, second = await there.acquire(timeout=0), await there.acquire(timeout=0)
    for nobodys in ("", "x", f"{'0' * 32}.1", twice.id, late.id, f"{first.id}0"):
        assert not await semaphore.release(nobodys)
    assert (await semaphore.status(0)).held == 2
    with pytest.raises(AcquireTimeout):
        await semaphore.acquire(timeout=0)
    assert await asyncio.gather(*(first.release() for _ in range(3))) == [True, False, False]
    assert (await semaphore.status(0)).held == 1
    assert await second.release()
    await all_free(semaphore)


@pytest.mark.fault(41)
async def test_a_lowered_limit_evicts_nobody(kind: Kind, client_a: Redis, client_b: Redis) -> None:
    """Nobody new comes in until it fits, and those inside stay."""
    semaphore, there = kind(client_a, "jobs", 3), kind(client_b, "jobs", 3)
    permits = [await semaphore.acquire() for _ in range(3)]
    waiter = await waits_in_line(there)
    await there.set_limit(1)
    assert (await there.status()).limit == 1
    for permit in permits[:2]:
        assert await permit.release()
        assert await there.try_acquire() is None
        assert not waiter.done()
    await permits[2].refresh()
    assert not permits[2].lost
    assert await permits[2].release()
    with takes_at_most(EPSILON):
        assert await (await waiter).release()
    await all_free(semaphore)


@pytest.mark.fault(41)
async def test_a_raised_limit_serves_at_once(kind: Kind, client_a: Redis, client_b: Redis) -> None:
    """Nobody waits for a heartbeat; 0 pauses, and taking it away goes on."""
    semaphore, there = kind(client_a, "jobs", 1), kind(client_b, "jobs", 1)
    await there.set_limit(0)
    waiters = [await waits_in_line(semaphore, place=n) for n in (1, 2, 3)]
    assert await there.try_acquire() is None
    await there.set_limit(2)
    with takes_at_most(EPSILON):
        done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, _ = await asyncio.wait(
                set(waiters) - done, timeout=1, return_when=asyncio.FIRST_COMPLETED
            )
            assert more, "the second was not served"
            done |= more
    assert (await there.status(0)).held == 2
    await there.set_limit(None)
    for task in done:
        assert await task.result().release()
    [last] = set(waiters) - done
    with takes_at_most(EPSILON):
        assert await (await last).release()
    await all_free(semaphore)


@pytest.mark.fault(42)
async def test_a_higher_limit_of_another_client_is_its_own(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Each request goes by what its own client declares."""
    narrow, wide = kind(client_a, "jobs", 1), kind(client_b, "jobs", 3)
    permits = [await wide.acquire(timeout=0), await wide.acquire(timeout=0)]
    assert await narrow.try_acquire() is None
    permits.append(await wide.acquire(timeout=0))
    assert await wide.try_acquire() is None
    for permit in permits:
        assert await permit.release()
    assert await (await narrow.acquire(timeout=0)).release()


@pytest.mark.fault(42)
async def test_short_and_long_leases_on_one_name(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Nobody's lease is applied to others, and no key dies before the longest."""
    short = kind(client_a, "jobs", 2, lease=0.3)
    long = kind(client_b, "jobs", 2, lease=60.0)
    permit = await long.acquire()
    for _ in range(3):
        async with short.acquire(timeout=1):
            await asyncio.sleep(0.35)  # past its lease: refreshed
    assert not permit.lost
    assert (await short.status()).holders[0].id == permit.id
    for key in ("holders", "tokens", "meta"):
        left = await admin.pttl(key_of(long, key))
        assert left > 55_000, key
    assert await permit.release()
    await all_free(long)


@pytest.mark.fault(10)
async def test_an_error_of_the_bodys_own_wins(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """What the body raises is not hidden, neither by a loss nor by a release."""
    semaphore = kind(client_a, "jobs", 1, lease=3.0, refresh_interval=0.2)
    with pytest.raises(ZeroDivisionError):
        async with semaphore:
            await admin.delete(key_of(semaphore, "holders"))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
            raise ZeroDivisionError
    await all_free(semaphore)


@pytest.mark.fault(3)
async def test_an_expired_permit_is_not_refreshed(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Somebody else may have it by now, or may be about to: it is lost."""
    semaphore = kind(client_a, "jobs", 1, lease=30.0)
    permit = await semaphore.acquire()
    await admin.zadd(key_of(semaphore, "holders"), {permit.id: 1.0}, xx=True)
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert permit.lost
    await all_free(semaphore)


@pytest.mark.fault(1)
async def test_a_newcomer_clears_up_after_who_has_expired(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """Also where there is room beside them: nothing is left of a permit but its lease."""
    semaphore = kind(client_a, "jobs", 2, lease=30.0)
    await (await semaphore.acquire()).release()  # it is introduced, and will be served quickly
    dead = f"{'f' * 32}.1"
    await admin.zadd(key_of(semaphore, "holders"), {dead: 1.0})
    await admin.hset(key_of(semaphore, "tokens"), dead, "1")
    async with semaphore as permit:
        assert await admin.zrange(key_of(semaphore, "holders"), 0, -1) == [permit.id.encode()]
        assert await admin.hkeys(key_of(semaphore, "tokens")) == [permit.id.encode()]


@pytest.mark.parametrize("how", ["release", "adopt", "clear"])
async def test_a_holder_that_is_cut_off_learns_late_of_what_was_taken_from_it(
    kind: Kind, proxy: Proxy, proxied: Redis, client_b: Redis, how: str
) -> None:
    """Nobody can tell it, and the permit has another holder at once: for a lease, no longer."""
    lease = 4.0
    here, there = kind(proxied, "jobs", 1, lease=lease), kind(client_b, "jobs", 1, lease=lease)
    permit = await here.acquire()
    proxy.lead_to(1)  # where nobody listens
    proxy.drop()
    if how == "release":
        assert await there.release(permit.id)
        successor = await there.acquire(timeout=5)
    elif how == "adopt":
        successor = await there.adopt(permit.id)
    else:
        await there.clear()
        successor = await there.acquire(timeout=5)
    permit.check()  # two hold what is for one
    with takes_at_most(lease):
        await asyncio.wait_for(permit.wait_lost(), 30)
    assert not successor.lost
    assert await successor.release()
