"""Queues longer than one call looks through: they hide no request that can be served."""

import asyncio
from collections.abc import Callable

import pytest

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from tests.harness.clients import Client, Kind, key_of
from tests.harness.memory import Distant
from tests.harness.wait import cancelled, give_back, in_background, queue_up, soon, waiting
from tests.worlds.simulated_time import simulated

MANY = 1100  # more than one call of a script looks at
LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one

Waiters = list["asyncio.Task[Permit]"]
Two = Callable[[Kind, int], tuple[AnySemaphore, AnySemaphore]]


@pytest.fixture
def two(client: Client, other: Client) -> Two:
    """Makes two semaphores of one name, in two processes."""

    def make(kind: Kind, limit: int) -> tuple[AnySemaphore, AnySemaphore]:
        here, there = (kind(each, "jobs", limit, lease=LEASE) for each in (client, other))
        return here, there

    return make


async def join(semaphore: AnySemaphore, *, permits: int = 1) -> Waiters:
    """Have many wait, and all of them in line."""
    crowd = [in_background(semaphore.acquire(permits=permits)) for _ in range(MANY)]
    await waiting(semaphore, MANY, within=20)
    return crowd


@pytest.mark.fault(48)
@simulated
async def test_a_light_request_is_not_hidden_behind_heavy_ones(two: Two) -> None:
    """The limit was lowered below what they ask for, and may stay there for long."""
    here, there = two(FairSemaphore, 2)
    holder = await there.acquire(permits=2)
    crowd = await join(there, permits=2)
    light = await queue_up(here)
    await there.set_limit(1)
    assert await holder.release()
    permit = await soon(light)
    status = await here.status(MANY)
    assert (status.held, status.waiting) == (1, MANY)
    places = [waiter.position for waiter in status.waiters]
    assert places == sorted(places), "they are listed in the order of their tickets"
    # Newcomers pass, too; and once the limit is raised, the first of the heavy ones is served.
    await give_back(permit, here.acquire())
    await here.set_limit(None)
    first = await soon(crowd[0])
    assert not any(waiter.done() for waiter in crowd[1:])
    late = in_background(here.acquire())
    await give_back(first)
    second = await soon(crowd[1])
    assert not late.done(), "the one that came later waits for its turn"
    await give_back(second)
    await cancelled(late)


@pytest.mark.fault(48, 49)
@pytest.mark.parametrize("how", ["released", "expired"])
@simulated
async def test_semaphore_finds_the_request_that_fits_behind_many_that_do_not(
    two: Two, how: str
) -> None:
    """More of them than a call looks at: at once, and as often as something is free."""
    here, there = two(Semaphore, 3)
    kept, holder = await here.acquire(), await here.acquire(permits=2)
    crowd = await join(there, permits=3)
    middle = await queue_up(here, permits=2)
    light = [await queue_up(here) for _ in range(2)]
    if how == "released":
        assert await holder.release()
    else:
        await holder.detach(0.1)
    permit = await soon(middle)
    assert not any(waiter.done() for waiter in (*light, *crowd))
    assert await permit.release()
    permits = [await soon(waiter) for waiter in light]
    assert not any(waiter.done() for waiter in crowd)
    await give_back(*permits, kept, *crowd[:3])


@simulated
async def test_a_newcomer_passes_no_request_that_was_not_looked_at() -> None:
    """A call looks at part of the line, and knows nothing of the requests behind that."""
    far = Distant()
    here, there = (FairSemaphore(each, "jobs", 2, lease=LEASE) for each in (far, far.peer()))
    holder = await there.acquire(permits=2)
    await join(here, permits=2)
    light = await queue_up(here)
    far.delay = 1.0  # nothing looks at the line before the newcomer does
    far._store.redis.command("SET", key_of(here, "limit"), 1)
    await holder.detach(0.1)
    await asyncio.sleep(0.1)
    assert await there.try_acquire() is None
    permit = await light
    assert (await there.status(0)).held == 1
    await give_back(permit)


@pytest.mark.fault(48)
@simulated
async def test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed() -> None:
    """And one that was only cut off asks again with its age, in the order of its requests."""
    far = Distant()
    clients = far, far.peer(), far.peer()
    dead, here, there = (FairSemaphore(each, "jobs", 1, lease=LEASE) for each in clients)
    holder = await here.acquire()
    crowd = await join(dead)
    waiters = [await queue_up(there) for _ in range(2)]
    far.cut_off()
    assert await holder.release()
    permit = await waiters[0]
    # It is back: all of its requests are older than what waits here.
    far.refusing = False
    await waiting(here, MANY + 1)
    assert await permit.release()
    first = await crowd[0]
    assert not waiters[1].done()
    await give_back(first)
    await cancelled(waiters[1])


@simulated
async def test_under_load_the_order_is_that_of_the_tickets(two: Two) -> None:
    """First come, first served, across processes, also where some leave the queue."""
    here, there = two(FairSemaphore, 1)
    holder = await there.acquire()
    served: list[tuple[int, int]] = []

    async def work(semaphore: AnySemaphore, number: int) -> None:
        async with semaphore.acquire() as permit:
            served.append((permit.fencing_token, number))

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        tasks.append(in_background(work((here, there)[number * 7 % 5 % 2], number)))
        await waiting(here, number + 1)
    gone = range(60)[5::9]
    await cancelled(*(tasks[number] for number in gone))
    assert await holder.release()
    await asyncio.wait(tasks)
    assert [number for _, number in served] == [n for n in range(60) if n not in gone]
    assert served == sorted(set(served))
