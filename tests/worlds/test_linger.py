"""`linger` in simulated time: what a moment decides, and what only hours would show."""

import asyncio
import itertools
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, aclose
from redsem_async._hub.reuse import IN_A_ROW
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async.observer import Granted, Observer, Refreshed, observe
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Kind
from tests.harness.wait import cancelled, in_background
from tests.worlds.simulated_time import Distant, loop_of_test, simulated, stall

KEEPS: dict[str, Any] = {"linger": 20.0, "lease": 60.0}  # refreshed every 20 s
BRIEF: dict[str, Any] = {"linger": 1.0, "lease": 3.0}  # refreshed every second


class Watches(Observer):
    """Notes which hubs were granted permits, which were given leases again, and refreshes."""

    def __init__(self) -> None:
        self.hubs: list[str] = []
        self.reused: list[float] = []  # when
        self.reuses: asyncio.Event = asyncio.Event()
        self.refreshed_at: list[tuple[int, float]] = []  # token and time

    def granted(self, event: Granted) -> None:
        self.hubs.append(event.permit_id.partition(".")[0])
        if event.reused:
            self.reused.append(loop_of_test().now)
            self.reuses.set()

    def refreshed(self, event: Refreshed) -> None:
        self.refreshed_at.append((event.fencing_token, loop_of_test().now))


async def use(sem: AnySemaphore, seconds: float = 0.0) -> None:
    async with sem:
        await asyncio.sleep(seconds)


def kept_of(sem: AnySemaphore) -> list[Any]:
    return sem._bound().remote.state.idle


async def use_on_and_on(sem: AnySemaphore) -> None:
    while True:
        await use(sem, 0.01)


async def is_served_beside(sem: AnySemaphore, there: AnySemaphore, watches: Watches) -> None:
    """*there* gets a permit while *sem* is used on and on, with a lease that is used again."""
    using = in_background(use_on_and_on(sem))
    await asyncio.sleep(1.0)
    assert watches.reused, "no lease is reused: nothing is shown"
    async with there.acquire(timeout=1.0):
        pass
    await cancelled(using)


# -- the right ends with the hub's id, and with the subscription


@simulated
async def test_another_process_is_served_after_an_idle_close(kind: Kind) -> None:
    """A recall would go to an id that this process has no more."""
    memory = MemoryBackend()
    sem, there = kind(memory, "jobs", 1, linger=1.0, lease=600.0), kind(memory.peer(), "jobs", 1)
    with observe(watches := Watches()):
        await use(sem)
        await asyncio.sleep(20.0)
        await is_served_beside(sem, there, watches)
        assert len(set(watches.hubs)) == 3, "the connection was not closed: nothing is shown"


@simulated
async def test_another_process_is_served_after_a_subscription_has_ended(kind: Kind) -> None:
    """Of a process that had nothing to do then. The recall is lost, and does not come again."""
    memory = MemoryBackend()
    client = Distant(memory)
    sem = kind(client, "jobs", 1, linger=1.0, lease=600.0)
    there, third = kind(memory.peer(), "jobs", 1), kind(memory.peer(), "jobs", 1)
    with observe(watches := Watches()):
        await use(sem)
        await asyncio.sleep(2.0)
        client.unsubscribe(sem._bound().remote.address)
        async with there:
            assert await third.try_acquire() is None
            assert client.lost, "no recall was lost: nothing is shown"
        await is_served_beside(sem, there, watches)


@simulated
async def test_kept_leases_go_back_when_a_server_carries_a_command_not_out(kind: Kind) -> None:
    """It may have forgotten this hub, and with it whom to send a recall."""
    memory = MemoryBackend()
    client = Distant(memory)
    sem, there = kind(client, "jobs", 1, **KEEPS), kind(memory.peer(), "jobs", 1)
    await use(sem)
    assert await there.available() == 0
    client.refusals.append(CommandError(ErrorKind.RETRY_NOW, ConnectionError("not now")))
    await sem.status()
    assert not client.refusals
    assert await there.available() == 1


@simulated
async def test_no_lease_is_handed_out_that_ended_while_its_user_let_others_run(kind: Kind) -> None:
    """Another task blocked the loop for longer than the lease."""
    sem = kind(MemoryBackend(), "jobs", 4, **BRIEF)
    with observe(watches := Watches()):
        for _ in range(IN_A_ROW):
            await use(sem)
        assert len(watches.reused) == IN_A_ROW - 1, "the next does not yield: nothing is shown"
        acquiring = in_background(sem.acquire())
        asyncio.get_running_loop().call_soon(stall, 2 * sem.lease)
        permit = await acquiring
    assert permit.expires_in > 0
    await permit.release()


