"""Which waiter is served next, and how soon."""

import asyncio

import pytest

from redsem_async import FairSemaphore, Permit, QueueFull, Semaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make, MakePair, key_of
from tests.harness.memory import Distant
from tests.harness.wait import all_free, cancelled, give_back, queue_up, soon, until, waiting
from tests.worlds.simulated_time import simulated

# -- order


async def test_fair_no_request_passes_a_heavy_head(pair: MakePair) -> None:
    """That keeps the heavy request from starving. Once it has left, the next is served at once."""
    here, there = pair(4)
    held = [await here.acquire() for _ in range(3)]
    heavy = await queue_up(here, permits=3)
    light = await queue_up(there)
    assert await here.available() == 1
    assert await there.try_acquire() is None  # a newcomer waits behind them too
    await held[0].release()
    assert (await here.status()).waiting == 2
    await held[1].release()
    served = await soon(heavy)
    assert not light.done()
    await give_back(served, held[2], light)
    kept = await here.acquire(permits=2)
    heavy, light = await queue_up(here, permits=3), await queue_up(there)
    await cancelled(heavy)
    await give_back(light, kept)


async def test_a_head_start_counts_as_time_that_was_waited(pair: MakePair) -> None:
    """Of two with the same head start the older is first."""
    here, there = pair(1)
    first = await here.acquire()
    plain = await queue_up(there)
    small = await queue_up(here, ahead=60.0)
    great = await queue_up(there, ahead=3600.0)
    again = await queue_up(here, ahead=60)
    await first.release()
    order = (great, small, again, plain)
    for served, waiter in enumerate(order):
        permit = await soon(waiter)
        assert not any(other.done() for other in order[served + 1 :])
        await permit.release()


async def test_a_head_start_is_finite(make: Make, client: MemoryBackend) -> None:
    sem = make(1)
    first = await sem.acquire()
    plain = await queue_up(sem)
    client.advance(2.5)
    late = await queue_up(sem, ahead=2.0)
    await give_back(first, plain, late)


@pytest.mark.fault(19)
@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore], ids=["zset", "fair"])
@simulated
async def test_a_process_that_was_cut_off_keeps_its_place_to_a_round_trip(kind: Kind) -> None:
    """Its request leaves the queue, and it asks again with its age, which no bound refuses."""
    far = Distant()
    absent, here = (kind(each, "jobs", 1, lease=30.0, max_waiters=3) for each in (far, far.peer()))
    holder = await here.acquire()
    oldest = await queue_up(absent)
    await asyncio.sleep(0.06)  # no release lets its own process pass from then on (zset)
    younger = [await queue_up(here) for _ in range(2)]
    far.cut_off()
    await give_back(holder)
    permit = await soon(younger[0])
    redis = far._store.redis
    assert redis.command("ZCARD", key_of(here, "queue")) == 1, "it is in nobody's way"
    younger += [await queue_up(here) for _ in range(2)]
    with pytest.raises(QueueFull):
        await here.acquire()
    far.refusing = False
    await waiting(here, 4)
    await give_back(permit)
    permit = await soon(oldest)
    assert not any(waiter.done() for waiter in younger[1:])
    await give_back(permit, *younger[1:])


@pytest.mark.fault(30)
@simulated
async def test_a_queue_that_is_lost_is_asked_for_again_in_its_order(
    pair: MakePair, client: MemoryBackend
) -> None:
    """Each request has its age, to a round trip, whichever heartbeat is the first."""
    here, there = pair(1, lease=3.0)
    holder = await here.acquire()
    waiters: list[asyncio.Task[Permit]] = []
    for each in (there, here, there):
        waiters.append(await queue_up(each))
        await asyncio.sleep(0.2)
    assert client._store.redis.command("DEL", key_of(here, "queue")) == 1
    await waiting(here, 3)
    await give_back(holder)
    for place, waiter in enumerate(waiters):
        permit = await soon(waiter)
        assert not any(later.done() for later in waiters[place + 1 :])
        await permit.release()


# -- Semaphore: a request that does not fit is passed over


