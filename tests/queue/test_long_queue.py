"""Queues longer than one call looks through: they hide no request that can be served."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from tests.harness.clients import Kind, cut_off, key_of
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    all_free,
    cancelled,
    give_back,
    in_background,
    soon,
    until,
    waiting,
    waits_in_queue,
)

MANY = 1100  # more than one call of a script looks at
LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one

Waiters = list["asyncio.Task[Permit]"]
Two = Callable[[Kind, int], tuple[AnySemaphore, AnySemaphore]]


@pytest.fixture
def two(client_a: Redis, client_b: Redis) -> Two:
    """Makes two semaphores of one name, in two processes."""

    def make(kind: Kind, limit: int) -> tuple[AnySemaphore, AnySemaphore]:
        here, there = (kind(redis, "jobs", limit, lease=LEASE) for redis in (client_a, client_b))
        return here, there

    return make


@pytest.fixture
async def crowd() -> AsyncIterator[Waiters]:
    """Waiters that the test leaves behind."""
    waiters: Waiters = []
    yield waiters
    await cancelled(*waiters)


async def join(crowd: Waiters, semaphore: AnySemaphore, *, permits: int = 1) -> None:
    """Have many wait, and all of them in line."""
    crowd += [in_background(semaphore.acquire(permits=permits)) for _ in range(MANY)]

    async def in_line() -> bool:
        return (await semaphore.status(0)).waiting == MANY

    await until(in_line, "all of them wait", within=20)


@pytest.mark.fault(48)
async def test_a_light_request_is_not_hidden_behind_heavy_ones(two: Two, crowd: Waiters) -> None:
    """The limit was lowered below what they ask for, and may stay there for long."""
    here, there = two(FairSemaphore, 2)
    holder = await there.acquire(permits=2)
    await join(crowd, there, permits=2)
    light = await waits_in_queue(here, place=MANY + 1)
    await there.set_limit(1)
    assert await holder.release()
    permit = await asyncio.wait_for(light, 1.0)
    status = await here.status(MANY)
    assert (status.held, status.waiting) == (1, MANY)
    places = [waiter.position for waiter in status.waiters]
    assert places == sorted(places), "they are listed in the order of their tickets"
    # Newcomers pass, too; and once the limit is raised, the first of the heavy ones is served.
    await give_back(permit)
    await give_back(await here.acquire(timeout=1.0))
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
async def test_semaphore_finds_the_request_that_fits_behind_many_that_do_not(
    two: Two, crowd: Waiters, how: str
) -> None:
    """More of them than a call looks at: at once, and as often as something is free."""
    here, there = two(Semaphore, 3)
    kept, holder = await here.acquire(), await here.acquire(permits=2)
    await join(crowd, there, permits=3)
    middle = await waits_in_queue(here, place=MANY + 1, permits=2)
    light = [await waits_in_queue(here, place=MANY + 2 + place) for place in range(2)]
    if how == "released":
        assert await holder.release()
    else:
        await holder.detach(0.1)
    permit = await asyncio.wait_for(middle, 2.0)
    assert not any(waiter.done() for waiter in (*light, *crowd))
    assert await permit.release()
    permits = [await asyncio.wait_for(waiter, 1.0) for waiter in light]
    assert not any(waiter.done() for waiter in crowd)
    await give_back(*permits, kept, *crowd[:3])


@pytest.mark.fault(48, 49)
async def test_semaphore_goes_on_where_it_stopped_with_many_different_weights(
    two: Two, crowd: Waiters
) -> None:
    """What is known of them is bounded, and a call begins where the last one stopped.

    An attack found it: the client asked again without end, and no request was served.
    """
    here, there = two(Semaphore, 100)
    kept, holder = await here.acquire(permits=50), await here.acquire(permits=50)
    await join(crowd, there, permits=60)
    middle = [await waits_in_queue(there, place=MANY + 1 + n, permits=50 - n) for n in range(12)]
    assert await holder.release()
    permit = await asyncio.wait_for(middle[0], 2.0)
    assert not any(waiter.done() for waiter in (*middle[1:], *crowd))
    await cancelled(*middle[1:])
    await give_back(permit, kept)


async def test_a_newcomer_passes_no_request_that_was_not_looked_at(
    proxied: Redis, proxy: Proxy, two: Two, admin: Redis, crowd: Waiters
) -> None:
    """A call looks at part of the line, and knows nothing of the requests behind that."""
    here = FairSemaphore(proxied, "jobs", 2, lease=LEASE)
    holding, there = two(FairSemaphore, 2)
    holder = await holding.acquire(permits=2)
    await join(crowd, here, permits=2)
    light = await waits_in_queue(here, place=MANY + 1)
    _ = proxy.stop("heartbeat")  # nothing looks at the line before the newcomer does
    await admin.set(key_of(here, "limit"), 1)
    await holder.detach(0.1)

    async def nothing_is_held() -> bool:
        return (await there.status(0)).held == 0

    await until(nothing_is_held, "it has expired")
    assert await there.try_acquire() is None
    permit = await asyncio.wait_for(light, 5.0)
    assert (await there.status(0)).held == 1
    proxy.drop()
    assert await permit.release()


@pytest.mark.fault(48)
async def test_a_process_that_lives_is_not_hidden_behind_one_that_was_killed(
    proxied: Redis, proxy: Proxy, two: Two, admin: Redis, crowd: Waiters
) -> None:
    """And one that was only cut off asks again with its age, in the order of its requests."""
    dead = FairSemaphore(proxied, "jobs", 1, lease=LEASE)
    here, there = two(FairSemaphore, 1)
    holder = await here.acquire()
    await join(crowd, dead)
    waiters = [await waits_in_queue(there, place=MANY + 1 + i) for i in range(2)]
    await cut_off(proxy, here, admin)
    assert await holder.release()
    permit = await asyncio.wait_for(waiters[0], 1.0)
    # It is back: all of its requests are older than what waits here.
    proxy.refusing = False

    async def is_back() -> bool:
        connected = len(proxy.operations("heartbeat")) >= 2
        return connected and (await here.status(0)).waiting == MANY + 1

    await until(is_back, "it asks about its waiters", within=10)
    assert await permit.release()
    first = await soon(crowd[0])
    assert not waiters[1].done()
    await give_back(first)
    await cancelled(waiters[1])


@pytest.mark.release
async def test_a_long_line_is_served_on_although_a_detach_comes_behind_the_limit(
    two: Two,
) -> None:
    """The limit's answer says that there is more to serve; a detach has waited for it."""
    here, there = two(FairSemaphore, 300)
    permit = await here.acquire()
    await here.set_limit(0)
    waiters = [in_background(there.acquire()) for _ in range(200)]
    await waiting(here, 200)
    await asyncio.gather(here.set_limit(300), permit.detach(60))
    async with asyncio.timeout(3.0):
        permits = await asyncio.gather(*waiters)
    await give_back(*permits)