@simulated
async def test_the_right_ends_before_the_servers_note_of_it(kind: Kind) -> None:
    """It is counted from the sending, less a margin for clocks: no recall is sent after that."""
    memory = MemoryBackend()
    sem = kind(Distant(memory, delay=0.1), "jobs", 1, **BRIEF)
    there = kind(memory.peer(), "jobs", 1)
    asked = loop_of_test().now
    async with sem as permit:
        await asyncio.sleep(asked + 0.5 - loop_of_test().now)
        await permit.refresh()  # so that this is not why it is released
        await asyncio.sleep(asked + 0.99 - loop_of_test().now)
        [holder] = (await there.status()).holders
        assert holder.client.reuses_leases
    assert await there.available() == 1


@simulated
async def test_a_lower_limit_ends_the_right_under_a_higher_one(kind: Kind) -> None:
    """No lease is used again above the limit that its own semaphore object declares."""
    memory = MemoryBackend()
    high, low = kind(memory, "jobs", 5, **KEEPS), kind(memory, "jobs", 2, **KEEPS)
    await use(high)
    async with low:
        permits = [await high.acquire() for _ in range(2)]
    assert await low.try_acquire() is None
    for permit in permits:
        await permit.release()


@simulated
async def test_the_right_is_given_again_under_the_lower_limit(kind: Kind) -> None:
    memory = MemoryBackend()
    high, low = kind(memory, "jobs", 5, **KEEPS), kind(memory, "jobs", 2, **KEEPS)
    await use(high)
    with observe(watches := Watches()):
        for _ in range(3):
            await use(low, 6.0)
        assert watches.reused


@simulated
async def test_the_right_is_asked_for_ever_less_often_while_it_is_recalled(kind: Kind) -> None:
    """Each recall costs another process a round trip; after a quiet time it begins anew."""
    memory = MemoryBackend()
    sem, there = kind(memory, "jobs", 1, **BRIEF), kind(memory.peer(), "jobs", 1)
    pauses: list[float] = []

    async def recall() -> None:
        async with there.acquire(timeout=5.0):
            pass
        since = loop_of_test().now
        watches.reuses.clear()
        await watches.reuses.wait()
        pauses.append(round(loop_of_test().now - since))

    with observe(watches := Watches()):
        using = in_background(use_on_and_on(sem))
        await asyncio.sleep(5.0)
        for _ in range(7):
            await recall()
        await asyncio.sleep(100.0)
        await recall()
        await cancelled(using)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 1]


# -- order


@simulated
async def test_a_request_in_flight_comes_before_those_after_it() -> None:
    """Although a lease is kept meanwhile: it is told to wait, and gets the lease then."""
    memory = MemoryBackend()
    sem = FairSemaphore(Distant(memory, delay=0.1), "jobs", 1, **KEEPS)
    await use(sem)
    order: list[str] = []

    async def work(who: str) -> None:
        async with sem:
            order.append(who)

    async with sem:
        first = asyncio.create_task(work("first"))
        await asyncio.sleep(0.05)
    second = asyncio.create_task(work("second"))
    await asyncio.gather(first, second)
    assert order == ["first", "second"]


@simulated
async def test_a_request_in_flight_comes_before_one_that_is_not_written(kind: Kind) -> None:
    """The lease waits for the reply, and goes to who came first."""
    sem = kind(MemoryBackend(), "jobs", 1, **KEEPS)
    await use(sem)
    order: list[str] = []

    async def work(who: str) -> None:
        async with sem:
            order.append(who)

    async with sem:
        tasks = [asyncio.create_task(work(who)) for who in "ab"]
        await asyncio.sleep(0)  # the first is written at once, and the second a turn later
    await asyncio.gather(*tasks)
    assert order == ["a", "b"]


