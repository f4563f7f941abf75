"""`permit.back_off` and `semaphore.back_off`: no permit for some time, and then up to a ramp."""

import asyncio
import logging
import time
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, Permit, QueueFull
from redsem_async._core.keys import Mode
from redsem_async._hub.calls import BackOffCall
from redsem_async._protocol.pushes import Recheck
from redsem_async.observer import Event, observe
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make, MakePair
from tests.harness.wait import cancelled, in_background, soon, until, waiting
from tests.scripts.in_memory import HUBS, InMemory

PAUSE = 0.4
RAMP = PAUSE / 10  # where no hold was observed that is longer


class Upstream:
    """Counts what runs, and when it began."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.order: list[int] = []
        self.running = self.most = 0

    async def call(
        self, sem: AnySemaphore, number: int, takes: float = 0.02, **options: Any
    ) -> None:
        async with sem.acquire(**options):
            self.order.append(number)
            self.began.append(time.monotonic())
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(takes)
            self.running -= 1


async def back_off(sem: AnySemaphore, seconds: float = PAUSE, **options: Any) -> float:
    """A holder is told to back off; returns when the pause ends at the earliest."""
    async with sem.acquire(**options) as permit:
        ends = time.monotonic() + seconds
        permit.back_off(seconds, key="key" in options)
    await until(lambda: is_backing_off(sem), "the server knows")
    return ends


async def is_backing_off(sem: AnySemaphore, *, longer_than: float = 0.0) -> bool:
    status = await sem.status()
    told = [status.back_off, *(key.back_off for key in status.keys)]
    return any(each is not None and each.seconds_left > longer_than for each in told)


async def test_grants_begin_when_a_back_off_ends_and_ramp_up_to_the_limit(pair: MakePair) -> None:
    here, there = pair(8)
    upstream = Upstream()
    ends = await back_off(here)
    calls = [upstream.call(sem, n, 4 * RAMP) for n in range(20) for sem in (here, there)]
    await soon(asyncio.gather(*calls))
    assert min(upstream.began) >= ends
    assert sum(began < ends + RAMP for began in upstream.began) <= 1, "one in the first step"
    assert sum(began < ends + 2 * RAMP for began in upstream.began) <= 2
    assert sum(began < ends + 3 * RAMP for began in upstream.began) <= 4
    assert upstream.most == 8, "the limit is reached again"
    assert (await there.status()).back_off is None


async def test_a_heavy_request_starts_when_the_pause_ends(pair: MakePair) -> None:
    """It would else wait until the ramp is as high, and each step is for requests, not permits."""
    here, there = pair(16)
    for sem in (here, there):
        async with sem.acquire(permits=8):
            await asyncio.sleep(0.2)
    async with there.acquire(permits=8) as permit:
        permit.back_off(PAUSE)
        ends = time.monotonic() + PAUSE
        await until(lambda: is_backing_off(here), "the server knows")
    began: list[float] = []

    async def call(sem: AnySemaphore) -> None:
        async with sem.acquire(permits=8):
            began.append(time.monotonic())
            await asyncio.sleep(0.5)

    calls = [in_background(call(sem)) for sem in (here, there)]
    await until(lambda: began, "the first has started", within=PAUSE + 0.2)
    assert began[0] >= ends
    await asyncio.gather(*calls)


async def test_the_ramp_rises_to_a_limit_that_is_set_meanwhile(pair: MakePair) -> None:
    here, there = pair(1)
    ends = time.monotonic() + 10 * RAMP
    await here.back_off(10 * RAMP)
    await there.set_limit(100)
    upstream = Upstream()
    await soon(asyncio.gather(*(upstream.call(there, n, 20 * RAMP) for n in range(8))))
    assert sum(began < ends + RAMP for began in upstream.began) <= 1, "one in the first step"
    assert upstream.most >= 4


@pytest.mark.parametrize("grows", ["taken away", "declared"])
async def test_grants_ramp_up_to_a_limit_that_was_not_known_when_the_back_off_began(
    make: Make, other: Client, grows: str
) -> None:
    """All would start at once, and meet the upstream that has just been overloaded."""
    here, there = make(1), make(64, client=other)
    if grows == "taken away":
        await there.set_limit(1)
    began = time.monotonic()
    await here.back_off(PAUSE)
    took = time.monotonic() - began
    await there.set_limit(None)
    await begin_one_after_the_other(there, began + PAUSE, took)
    assert (await there.status()).back_off is not None
    assert (await here.status()).back_off is None, "of its own limit of 1 nothing is left to reach"


async def begin_one_after_the_other(
    sem: AnySemaphore, ends: float, took: float, **options: Any
) -> None:
    """Many requests wait for the end of a back-off, and begin as the ramp has it.

    One that *took* a while to be sent is shorter by that, and so are the steps of its ramp.
    """
    upstream, step = Upstream(), (PAUSE - took) / 10
    calls = [in_background(upstream.call(sem, n, 30.0, **options)) for n in range(64)]
    await until(lambda: len(upstream.began) >= 8, "three steps are over", within=PAUSE + 1.0)
    await cancelled(*calls)
    assert min(upstream.began) >= ends
    assert sum(began < ends + step for began in upstream.began) <= 1
    assert sum(began < ends + 2 * step for began in upstream.began) <= 2
    assert sum(began < ends + 3 * step for began in upstream.began) <= 4


@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_a_pause_that_comes_in_a_ramp_is_told_to_who_waits(mode: Mode) -> None:
    """Its end may be nearer than the next step, until which the waiter was told to wait."""
    state = InMemory(mode)
    token = state.acquire(HUBS[0], 1, 2, limit=2).answers[0]
    assert isinstance(token, int)
    state.call(HUBS[0], op.StartBackOff(10_000, None, 1))
    state.pass_time(12_500)  # the ramp is above the limit, and goes on
    assert state.acquire(HUBS[1], 1, limit=2).next_ms == 500
    longer = state.call(HUBS[0], op.StartBackOff(100, token, 2))
    assert (longer.answers, state.told) == ([0], [(HUBS[1], Recheck("n"))])


async def test_waiters_keep_their_places(fair_pair: MakePair) -> None:
    here, there = fair_pair(1)
    upstream = Upstream()
    held = await here.acquire()
    calls: list[asyncio.Task[None]] = []
    for number in range(6):
        calls.append(in_background(upstream.call((here, there)[number % 2], number)))
        await waiting(there, number + 1)
    held.back_off(PAUSE)
    assert await held.release()
    await soon(asyncio.gather(*calls))
    assert upstream.order == list(range(6))


async def test_one_overload_of_many_permits_counts_once(pair: MakePair) -> None:
    """Twenty answers of one moment are one signal, and one that comes late makes it no shorter."""
    here, there = pair(20)
    events: list[Event] = []
    permits = [await sem.acquire() for sem in (here, there) for _ in range(10)]
    with observe(events.append):
        for permit in permits:
            permit.back_off(30.0)
        await until(lambda: is_backing_off(there), "the server knows")
        permits[0].back_off(1.0)
        for permit in permits:
            assert await permit.release()
        status = await here.status()
    assert status.back_off is not None
    assert 28.0 < status.back_off.seconds_left <= 30.0
    assert status.back_off.ramp == 0
    assert [event.seconds for event in events if event.kind == "backed_off"] == [
        pytest.approx(30.0, abs=1.0)
    ]


async def test_the_latest_end_counts(pair: MakePair) -> None:
    here, there = pair(3)
    async with here.acquire() as one, there.acquire() as other:
        one.back_off(5.0)
        await until(lambda: is_backing_off(there), "the server knows")
        other.back_off(20.0)
        await until(lambda: is_backing_off(here, longer_than=15), "it is longer")
    await there.back_off(1.0)
    assert await is_backing_off(here, longer_than=15)


async def test_an_overload_in_the_ramp_begins_anew(pair: MakePair) -> None:
    here, there = pair(64)
    await here.back_off(PAUSE)
    permit = await soon(there.acquire())
    status = await here.status()
    assert status.back_off is not None and status.back_off.ramp >= 1
    again = time.monotonic() + PAUSE
    permit.back_off(PAUSE)
    await permit.release()
    permit = await soon(here.acquire())
    assert time.monotonic() >= again
    assert await permit.release()


async def test_errors_and_status_say_that_a_back_off_holds_up(pair: MakePair) -> None:
    here, there = pair(2, max_waiters=1)
    await here.back_off(30.0)
    with pytest.raises(AcquireTimeout) as refused:
        await there.acquire(timeout=0)
    with pytest.raises(AcquireTimeout) as outlasted:
        await there.acquire(timeout=0.1)
    for error in (refused.value, outlasted.value):
        assert error.blocked_by == "back_off"
        assert 25 < error.retry_after <= 31
        assert "back-off" in str(error)
    assert await there.try_acquire() is None
    waiter = in_background(here.acquire())
    await waiting(there, 1)
    with pytest.raises(QueueFull) as full:
        await there.acquire()
    assert 25 < full.value.retry_after <= 31
    status = await there.status()
    assert status.back_off is not None
    assert status.back_off.ramp == 0
    assert 25 < status.back_off.seconds_left <= 30
    assert status.limit == 2
    assert status.available == await there.available() == 0
    assert await there.locked()
    assert 25 < status.retry_after <= 31
    await cancelled(waiter)


async def test_back_off_zero_serves_waiters(pair: MakePair) -> None:
    here, there = pair(1)
    await here.back_off(3600)
    waiter = in_background(there.acquire())
    await waiting(here, 1)
    await here.back_off(0)
    permit = await soon(waiter)
    assert await permit.release()
    assert (await here.status()).back_off is None


async def test_back_off_for_a_moment_returns(pair: MakePair) -> None:
    """It is over before the command is written, and the caller waits for the reply."""
    here, there = pair(1)
    await here.back_off(1e-6)
    permit = await soon(there.acquire())
    assert await permit.release()


async def test_retry_after_counts_the_queue_behind_a_pause(pair: MakePair) -> None:
    here, there = pair(1)
    for _ in range(2):
        async with here.acquire():
            await asyncio.sleep(0.2)
    await here.back_off(2.0)
    waiters = [in_background(here.acquire()) for _ in range(20)]
    await waiting(there, 20)
    with pytest.raises(AcquireTimeout) as refused:
        await here.acquire(timeout=0)
    assert refused.value.retry_after > 4.0, "a pause of 2 s, and 20 who hold for 0.2 s each"
    await asyncio.gather(*map(cancelled, waiters))


async def test_a_longer_pause_has_longer_steps(pair: MakePair) -> None:
    """A step is a tenth of the pause, whichever call made it as long as it is."""
    here, there = pair(8)
    async with here.acquire() as one, there.acquire() as other:
        one.back_off(0.3)
        await until(lambda: is_backing_off(there), "the server knows")
        ends = time.monotonic() + 2.0
        other.back_off(2.0)
        await until(lambda: is_backing_off(here, longer_than=0.5), "it is longer")
    upstream = Upstream()
    await soon(asyncio.gather(*(upstream.call(here, n, 0.5) for n in range(3))))
    assert sorted(upstream.began)[1] >= ends + 0.19, "a step lasts 0.2 s"


async def test_the_end_of_a_back_off_tells_waiters_when_a_permit_expires(
    pair: MakePair,
) -> None:
    """They were told to look again when the pause ends, and the holder will not release."""
    here, there = pair(1)
    permit = await here.acquire()
    await permit.detach(1.5)
    expires = time.monotonic() + 1.5
    await here.back_off(3600)
    waiter = in_background(there.acquire())
    await waiting(here, 1)
    await here.back_off(0)
    permit = await soon(waiter)
    assert time.monotonic() < expires + 1.0, "not with the next heartbeat"
    assert await permit.release()


async def test_a_pause_a_limit_and_a_back_off_are_three_things(pair: MakePair) -> None:
    here, there = pair(2)
    await here.back_off(30.0)
    await there.pause()
    with pytest.raises(AcquireTimeout) as paused:
        await here.acquire(timeout=0)
    assert paused.value.blocked_by == "paused"
    await there.resume()
    await there.set_limit(3)
    with pytest.raises(AcquireTimeout) as backing_off:
        await here.acquire(timeout=0)
    assert backing_off.value.blocked_by == "back_off"
    await here.pause()
    await here.back_off(0)
    with pytest.raises(AcquireTimeout) as still_paused:
        await here.acquire(timeout=0)
    assert still_paused.value.blocked_by == "paused"


async def test_held_permits_are_not_touched(pair: MakePair) -> None:
    here, there = pair(2, lease=0.5)
    permit = await there.acquire()
    await here.back_off(30.0)
    await permit.refresh()
    assert not permit.lost
    assert await permit.release()


@pytest.mark.parametrize("threaded", [False, True], ids=["in the loop", "in a thread"])
async def test_a_waiter_of_the_process_is_not_served_before_the_back_off_of_a_block(
    make: Make, threaded: bool
) -> None:
    """Said last in the block, it is written in one turn of the loop with the release."""
    sem = make(1, lease=60.0)
    async with sem.acquire() as permit:
        waiter = in_background(sem.acquire())
        await waiting(sem, 1)
        ends = time.monotonic() + PAUSE
        if threaded:
            await asyncio.to_thread(permit.back_off, PAUSE)
        else:
            permit.back_off(PAUSE)
    held = await soon(waiter)
    assert time.monotonic() >= ends
    assert await held.release()


async def test_delete_ends_a_back_off(pair: MakePair) -> None:
    here, there = pair(1)
    await here.back_off(30.0)
    await there.delete()
    permit = await soon(there.acquire())
    assert await permit.release()


async def test_the_longest_pause_is_cut_and_logged(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    sem = make(2, max_back_off=5.0)
    with caplog.at_level(logging.WARNING, "redsem_async"):
        await back_off(sem, 1e8)
    told = (await sem.status()).back_off
    assert told is not None and told.seconds_left <= 5.0
    assert [getattr(record, "event", None) for record in caplog.records] == ["back-off cut"]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "1", True, None])
async def test_other_than_seconds_is_refused_at_once(make: Make, seconds: Any) -> None:
    sem = make(1)
    async with sem.acquire() as permit:
        with pytest.raises((TypeError, ValueError), match="seconds"):
            permit.back_off(seconds)
        with pytest.raises((TypeError, ValueError), match="seconds"):
            await sem.back_off(seconds)
    assert (await sem.status()).back_off is None


async def test_key_needs_a_permit_with_a_key(make: Make) -> None:
    async with make(1).acquire() as permit:
        with pytest.raises(ValueError, match="key"):
            permit.back_off(1.0, key=True)


async def test_zero_seconds_change_nothing(make: Make) -> None:
    sem = make(2)
    async with sem.acquire() as permit:
        permit.back_off(0)
        assert (await sem.status()).back_off is None
        await sem.back_off(30.0)
        permit.back_off(0)
        assert (await sem.status()).back_off is not None


async def test_it_may_be_said_after_the_block(pair: MakePair) -> None:
    here, there = pair(1)
    async with here.acquire() as permit:
        pass
    permit.back_off(30.0)
    await until(lambda: is_backing_off(there), "the server knows")


# -- keys


@pytest.fixture(params=[{"key_limit": 4}, {"key_limit": 4, "share": True}], ids=["keys", "share"])
def keyed(
    request: pytest.FixtureRequest, client: Client, other: Client, name: str
) -> tuple[FairSemaphore, FairSemaphore]:
    """Two processes with keys."""
    return (
        FairSemaphore(client, name, 8, **request.param),
        FairSemaphore(other, name, 8, **request.param),
    )


async def test_a_full_line_tells_the_pause_of_its_key() -> None:
    """Whoever comes back sooner is refused again."""
    sem = FairSemaphore(MemoryBackend(), "jobs", 9, key_limit=9, max_waiters_per_key=0)
    await back_off(sem, 30.0, key="a")
    with pytest.raises(QueueFull) as full:
        await sem.acquire(key="a")
    assert 25 < full.value.retry_after <= 31


async def test_a_back_off_of_a_key_holds_up_no_other(
    keyed: tuple[FairSemaphore, FairSemaphore],
) -> None:
    here, there = keyed
    ends = await back_off(here, PAUSE, key="a")
    began: list[float] = []

    async def call(sem: FairSemaphore) -> None:
        async with sem.acquire(key="a"):
            began.append(time.monotonic())
            await asyncio.sleep(4 * RAMP)

    calls = [in_background(call(sem)) for _ in range(5) for sem in keyed]
    with pytest.raises(AcquireTimeout) as refused:
        await there.acquire(timeout=0, key="a")
    assert refused.value.blocked_by == "back_off"
    assert 0 < refused.value.retry_after <= PAUSE + 1
    for sem in keyed:
        async with sem.acquire(key="b", timeout=0), sem.acquire(key=None, timeout=0):
            assert time.monotonic() < ends, "the machine is too slow for this test"
    status = await here.status()
    told = {key.key: key.back_off for key in status.keys}
    assert told["a"] is not None and told["a"].ramp == 0
    assert status.back_off is None
    await soon(asyncio.gather(*calls))
    assert min(began) >= ends
    assert sum(at < ends + RAMP for at in began) <= 1
    assert (await there.status()).keys == ()


async def test_a_back_off_of_a_key_ends_at_its_time_although_others_are_busy(
    keyed: tuple[FairSemaphore, FairSemaphore],
) -> None:
    """Replies about other keys do not put off the look at this one."""
    here, there = keyed
    await here.back_off(PAUSE, key="a")
    ends = time.monotonic() + PAUSE
    waiter = in_background(there.acquire(key="a"))
    await waiting(here, 1)
    while not waiter.done():
        async with there.acquire(key="b"):
            await asyncio.sleep(0.001)
        assert time.monotonic() < ends + 1.5, "it is not served"
    assert await (await waiter).release()


async def test_grants_of_a_key_ramp_up_to_a_limit_that_is_set_meanwhile(
    client: Client, other: Client, name: str
) -> None:
    """All would start at once, as for a limit of all keys."""
    here, there = (FairSemaphore(each, name, 64, key_limit=1) for each in (client, other))
    began = time.monotonic()
    await here.back_off(PAUSE, key="a")
    took = time.monotonic() - began
    await there.set_limit(64, key="a")
    await begin_one_after_the_other(there, began + PAUSE, took, key="a")


async def test_back_off_of_a_key_ends_with_zero(
    keyed: tuple[FairSemaphore, FairSemaphore], client: Client
) -> None:
    here, there = keyed
    await here.back_off(3600, key="a")
    waiter = in_background(there.acquire(key="a"))
    await waiting(here, 1)
    await here.back_off(0)
    assert await is_backing_off(here), "the key has its own"
    await here.back_off(0, key="a")
    assert await (await soon(waiter)).release()
    with pytest.raises(ValueError, match="key"):
        await FairSemaphore(client, "plain", 1).back_off(1.0, key="a")


# -- time


async def test_a_back_off_of_memory_ends_with_its_clock() -> None:
    memory = MemoryBackend()
    sem = FairSemaphore(memory, "jobs", 1)
    await sem.back_off(3600)
    waiter: asyncio.Task[Permit] = in_background(sem.acquire())
    await waiting(sem, 1)
    memory.advance(3600)
    assert await (await soon(waiter)).release()


async def test_a_request_for_one_permit_waits_too(pair: MakePair) -> None:
    """Of a process that the server knows, while nothing waits: the case of the quick path."""
    here, there = pair(3)
    assert await (await here.acquire()).release()
    ends = time.monotonic() + PAUSE
    await there.back_off(PAUSE)
    permit = await soon(here.acquire())
    assert time.monotonic() >= ends
    assert await permit.release()


def test_back_offs_that_are_not_written_yet_are_one_with_the_latest_end_and_newest_token() -> None:
    """An older token would leave a new overload without effect, and what was sent is as it was."""

    def said(token: int, ends: float, key: str | None = None) -> BackOffCall:
        return BackOffCall(1000, token, key=key, ends=ends)

    call = said(2, 20.0)
    assert all(call.join(other) for other in (said(1, 30.0), said(3, 10.0), said(2, 5.0)))
    assert (call.token, call.ends) == (3, 30.0)
    assert not call.join(said(4, 40.0, "a"))
    for sent in ("in_flight", "was_sent"):
        call.in_flight, call.was_sent = sent == "in_flight", sent == "was_sent"
        assert not call.join(said(4, 40.0))
    assert (call.token, call.ends) == (3, 30.0)


def test_overloads_of_permits_that_were_granted_in_one_moment_are_one() -> None:
    """Their tokens are ahead of the clock, which must not make the second overload a newer one."""
    state = InMemory("fair")
    first, _, last = state.acquire(HUBS[0], 1, 2, 3, limit=3).answers
    assert isinstance(first, int) and isinstance(last, int)
    said = [
        state.call(HUBS[0], op.StartBackOff(4000, token, n))
        for n, token in ((1, first), (2, last))
    ]
    assert [each.answers for each in said] == [[1], [0]]


@pytest.mark.parametrize("key", [None, "a"])
def test_a_back_off_is_kept_to_its_end_and_no_longer(key: str | None) -> None:
    """Whatever expiry its key had, as that of a short lease."""
    state = InMemory("fair+keys")
    state.acquire(HUBS[0], 1, lease_ms=1000, key=op.KeyTerms("a"))
    state.call(HUBS[0], op.StartBackOff(3_600_000, None, 1, key))
    state.pass_time(3_500_000)
    assert key in state.look.back_offs
    state.pass_time(100_000 + 20 * 360_000)
    state.acquire(HUBS[0], 2)
    assert not state.look.back_offs


def test_a_reply_says_when_a_back_off_changes_next() -> None:
    """Nobody else tells those who wait, and before that they would look in vain."""
    state = InMemory("fair")
    state.acquire(HUBS[0], 1, 2, limit=2)
    state.acquire(HUBS[1], 1, limit=2)
    pauses = enumerate((100_000, 0, 4000), 1)
    said = [state.call(HUBS[1], op.StartBackOff(ms, None, number)) for number, ms in pauses]
    assert [each.next_ms for each in said] == [100_000, 90_000, 4000]
    state.release(HUBS[0], 2)
    state.pass_time(4000)
    assert state.call(HUBS[1], op.Reap()).next_ms == 400, "a step of the ramp"
