"""Who is served next, and how soon."""

# ruff: noqa: ASYNC220 - starting a process takes a moment, and nobody is kept waiting

import asyncio
import signal
import subprocess
import sys
import time

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from redsem_async._hub.claim import State
from redsem_async._hub.pipeline import Pipeline
from redsem_async._protocol.pushes import Hint
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make
from tests.harness.wait import all_free, cancelled, queue_up, soon, until

HOLDER = """
import asyncio, sys
from redis.asyncio import Redis
import redsem_async

async def main(kind, url, name, lease):
    sem = getattr(redsem_async, kind)(Redis.from_url(url), name, 1, lease=float(lease))
    async with sem:
        print("held", flush=True)
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_fair_is_first_come_first_served_across_clients(
    make_fair: Make, other: Client
) -> None:
    """Two clients are two processes to the server: the line is one all the same."""
    here, there = make_fair(1), make_fair(1, client=other)
    order: list[int] = []

    async def work(number: int, waiter: asyncio.Task[Permit]) -> None:
        async with await waiter:
            order.append(number)

    first = await here.acquire()
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            # Two of the one, then two of the other: no client may serve its own first.
            waiter = await queue_up(there if number % 4 < 2 else here)
            group.create_task(work(number, waiter))
        await first.release()
    assert order == list(range(10))
    await all_free(here)


async def test_fair_grants_tokens_in_the_order_of_the_line(make_fair: Make, other: Client) -> None:
    """A fencing token that was drawn later belongs to a later holder."""
    here, there = make_fair(1), make_fair(1, client=other)
    first = await here.acquire()
    waiters = [await queue_up(there if number % 2 else here) for number in range(6)]
    tokens = [first.fencing_token]
    await first.release()
    for waiter in waiters:
        permit = await soon(waiter)
        tokens.append(permit.fencing_token)
        await permit.release()
    assert tokens == sorted(set(tokens))


async def test_fair_lets_nobody_pass_a_heavy_head(make_fair: Make, other: Client) -> None:
    """That is what keeps the heavy one from starving."""
    here, there = make_fair(4), make_fair(4, client=other)
    held = [await here.acquire() for _ in range(3)]
    heavy = await queue_up(here, permits=3)
    light = await queue_up(there)
    assert await here.available() == 1
    assert await there.try_acquire() is None  # a newcomer waits behind them too
    await held[0].release()
    await asyncio.sleep(0.05)
    assert not heavy.done()
    assert not light.done()
    await held[1].release()
    heavy_permit = await soon(heavy)
    assert not light.done()
    await held[2].release()
    await (await soon(light)).release()
    await heavy_permit.release()
    await all_free(here)


async def test_zset_gives_to_whoever_asks_when_there_is_room(client: Client, name: str) -> None:
    """Room for one is used, although somebody waits for more than that."""
    sem = Semaphore(client, name, 4)
    held = [await sem.acquire() for _ in range(3)]
    heavy = await queue_up(sem, permits=3)
    permit = await sem.try_acquire()
    assert permit is not None
    for other_permit in (*held, permit):
        await other_permit.release()
    await (await soon(heavy)).release()


async def test_zset_keeps_the_order_within_a_process(
    client: Client, other: Client, name: str
) -> None:
    """Who came first asks first, also when a hint comes while a later one is being written."""
    sem, away = Semaphore(client, name, 1, lease=30.0), Semaphore(other, name, 1, lease=30.0)
    holder = await away.acquire()
    first = await queue_up(sem)
    second = asyncio.create_task(sem.acquire())
    await asyncio.sleep(0)
    remote = sem._bound().remote
    assert len(remote.ledger.new) == 1, "it has nothing to write: nothing is shown"
    remote.push_received(Hint(name, 1), None)
    assert len(remote.ledger.new) == 2
    await holder.release()
    await (await soon(first)).release()
    await (await soon(second)).release()


async def test_zset_waiters_that_asked_apart_keep_their_order() -> None:
    """Each asks in a command of its own, and is told to wait on: the first stays the first."""
    backend = MemoryBackend()
    sem, away = Semaphore(backend, "jobs", 1), Semaphore(backend.peer(), "jobs", 1)
    holder = await away.acquire()
    tasks = [await queue_up(sem), await queue_up(sem)]
    remote = sem._bound().remote
    first, second = remote.ledger.waiting
    for claim in (first, second):  # the second asks while the first has no reply yet
        remote.waiters.hinted(1)
        assert isinstance(remote.writer, Pipeline)
        remote.writer.flush()
        assert claim.state is State.SENT
    await until(lambda: len(remote.ledger.waiting) == 2)
    assert list(remote.ledger.waiting) == [first, second]
    await holder.release()
    for task in tasks:
        await (await soon(task)).release()


async def test_the_fast_path_is_open_when_nobody_waits(make: Make) -> None:
    """With room and no line a permit takes one trip, also after others have waited."""
    sem = make(2)
    held = [await sem.acquire(), await sem.acquire()]
    waiter = await queue_up(sem)
    await held[0].release()
    await (await soon(waiter)).release()
    permit = await sem.try_acquire()
    assert permit is not None
    await permit.release()
    await held[1].release()


async def test_a_line_of_waiters_that_left_is_no_line(make: Make, other: Client) -> None:
    """Those who gave up are not in anybody's way."""
    here, there = make(1), make(1, client=other)
    first = await here.acquire()
    leaving = [await queue_up(here), await queue_up(there)]
    await cancelled(*leaving)
    await first.release()
    permit = await soon(there.acquire(), 0.5)
    await permit.release()


