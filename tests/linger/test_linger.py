"""`linger`: a process reuses its leases while no other process wants the semaphore."""

import asyncio
import gc
import math
import random
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    Mutex,
    Permit,
    PermitLost,
    SemaphoreClosed,
    SemaphoreGroup,
    aclose,
)
from redsem_async._hub.reuse import IN_A_ROW
from redsem_async.observer import Granted, Observer, observe
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make, scripts_run
from tests.harness.inside import kept_by, lease_of, remote_of
from tests.harness.wait import all_free, cancelled, in_background, queue_up, soon, until, waiting

KEEPS: dict[str, Any] = {"linger": 20.0, "lease": 60.0}


async def warm(sem: AnySemaphore, count: int = 1) -> None:
    """Have *sem* keep *count* leases."""
    permits = [await sem.acquire() for _ in range(count)]
    for permit in permits:
        async with permit:
            pass
    assert len(kept_by(sem)) == count


# -- no other process wants it


async def test_a_warm_pair_sends_no_command_and_is_not_suspended(
    kind: Kind, redis: Redis, name: str
) -> None:
    sem = kind(redis, name, 2, **KEEPS)
    await warm(sem)
    before = await scripts_run(redis)
    for _ in range(10):
        block = sem.acquire()
        with pytest.raises(StopIteration):
            block.__aenter__().send(None)
        with pytest.raises(StopIteration):
            block.__aexit__(None, None, None).send(None)
    assert await scripts_run(redis) == before


async def test_what_is_first_read_after_a_block_is_not_the_next_permits(make: Make) -> None:
    sem = make(1, **KEEPS)
    await warm(sem)
    async with sem as one:
        pass
    async with sem as another:
        pass
    async with sem as two:
        assert len({one.id, another.id, two.id}) == 3
        assert one.fencing_token == another.fencing_token == 0 < two.fencing_token
        assert not await sem.release(one.id)
        assert not two.lost


async def test_every_sixteenth_lets_the_loop_run(make: Make) -> None:
    """A recall has to be read."""
    sem = make(1, **KEEPS)
    await warm(sem)
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    loop.call_soon(turn)
    for _ in range(64):
        async with sem:
            pass
    assert turns >= 3


async def test_a_recall_is_read_by_a_task_that_never_waits(make: Make, other: Client) -> None:
    sem, there = make(1, **KEEPS), make(1, client=other)
    await warm(sem)

    async def visit() -> None:
        async with there:
            pass

    visitor = in_background(visit())
    uses = 0
    async with asyncio.timeout(5):
        while not visitor.done():
            async with sem:
                uses += 1
    assert uses > 32


@pytest.mark.parametrize("turns", [0, 1], ids=["quick", "slow"])
async def test_tasks_are_served_in_the_order_of_their_calls(make: Make, turns: int) -> None:
    """Also those that let the loop run before they use a kept lease."""
    sem = make(7, **KEEPS)
    await warm(sem, 7)
    order: list[int] = []

    async def work(number: int) -> None:
        async with sem:
            order.append(number)
            for _ in range(turns):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(work(number))
    assert order == list(range(50))


async def test_those_that_come_while_others_let_the_loop_run_do_not_pass_them(make: Make) -> None:
    sem = make(50, **KEEPS)
    await warm(sem, 50)
    order: list[int] = []
    asked: list[int] = []

    async def work(number: int) -> None:
        asked.append(number)
        async with sem:
            order.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(0, 90, 3):
            tasks.create_task(work(number))
            # This one asks a turn later, between two that wait for it.
            asyncio.get_running_loop().call_soon(tasks.create_task, work(number + 1))
    assert order == asked
    assert len(order) == 60


async def is_about_to_yield(make: Make) -> tuple[AnySemaphore, "asyncio.Task[Permit]"]:
    """A semaphore with a lease, and a task that takes it and lets the loop run."""
    sem = make(1, **KEEPS)
    await warm(sem)
    for _ in range(IN_A_ROW - 1):
        async with sem:
            pass
    return sem, asyncio.create_task(sem.acquire())