@pytest.mark.release
async def test_a_request_for_very_many_permits_waits_as_others_do(kind: Kind, two: Two) -> None:
    """Its weight is written in full: no script fails on it."""
    here, there = two(kind, 10**15)
    holder = await there.acquire()
    waiter = await waits_in_queue(here, permits=10**15)
    assert await holder.release()
    async with await soon(waiter):
        assert (await there.status()).held == 10**15


async def test_under_load_the_order_is_that_of_the_tickets(two: Two, admin: Redis) -> None:
    """First come, first served, across processes, also where some leave the queue."""
    here, there = two(FairSemaphore, 1)
    holder = await there.acquire()
    served: list[tuple[int, int]] = []

    async def work(semaphore: AnySemaphore, number: int) -> None:
        async with semaphore.acquire(timeout=30) as permit:
            served.append((number, permit.fencing_token))

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        tasks.append(in_background(work((here, there)[number * 7 % 5 % 2], number)))
        await waiting(here, number + 1)
    queue = await admin.zrange(key_of(here, "queue"), 0, -1, withscores=True)
    tickets = [entry[1] for entry in queue]
    assert tickets == sorted(set(tickets))
    assert len(tickets) == 60
    gone = range(60)[5::9]
    for number in gone:
        tasks[number].cancel()
    assert await holder.release()
    await asyncio.wait(tasks)
    assert [number for number, _ in served] == [n for n in range(60) if n not in gone]
    tokens = [token for _, token in served]
    assert tokens == sorted(set(tokens))
    await all_free(here)