@simulated
async def test_after_a_stall_no_lease_is_passed_to_a_request_that_was_told_to_wait(
    kind: Kind,
) -> None:
    """Its refresh is due, before it was idle for too long. The request keeps its place."""
    sem = kind(Distant(MemoryBackend(), delay=0.1), "jobs", 1, **KEEPS)
    await use(sem)
    order: list[str] = []
    tokens: list[int] = []

    async def work(who: str) -> None:
        async with sem as permit:
            order.append(who)
            tokens.append(permit._lease.token)

    async with sem as permit:
        tasks = [asyncio.create_task(work(who)) for who in "ab"]
        await asyncio.sleep(0.05)
    assert kept_of(sem), "no lease was kept: nothing is shown"
    stall(19.7)
    await asyncio.gather(*tasks)
    assert order == ["a", "b"]
    assert permit._lease.token not in tokens


# -- leases go back


@simulated
async def test_each_lease_goes_back_when_it_was_kept_for_as_long_as_linger(kind: Kind) -> None:
    memory = MemoryBackend()
    sem, there = kind(memory, "jobs", 2, linger=1.0, lease=60.0), kind(memory.peer(), "jobs", 2)
    one, two = await sem.acquire(), await sem.acquire()
    async with one:
        pass
    await asyncio.sleep(0.5)
    async with two:
        pass
    seen: list[int] = []
    for _ in range(3):  # 0.4, 0.9 and 1.4 s after the second
        await asyncio.sleep(0.4 if not seen else 0.5)
        seen.append(await there.available())
        assert len(seen) < 2 or seen[-1] > seen[-2] or seen[-1] == 2
    assert seen == [0, 1, 2]


@simulated
async def test_a_hub_whose_kept_lease_was_taken_away_goes(kind: Kind) -> None:
    """Nothing of it is left to keep the connection for."""
    memory = MemoryBackend()
    sem, there = kind(memory, "jobs", 1, **KEEPS), kind(memory.peer(), "jobs", 1)
    with observe(watches := Watches()):
        await use(sem)
        [holder] = (await there.status()).holders
        assert await there.release(holder.id)
        await asyncio.sleep(60.0)
        await use(sem)
    assert len(set(watches.hubs)) == 2


@simulated
async def test_what_is_left_while_aclose_waits_is_not_kept(kind: Kind) -> None:
    memory = MemoryBackend()
    sem = kind(memory, "jobs", 1, **KEEPS)
    await use(sem)
    async with sem:
        waiter = in_background(sem.acquire())
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(aclose(memory, drain=10.0))
        await asyncio.sleep(0.1)
        assert waiter.done()
    left = loop_of_test().now
    await closing
    assert loop_of_test().now - left < 1.0


# -- refreshes


@simulated
async def test_a_lease_is_refreshed_in_time_whoever_uses_it(kind: Kind) -> None:
    """A refresh interval after it was confirmed, and not after its next user came."""
    sem = kind(MemoryBackend(), "jobs", 2, **BRIEF)
    with observe(watches := Watches()):
        async with sem:
            using = in_background(use_on_and_on(sem))  # so that the right goes on
            await asyncio.sleep(1.2)
            await cancelled(using)
        del watches.reused[:]
        await asyncio.sleep(0.3)
        await use(sem, 2.0)
    assert watches.reused, "no lease was reused: nothing is shown"
    last, _ = watches.refreshed_at[-1]
    times = [time for token, time in watches.refreshed_at if token == last]
    assert times[0] < 1.2, "it was refreshed before its next use, and after"
    assert all(later - earlier < 1.01 for earlier, later in itertools.pairwise(times))


@simulated
async def test_a_kept_lease_has_no_refresh_task(kind: Kind) -> None:
    sem = kind(MemoryBackend(), "jobs", 2, **BRIEF)

    def refreshing() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks()]
        return [name for name in names if name == "redsem-refresh"]

    async with sem:
        using = in_background(use_on_and_on(sem))  # so that the right goes on
        await asyncio.sleep(1.5)
        await cancelled(using)
        assert refreshing()
    await asyncio.sleep(0)
    assert kept_of(sem), "no lease is kept: nothing is shown"
    assert not refreshing()


@pytest.mark.parametrize("linger", [0.0, 1.0])
@simulated
async def test_long_uses_of_the_same_leases_leave_no_timers(kind: Kind, linger: float) -> None:
    sem = kind(MemoryBackend(), "jobs", 20, lease=3.0, linger=linger)

    async def work() -> None:
        while True:
            await use(sem, 1.3)

    with observe(watches := Watches()):
        tasks = [asyncio.create_task(work()) for _ in range(40)]
        await asyncio.sleep(30.0)
    assert bool(watches.reused) == bool(linger)
    assert loop_of_test().timers() <= 3 * 20
    await cancelled(*tasks)