async def test_cancelled_while_it_lets_the_loop_run_it_leaks_nothing(
    make: Make, other: Client
) -> None:
    sem, task = await is_about_to_yield(make)
    await asyncio.sleep(0)
    assert not task.done()
    assert not kept_by(sem), "it has not taken the lease: nothing is shown"
    await cancelled(task)
    assert task.cancelled()
    await all_free(sem)
    async with make(1, client=other).acquire(timeout=2):
        pass
    async with sem.acquire(timeout=2):
        pass


async def test_closed_while_it_lets_the_loop_run_it_is_refused(
    make: Make, client: Client, other: Client
) -> None:
    _, task = await is_about_to_yield(make)
    closing = asyncio.create_task(aclose(client))
    with pytest.raises(SemaphoreClosed):
        await task
    await closing
    assert await make(1, client=other).available() == 1


async def test_a_kept_lease_counts_as_held(make: Make, other: Client) -> None:
    sem = make(2, **KEEPS)
    await warm(sem)
    assert await make(2, client=other).available() == 1
    assert (await sem.status()).held == 1


async def test_status_says_which_processes_may_keep_leases(make: Make, other: Client) -> None:
    sem, there = make(2, **KEEPS), make(2, client=other, linger=0)
    await warm(sem)
    [holder] = (await there.status()).holders
    assert holder.client.reuses_leases
    async with there.acquire(), there.acquire(timeout=1):  # it is recalled for this one
        clients = [holder.client for holder in (await sem.status()).holders]
    assert not any(client.reuses_leases for client in clients)


async def test_an_unused_lease_goes_back_in_time(make: Make) -> None:
    sem = make(1, linger=0.2, lease=9.0)
    await warm(sem)
    await all_free(sem, within=5)


async def test_without_linger_no_lease_is_kept(make: Make) -> None:
    sem = make(1, linger=0)
    async with sem:
        pass
    assert not kept_by(sem)
    await all_free(sem)


async def test_a_waiter_of_this_process_gets_the_lease(make: Make) -> None:
    """The oldest one, without a command for it."""
    sem = make(1, **KEEPS)
    await warm(sem)
    order: list[int] = []
    token = 0

    async def work(number: int) -> None:
        async with sem:
            order.append(number)

    async with sem as permit:
        token = lease_of(permit).token
        tasks = [asyncio.create_task(work(number)) for number in range(4)]
        await waiting(sem, 4)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert [lease.token for lease in kept_by(sem)] == [token]
    await until(lambda: not remote_of(sem).state.leaving, "the requests are abandoned")
    await all_free_but_kept(sem, 1)


async def all_free_but_kept(sem: AnySemaphore, count: int) -> None:
    async def so() -> bool:
        status = await sem.status(0)
        return (status.held, status.waiting) == (count, 0)

    await until(so, "nothing but the kept leases is left")


async def test_a_waiter_that_does_not_fit_is_not_passed_over(make: Make) -> None:
    """It is heavier: the leases go back, so that it does not starve."""
    sem = make(2, **KEEPS)
    await warm(sem, 2)
    async with sem, sem:
        heavy = await queue_up(sem, permits=2)
        light = asyncio.create_task(sem.acquire())
    permit = await soon(heavy)
    assert not light.done()
    await permit.release()
    await (await soon(light)).release()


async def test_a_request_that_cannot_use_a_kept_lease_has_it_sent_back(make: Make) -> None:
    """Before it, so that it need not wait."""
    sem = make(2, **KEEPS)
    await warm(sem, 2)
    async with sem.acquire(permits=2, timeout=0):
        assert not kept_by(sem)


async def test_a_waiter_that_is_cancelled_when_it_gets_the_lease_gives_it_back(
    make: Make, other: Client
) -> None:
    sem = make(1, **KEEPS)
    await warm(sem)
    async with sem:
        waiter = await queue_up(sem)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    async with make(1, client=other).acquire(timeout=2):
        pass


# -- an id or a token that was read belongs to one permit


@pytest.mark.parametrize("fact", ["id", "fencing_token"])
async def test_what_was_read_is_never_shared(make: Make, fact: str) -> None:
    sem = make(1, **KEEPS)
    seen: set[object] = set()
    for _ in range(5):
        async with sem as permit:
            seen.add(getattr(permit, fact))
        assert not kept_by(sem)
    assert len(seen) == 5