async def test_the_first_in_line_leaves_and_the_next_is_served(make: Make, other: Client) -> None:
    """Whoever leaves takes nobody's turn along."""
    here, there = make(1), make(1, client=other)
    first = await here.acquire()
    leaving, staying = await queue_up(here), await queue_up(there)
    await cancelled(leaving)
    await first.release()
    await (await soon(staying)).release()


async def test_the_heavy_head_leaves_and_the_next_is_served_at_once(
    make_fair: Make, other: Client
) -> None:
    """There was room for the next one all along: nothing else happens to wake it."""
    here, there = make_fair(2), make_fair(2, client=other)
    async with here:
        heavy = await queue_up(here, permits=2)
        light = await queue_up(there)
        await cancelled(heavy)
        await (await soon(light, 0.5)).release()


async def test_a_release_reaches_a_waiter_elsewhere_at_once(make: Make, other: Client) -> None:
    """By a message, not by somebody's polling."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    took: list[float] = []
    for _ in range(5):
        held = await here.acquire()
        waiter = await queue_up(there)
        start = time.monotonic()
        await held.release()
        permit = await soon(waiter)
        took.append(time.monotonic() - start)
        await permit.release()
    assert min(took) < 0.1
    assert max(took) < 1.0


async def test_waiters_in_two_clients_are_all_served(make: Make, other: Client) -> None:
    """No freed permit may lie idle while somebody waits for one."""
    here, there = make(3, lease=60.0), make(3, client=other, lease=60.0)

    async def work(sem: AnySemaphore) -> None:
        async with sem:
            await asyncio.sleep(0)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(work(here))
            group.create_task(work(there))
    await all_free(here)


async def test_an_expired_holder_gives_way(make: Make, other: Client) -> None:
    """A timer at the expiry wakes the next one: there is no message to wait for."""
    here, there = make(1, lease=30.0), make(1, client=other, lease=30.0)
    permit = await here.acquire()
    await permit.detach(0.4)  # as a holder that will never be heard of again
    start = time.monotonic()
    await (await soon(there.acquire())).release()
    assert 0.3 < time.monotonic() - start < 0.5


async def test_a_permit_that_ends_early_gives_way_to_who_waits_already(
    make: Make, other: Client
) -> None:
    """A waiter went to sleep until the lease's end: the expiry that came nearer must count."""
    here, there = make(1, lease=30.0), make(1, client=other, lease=30.0)
    permit = await here.acquire()
    waiter = await queue_up(there)
    await permit.detach(0.4)
    await (await soon(waiter, 1.5)).release()


async def test_an_expired_holder_gives_way_to_who_comes_later(make: Make) -> None:
    """With nobody in line, the next request finds the place free."""
    sem = make(1)
    permit = await sem.acquire()
    await permit.detach(0.05)

    async def is_free() -> bool:
        return await sem.available() == 1

    await until(is_free, within=0.5)
    await (await sem.acquire(timeout=0)).release()


async def test_a_killed_holder_gives_way_within_a_lease(
    kind: type[AnySemaphore], redis: Redis, server_url: str, name: str
) -> None:
    """A process that is killed has no time for manners."""
    lease = 0.6
    arguments = [sys.executable, "-c", HOLDER, kind.__name__, server_url, name, str(lease)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
            waiter = await queue_up(kind(redis, name, 1))
            await asyncio.sleep(lease)  # it is refreshed, so nobody gets in
            assert not waiter.done()
            holder.send_signal(signal.SIGKILL)
            start = time.monotonic()
            permit = await soon(waiter)
            assert time.monotonic() - start < lease + 0.1
            await permit.release()
        finally:
            holder.kill()


async def test_a_waiter_whose_process_was_killed_is_passed_over(
    redis: Redis, server_url: str, name: str
) -> None:
    """The head of the line may be dead: those behind it must not wait for it."""
    sem = FairSemaphore(redis, name, 1)
    first = await sem.acquire()
    arguments = [sys.executable, "-c", HOLDER, "FairSemaphore", server_url, name, "10"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as dead:
        try:

            async def it_waits() -> bool:
                return (await sem.status()).waiting == 1

            await until(it_waits)
            waiter = await queue_up(sem)
        finally:
            dead.kill()
    start = time.monotonic()
    await first.release()
    permit = await soon(waiter)
    assert time.monotonic() - start < 0.3
    await permit.release()


async def test_a_stopped_process_keeps_a_permit_that_it_was_handed_only_for_a_moment(
    redis: Redis, server_url: str, name: str
) -> None:
    """It is alive to the server, and hears nothing: that must not cost a whole lease."""
    sem = FairSemaphore(redis, name, 1, lease=20.0)
    first = await sem.acquire()
    arguments = [sys.executable, "-c", HOLDER, "FairSemaphore", server_url, name, "1.5"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as stopped:
        try:

            async def it_waits() -> bool:
                return (await sem.status()).waiting == 1

            await until(it_waits)
            waiter = await queue_up(sem)
            stopped.send_signal(signal.SIGSTOP)
            await first.release()
            await (await soon(waiter, 2.5)).release()
        finally:
            stopped.kill()


@pytest.mark.parametrize("count", [2_000])
async def test_a_long_line_is_served_to_its_end(make: Make, count: int) -> None:
    """Thousands of waiters, from few permits."""
    sem = make(10, lease=60.0)
    served = 0

    async def work() -> None:
        nonlocal served
        async with sem:
            served += 1

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())
    assert served == count
    await all_free(sem)
