"""`permit.back_off` and `semaphore.back_off`: a cut, a pause if one is told, and a rise."""

import asyncio
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, QueueFull
from redsem_async._hub.calls import BackOffCall
from redsem_async.observer import Event, observe
from tests.harness.clients import Client, Make, MakePair
from tests.harness.inside import remote_of
from tests.harness.memory import Distant
from tests.harness.wait import cancelled, give_back, queue_up, soon
from tests.scripts.in_memory import HUBS, InMemory
from tests.worlds.simulated_time import simulated

PAUSE = 0.5
RISES = 0.0, 0.2, 0.25, 0.3  # after the pause, where nobody has told how long a permit is held


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Upstream:
    """Notes when calls began."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.running = self.most = 0

    async def call(self, sem: AnySemaphore, takes: float, **options: Any) -> None:
        async with sem.acquire(**options):
            self.began.append(loop_time())
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(takes)
            self.running -= 1

    def rose(self, ends: float) -> bool:
        """Whether none began before *ends*, and no more than the limit rises to."""
        begun = (sum(began < ends + rises for began in self.began) for rises in RISES)
        return all(count <= most for count, most in zip(begun, (0, 1, 2, 4), strict=True))


async def back_off(sem: AnySemaphore, seconds: float = PAUSE, **options: Any) -> float:
    """A holder is told to back off; returns when the pause ends."""
    async with sem.acquire(**options) as permit:
        ends = loop_time() + seconds
        permit.back_off(seconds, key="key" in options)
    await sem.status()  # by now the server knows
    return ends


async def left(sem: AnySemaphore) -> float:
    """Seconds of the longest pause that are left."""
    status = await sem.status()
    told = [status.back_off, *(key.back_off for key in status.keys)]
    return max((each.seconds_left for each in told if each), default=0.0)


@pytest.mark.parametrize("grows", ["", "taken away", "declared", "of a key"])
@simulated
async def test_grants_begin_when_a_back_off_ends_and_rise_to_the_limit(
    client: Client, other: Client, grows: str
) -> None:
    """Also to a limit that was not known when it began: all would start at once."""
    asks: dict[str, Any] = {"key": "a"} if grows == "of a key" else {}
    options: dict[str, Any] = {"key_limit": 1} if asks else {}
    here = FairSemaphore(client, "jobs", 1 if grows == "declared" else 64, **options)
    there = FairSemaphore(other, "jobs", 64, **options)
    if grows == "taken away":
        await there.set_limit(1)
    ends = await back_off(here, **asks)
    if grows in ("taken away", "of a key"):
        await there.set_limit(64 if asks else None, **asks)
    upstream = Upstream()
    await asyncio.gather(*(upstream.call(there, 1.0, **asks) for _ in range(64)))
    assert upstream.rose(ends)
    assert upstream.most == 64, "the limit is reached again"
    assert (await there.status()).back_off is None


@simulated
async def test_the_latest_end_counts(pair: MakePair) -> None:
    here, there = pair(8)
    async with here.acquire() as one, there.acquire() as other:
        one.back_off(PAUSE)
        await here.status()
        other.back_off(20.0)
        await there.status()
        one.back_off(1.0)
    await here.back_off(1.0)
    assert loop_time() + await left(here) == pytest.approx(20.0, abs=0.1)


@simulated
async def test_errors_and_status_say_that_a_back_off_holds_up(pair: MakePair) -> None:
    here, there = pair(2, max_waiters=1)
    await here.back_off(30.0)
    for timeout in (0, 0.1):
        with pytest.raises(AcquireTimeout, match="back-off") as refused:
            await there.acquire(timeout=timeout)
        assert refused.value.blocked_by == "back_off"
        assert 29 < refused.value.retry_after <= 31
    assert await there.try_acquire() is None
    waiter = await queue_up(here)
    with pytest.raises(QueueFull) as full:
        await there.acquire()
    status = await there.status()
    assert status.back_off is not None
    assert (status.back_off.limit, status.limit, status.available) == (0, 2, 0)
    assert await there.locked()
    for seconds in (full.value.retry_after, status.retry_after, status.back_off.seconds_left):
        assert 29 < seconds <= 31
    await cancelled(waiter)


@simulated
async def test_overloads_without_a_time_only_cut_and_are_told_once_a_second(
    pair: MakePair,
) -> None:
    here, there = pair(8)
    events: list[Event] = []
    with observe(events.append):
        for _ in range(3):
            async with here.acquire(), here.acquire() as permit:
                permit.back_off(0)
            assert not await left(there)
            await asyncio.sleep(0.6)
    said = [(event.seconds, event.limit) for event in events if event.kind == "backed_off"]
    assert said == [(0.0, 1)] * 2


@simulated
async def test_retry_after_counts_the_queue_behind_a_pause(pair: MakePair) -> None:
    here, _ = pair(1)
    for _ in range(2):
        async with here.acquire():
            await asyncio.sleep(0.2)
    await here.back_off(2.0)
    waiters = [await queue_up(here) for _ in range(20)]
    with pytest.raises(AcquireTimeout) as refused:
        await here.acquire(timeout=0)
    assert refused.value.retry_after > 4.0, "a pause of 2 s, and 20 who hold for 0.2 s each"
    await cancelled(*waiters)


@simulated
async def test_the_end_of_a_back_off_tells_waiters_when_a_permit_expires(pair: MakePair) -> None:
    """They were told to look again when the pause ends, and the holder will not release."""
    here, there = pair(1)
    await (await here.acquire()).detach(1.5)
    expires = loop_time() + 1.5
    await here.back_off(3600)
    waiter = await queue_up(there)
    await here.back_off(0)
    await give_back(await waiter)
    assert loop_time() == pytest.approx(expires, abs=0.1), "not with the next heartbeat"


@pytest.mark.parametrize("threaded", [False, True], ids=["in the loop", "in a thread"])
async def test_a_waiter_of_the_process_is_not_served_before_the_back_off_of_a_block(
    make: Make, threaded: bool
) -> None:
    """Said last in the block, it is written in one turn of the loop with the release."""
    sem = make(1, lease=60.0)
    async with sem.acquire() as permit:
        waiter = await queue_up(sem)
        ends = loop_time() + PAUSE
        if threaded:
            await asyncio.to_thread(permit.back_off, PAUSE)
        else:
            permit.back_off(PAUSE)
    held = await soon(waiter)
    assert loop_time() >= ends
    await give_back(held)


async def test_the_longest_pause_is_cut_and_logged(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    sem = make(2, max_back_off=5.0)
    await back_off(sem, 1e8)
    assert 0 < await left(sem) <= 5.0
    assert [getattr(record, "event", None) for record in caplog.records] == ["back-off cut"]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "1", True, None])
async def test_other_than_seconds_is_refused_at_once(make: Make, seconds: Any) -> None:
    sem = make(1)
    async with sem.acquire() as permit:
        with pytest.raises((TypeError, ValueError), match="seconds"):
            permit.back_off(seconds)
        with pytest.raises((TypeError, ValueError), match="seconds"):
            await sem.back_off(seconds)
        with pytest.raises(ValueError, match="key"):
            permit.back_off(1.0, key=True)
    assert not await left(sem)


# -- keys


@simulated
async def test_a_back_off_of_a_key_ends_at_its_time_although_others_are_busy(
    client: Client, other: Client
) -> None:
    """Replies about other keys do not put off the look at this one."""
    here, there = (FairSemaphore(each, "jobs", 8, key_limit=4) for each in (client, other))
    await here.back_off(PAUSE, key="a")
    ends = loop_time() + PAUSE
    waiter = await queue_up(there, key="a")
    while not waiter.done():
        async with there.acquire(key="b"):
            await asyncio.sleep(0.01)
        assert loop_time() < ends + 0.1, "it is not served"
    await give_back(waiter)


@simulated
async def test_a_request_for_one_permit_waits_too(pair: MakePair) -> None:
    """Of a process that the server knows, while nothing waits: the case of the quick path."""
    here, there = pair(3)
    await give_back(await here.acquire())
    ends = loop_time() + PAUSE
    await there.back_off(PAUSE)
    await give_back(await here.acquire())
    assert loop_time() >= ends


def test_back_offs_that_are_not_written_yet_are_one_with_the_latest_end_and_newest_token() -> None:
    """An older token would leave a new overload without effect, and what was sent is as it was."""

    def said(token: int, ends: float, key: str | None = None, ms: int = 1000) -> BackOffCall:
        return BackOffCall(ms, token, key=key, ends=ends)

    call = said(2, 20.0)
    assert all(call.join(other) for other in (said(1, 30.0), said(3, 10.0), said(2, 5.0)))
    assert (call.token, call.ends) == (3, 30.0)
    cut = said(1, 35.0, ms=0)
    assert cut.join(said(2, 36.0, ms=0)) and (cut.token, cut.ends, cut.pause_ms) == (2, 36.0, 0)
    assert call.join(cut) and (call.ends, call.pause_ms) == (30.0, 1000)
    assert cut.join(call) and (cut.ends, cut.pause_ms) == (30.0, 1000)
    assert not call.join(said(4, 40.0, "a"))
    for sent in ("in_flight", "was_sent"):
        call.in_flight, call.was_sent = sent == "in_flight", sent == "was_sent"
        assert not call.join(said(4, 40.0))
    assert (call.token, call.ends) == (3, 30.0)


@simulated
async def test_a_process_sends_an_overload_once() -> None:
    """For all and for each key: the next is that of a permit that it was granted since."""
    far = Distant()
    sem = FairSemaphore(far, "jobs", 8, key_limit=8)
    for sent in (3, 6):
        permits = [await sem.acquire(key=key) for key in "aab"]
        for permit in permits:
            await asyncio.sleep(0.01)  # what was said before is sent
            permit.back_off(0, key=True)
            permit.back_off(0)
        await give_back(*permits)
        assert far.asked("back_off") == sent
    remote = remote_of(sem)
    assert all(remote.is_overload(str(key), 0.0, 0.0) for key in range(2000))
    assert len(remote.overloaded_at) <= 1000, "of keys without end"


@simulated
async def test_a_permit_that_met_an_overload_says_nothing_of_the_usual_hold(make: Make) -> None:
    """Its work was refused at once, and a step of the slow start is a usual hold."""
    sem = make(8)
    for hold, seconds in ((1.0, None), (0.01, 0), (0.01, 0.1)):
        async with sem.acquire() as permit:
            await asyncio.sleep(hold)
            if seconds is not None:
                permit.back_off(seconds)
    assert sem._bound().own_hold == pytest.approx(1.0, abs=0.01)


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
    assert state.call(HUBS[1], op.Reap()).next_ms == 200, "the limit in force rises"