async def test_whose_loss_is_awaited_is_not_shared(make: Make) -> None:
    """The loss would be the next permit's."""
    sem = make(1, **KEEPS)
    await warm(sem)
    async with sem as first:
        loss = in_background(first.wait_lost())
        await asyncio.sleep(0)
    async with sem.acquire(cancel_on_loss=False) as second:
        assert await sem.release(second.id)
        await soon(second.wait_lost())
        await asyncio.sleep(0)
        assert not loss.done()
    await cancelled(loss)


async def test_a_permit_whose_block_was_left_is_over(make: Make) -> None:
    """Its lease may be in use again."""
    sem = make(1, **KEEPS)
    async with sem as first:
        pass
    async with sem as second:
        assert not first.lost
        assert first.expires_in == -math.inf
        with pytest.raises(PermitLost):
            first.check()
        assert await first.release() is False
        del first
        gc.collect()
        second.check()
    assert len(kept_by(sem)) == 1


async def test_release_is_confirmed_and_goes_to_the_server(make: Make, other: Client) -> None:
    sem = make(1, **KEEPS)
    permit = await sem.acquire()
    assert await permit.release()
    assert await make(1, client=other).available() == 1


# -- another process wants it


@pytest.mark.parametrize("theirs", [{}, KEEPS], ids=["plain", "lingers"])
async def test_a_kept_lease_is_recalled_when_another_process_waits(
    make: Make, other: Client, theirs: dict[str, Any]
) -> None:
    sem, there = make(2, **KEEPS), make(2, client=other, **theirs)
    await warm(sem, 2)
    async with there.acquire(timeout=2), there.acquire(timeout=2):
        assert not kept_by(sem)


async def test_an_attempt_that_does_not_wait_recalls(make: Make, other: Client) -> None:
    """It sees *full*; the next one does not."""
    sem, there = make(1, **KEEPS), make(1, client=other)
    await warm(sem)
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0)
    await all_free(sem)
    async with there.acquire(timeout=0):
        pass


async def test_a_used_lease_goes_to_a_waiter_of_another_process(make: Make, other: Client) -> None:
    sem, there = make(1, **KEEPS), make(1, client=other)
    await warm(sem)
    async with sem:
        waiter = await queue_up(there)
        right = remote_of(sem).state.right
        await until(lambda: right.until < 0, "the right is recalled", within=1.0)
    permit = await soon(waiter)
    assert not kept_by(sem)
    await permit.release()


async def test_fair_order_holds_across_processes(client: Client, other: Client, name: str) -> None:
    here = FairSemaphore(client, name, 1, linger=3.0, lease=9.0)
    there = FairSemaphore(other, name, 1)
    await warm(here)
    order: list[str] = []

    async def work(sem: AnySemaphore, who: str) -> None:
        async with sem:
            order.append(who)

    async with here:
        tasks: list[asyncio.Task[None]] = []
        for count, (sem, who) in enumerate([(here, "a"), (there, "b"), (here, "c")], 1):
            tasks.append(asyncio.create_task(work(sem, who)))
            await waiting(here, count)
    await soon(asyncio.gather(*tasks), 5)
    assert order == ["a", "b", "c"]


# -- limits and administrators


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("limit", [0, 1])
async def test_a_lowered_limit_ends_the_right(
    make: Make, other: Client, limit: int, same_process: bool
) -> None:
    sem, there = make(2, **KEEPS), make(2, client=other)
    await warm(sem, 2)
    await (sem if same_process else there).set_limit(limit)
    await all_free(sem)
    with pytest.raises(AcquireTimeout):
        async with sem.acquire(permits=limit + 1, timeout=0.2):
            pytest.fail("it is above the limit")


@pytest.mark.parametrize("same_process", [True, False])
async def test_a_deletion_takes_kept_leases(make: Make, other: Client, same_process: bool) -> None:
    sem, there = make(1, **KEEPS), make(1, client=other)
    await warm(sem)
    await (sem if same_process else there).delete()
    await until(lambda: not kept_by(sem), "the kept lease is gone")
    async with there.acquire(timeout=2), asyncio.timeout(2):
        with pytest.raises(AcquireTimeout):
            await sem.acquire(timeout=0)