async def test_semaphore_serves_the_oldest_that_fits(semaphore_pair: MakePair) -> None:
    """Across processes, and heavy requests are served in their order once there is room."""
    here, there = semaphore_pair(4)
    held = await here.acquire(permits=3), await here.acquire()
    heavy = [await queue_up(here, permits=3), await queue_up(there, permits=2)]
    light = [await queue_up(there), await queue_up(here)]
    assert await held[1].release()
    first = await soon(light[0])
    assert not any(waiter.done() for waiter in (*heavy, light[1]))
    assert await held[0].release()
    third, last = await soon(heavy[0]), await queue_up(here)
    assert not any(waiter.done() for waiter in (heavy[1], light[1], last))
    assert await first.release()
    fourth = await soon(light[1])
    await give_back(third, heavy[1], last, fourth)
    await all_free(here)


async def test_by_clocks_of_clients_semaphore_serves_the_oldest_of_all_processes(
    semaphore_pair: MakePair,
) -> None:
    """They may differ by more than the oldest is to wait for. An attack found it."""
    here, there = semaphore_pair(1, clock="local")
    await give_back(await here.acquire(), await queue_up(there), await queue_up(here))


@pytest.mark.parametrize("where", ["in one process", "in two processes"])
async def test_semaphore_passes_over_a_client_with_a_lower_limit(
    client: Client, other: Client, where: str
) -> None:
    """As in a deployment that changes the limit, while both are in use."""
    narrow = Semaphore(client, "jobs", 1)
    wide = Semaphore(client if where == "in one process" else other, "jobs", 2)
    held = await wide.acquire(), await wide.acquire()
    older, younger = await queue_up(narrow), await queue_up(wide)
    await give_back(held[0])
    permit = await soon(younger)
    await give_back(held[1])
    assert (await wide.status()).waiting == 1
    await give_back(permit, older)


async def test_max_waiters_bounds_the_queue_of_all_processes(pair: MakePair) -> None:
    """Beyond it an error comes at once, with an estimate of when to come back."""
    here, there = pair(1, max_waiters=2)
    held = await here.acquire()
    waiters = [await queue_up(there), await queue_up(here)]
    for sem in (here, there):
        with pytest.raises(QueueFull) as caught:
            await sem.acquire(timeout=30.0)
        assert (caught.value.name, caught.value.max_waiters) == (sem.name, 2)
        assert caught.value.retry_after >= 0
    await cancelled(waiters.pop())
    await here.status()  # its leaving has arrived, so there is a place again
    await give_back(held, *waiters, await queue_up(there))


async def test_the_bound_holds_for_requests_made_together(make: Make) -> None:
    sem = make(1, max_waiters=3)
    async with sem:
        tasks = [asyncio.create_task(sem.acquire()) for _ in range(10)]
        await until(lambda: sum(task.done() for task in tasks) == 7)
        refused = [task.exception() for task in tasks if task.done()]
        assert [type(error) for error in refused] == [QueueFull] * 7
        await cancelled(*tasks)


# -- how soon


@simulated
async def test_a_release_reaches_a_waiter_elsewhere_at_once(pair: MakePair) -> None:
    """By a message: nothing polls."""
    here, there = pair(1, lease=60.0)
    loop = asyncio.get_running_loop()
    held = await here.acquire()
    waiter = await queue_up(there)
    start = loop.time()
    await give_back(held, waiter)
    assert loop.time() - start < 0.001


@simulated
async def test_an_expired_holder_gives_way(pair: MakePair) -> None:
    """A timer at the expiry wakes the next one: there is no message to wait for.

    Nor does a detach, whose reply says nothing of it, make waiters forget when that is.
    """
    here, there = pair(2, lease=30.0)
    loop = asyncio.get_running_loop()
    await (await here.acquire()).detach(0.4)  # as a holder that has crashed
    permit = await there.acquire()
    waiter = await queue_up(there)
    await permit.detach(20)
    await give_back(await waiter)
    assert 0.4 <= loop.time() < 0.45


async def test_a_permit_that_is_given_back_at_once_needs_no_refresh() -> None:
    """Contended work that is short costs two commands, and not three."""
    far = Distant()
    there, here = (FairSemaphore(each, "jobs", 1) for each in (far, far.peer()))
    for _ in range(5):
        permit = await here.acquire()
        await give_back(permit, await queue_up(there))
    assert (far.asked("release"), far.asked("refresh")) == (5, 0)