@pytest.mark.parametrize("same_process", [True, False])
async def test_a_kept_lease_may_be_revoked(make: Make, other: Client, same_process: bool) -> None:
    sem, there = make(1, **KEEPS), make(1, client=other)
    await warm(sem)
    [lease] = kept_by(sem)
    assert await (sem if same_process else there).release(lease.id)
    await until(lambda: not kept_by(sem), "the kept lease is dropped", within=1)
    assert await there.available() == 1
    async with sem.acquire(timeout=2):
        pass


async def test_what_was_detached_or_adopted_is_not_reused(make: Make, other: Client) -> None:
    sem, there = make(1, **KEEPS), make(1, client=other, **KEEPS)
    await warm(sem)
    async with sem as permit:
        identity = await permit.detach()
    assert not kept_by(sem)
    async with there.adopt(identity):
        pass
    assert not kept_by(there)
    await all_free(sem)


async def test_a_detach_that_was_cancelled_leaves_nothing_to_reuse(make: Make) -> None:
    """It may be carried out yet, and shorten the lease."""
    sem = make(1, **KEEPS)
    await warm(sem)
    async with sem as permit:
        detaching = asyncio.create_task(permit.detach())
        await asyncio.sleep(0)
        await cancelled(detaching)
        assert detaching.cancelled()
    assert not kept_by(sem)


async def test_aclose_sends_kept_leases_back(make: Make, client: Client, other: Client) -> None:
    await warm(make(1, **KEEPS))
    await aclose(client)
    assert await make(1, client=other).available() == 1


# -- observers, options


class Watches(Observer):
    """Notes of each permit whether its lease was reused."""

    def __init__(self) -> None:
        self.reused: list[bool] = []

    def granted(self, event: Granted) -> None:
        self.reused.append(event.reused)


async def test_observers_see_each_permit(make: Make) -> None:
    sem = make(1, **KEEPS)
    with observe(watches := Watches()):
        for _ in range(3):
            async with sem:
                pass
    assert watches.reused == [False, True, True]


@pytest.mark.parametrize("linger", [-1.0, 4.0, math.inf, math.nan, "1", True])
def test_a_bad_linger_is_refused(linger: Any) -> None:
    refused = pytest.raises((ValueError, TypeError), match="linger")
    options: dict[str, Any] = {"lease": 9.0, "linger": linger}
    with refused:
        FairSemaphore(MemoryBackend(), "jobs", 1, **options)
    with refused:
        Mutex(MemoryBackend(), "jobs", **options)
    with refused:
        SemaphoreGroup(MemoryBackend(), "jobs", 1, **options)["x"]


@pytest.mark.parametrize("limit", [1, 3])
async def test_under_load_the_limit_holds(
    kind: Kind, client: Client, other: Client, name: str, limit: int
) -> None:
    """Two processes, one of which lingers, or both do, in bursts with pauses."""
    draw = random.Random(limit)
    held = most = 0

    async def work(sem: AnySemaphore) -> None:
        nonlocal held, most
        for _ in range(40):
            weight = draw.choice((1, 1, 1, limit))
            async with sem.acquire(permits=weight, timeout=20):
                held += weight
                most = max(most, held)
                await asyncio.sleep(draw.choice((0, 0, 0, 0.001)))
                held -= weight
            await asyncio.sleep(draw.choice((0, 0, 0.002)))

    here = kind(client, name, limit, **KEEPS)
    with observe(watches := Watches()):
        for there in (kind(other, name, limit), kind(other, name, limit, **KEEPS)):
            await asyncio.gather(*(work(here) for _ in range(4)))
            await asyncio.gather(*(work(sem) for sem in (here, there) * 4))
            await asyncio.sleep(1.1)  # the pause after a recall: the right may be asked for again
            await asyncio.gather(*(work(there) for _ in range(4)))
    assert any(watches.reused), "no lease was reused: nothing is shown"
    assert most == limit
    assert held == 0
