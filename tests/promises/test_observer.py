"""Observers hear what happens to permits: each beginning, and its one end."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendUnavailable,
    PermitLost,
    QueueFull,
    Semaphore,
    SemaphoreClosed,
    aclose,
)
from redsem_async.observer import (
    Abandoned,
    Detached,
    Failed,
    Granted,
    Lost,
    Observer,
    Outcome,
    PermitEvent,
    Queued,
    Reclaimed,
    Refreshed,
    Released,
    Shed,
    observe,
)
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make
from tests.harness.wait import all_free, cancelled, queue_up, until

pytestmark = pytest.mark.one_mode

KINDS = [kind for kind in vars(Observer) if not kind.startswith("_")]


class Heard(Observer):
    """Writes down what it hears, of one semaphore where it is given a name."""

    def __init__(self, name: str | None = None) -> None:
        self.events: list[Any] = []
        for kind in KINDS:
            setattr(self, kind, self._note)
        self._name = name

    def _note(self, event: Any) -> None:
        if self._name in {None, event.name}:
            self.events.append(event)

    @property
    def kinds(self) -> list[type[object]]:
        return [type(event) for event in self.events]

    def last(self, kind: type[Any]) -> Any:
        found = [event for event in self.events if isinstance(event, kind)]
        assert found, (kind, self.events)
        return found[-1]


@pytest.fixture
def heard(name: str) -> Iterator[Heard]:
    """Hears of the test's semaphore."""
    observer = Heard(name)
    with observe(observer):
        yield observer


async def test_a_permit_that_is_free_is_granted_and_released(make: Make, heard: Heard) -> None:
    """Two events, which tell the same permit's facts."""
    sem = make(3)
    async with sem.acquire(permits=2) as permit:
        await asyncio.sleep(0.01)
    [granted, released] = heard.events
    assert isinstance(granted, Granted)
    assert isinstance(released, Released)
    for event in (granted, released):
        assert (event.name, event.permits) == (sem.name, 2)
        assert event.mode == ("zset" if isinstance(sem, Semaphore) else "fair")
        assert (event.permit_id, event.fencing_token) == (permit.id, permit.fencing_token)
        assert permit.id not in repr(event)
    assert (granted.waited, granted.queued) == (permit.waited, False)
    assert released.held >= 0.01


async def test_who_waits_is_queued_once_and_then_granted(make: Make, heard: Heard) -> None:
    """However often it has to ask."""
    sem = make()
    first = await sem.acquire()
    second, third = [await queue_up(sem) for _ in range(2)]
    await until(lambda: heard.kinds.count(Queued) == 2)
    await first.release()
    await (await second).release()
    await (await third).release()
    assert heard.kinds.count(Queued) == 2
    grants = [event for event in heard.events if isinstance(event, Granted)]
    assert [grant.queued for grant in grants] == [False, True, True]


async def test_who_is_cancelled_has_abandoned_its_request(make: Make, heard: Heard) -> None:
    """Nothing is granted to it, as far as anybody hears."""
    sem = make()
    async with sem:
        waiter = await queue_up(sem)
        await until(lambda: Queued in heard.kinds)
        await cancelled(waiter)
    await all_free(sem)
    assert heard.kinds == [Granted, Queued, Abandoned, Released]
    assert heard.last(Abandoned).queued


async def test_who_is_turned_away_is_shed(make: Make, heard: Heard) -> None:
    """With the reason, and the same advice that the caller gets."""
    sem = make(max_waiters=0)
    async with sem:
        with pytest.raises(AcquireTimeout) as late:
            await sem.acquire(timeout=0)
        assert heard.last(Shed).reason == "timeout"
        assert heard.last(Shed).retry_after == late.value.retry_after
        with pytest.raises(QueueFull):
            await sem.acquire()
        assert heard.last(Shed).reason == "queue full"
        assert await sem.try_acquire() is None
    assert heard.kinds == [Granted, Shed, Shed, Shed, Released]


async def test_an_outage_is_no_shedding(kind: type[AnySemaphore], nowhere: Any) -> None:
    """Full and unreachable are different things, to alerts above all."""
    with observe(heard := Heard("jobs")), pytest.raises(BackendUnavailable) as error:
        await kind(nowhere, "jobs", 1).acquire(timeout=0)
    assert heard.kinds == [Failed]
    assert heard.last(Failed).error is error.value


async def test_a_refresh_is_told(make: Make, heard: Heard) -> None:
    """With what it has gained."""
    async with make(lease=5.0) as permit:
        await permit.refresh()
        refreshed = heard.last(Refreshed)
        assert 3 < refreshed.expires_in <= 5
    assert heard.kinds == [Granted, Refreshed, Released]


async def test_a_loss_is_told_once_and_no_release_after_it(
    make: Make, other: Client, heard: Heard
) -> None:
    """Also where the permit is given back afterwards, as a block does."""
    sem = make()
    with pytest.raises(PermitLost) as error:
        async with sem as permit:
            await make(client=other).release(permit.id)
            await asyncio.sleep(5)
    assert heard.kinds == [Granted, Lost]
    lost = heard.last(Lost)
    assert (lost.reason, lost.cancels) == (error.value.reason, True)


async def test_a_permit_handed_over_is_detached_and_granted_again(
    make: Make, heard: Heard
) -> None:
    """The adopter's has another id."""
    sem = make()
    permit = await sem.acquire()
    async with sem.adopt(await permit.detach(expires_in=5)) as adopted:
        pass
    assert heard.kinds == [Granted, Detached, Granted, Released]
    assert heard.last(Detached).permit_id == permit.id
    assert heard.last(Released).permit_id == adopted.id


async def test_a_close_ends_what_was_begun(make: Make, client: Client, heard: Heard) -> None:
    """Who waits fails, who holds loses."""
    sem = make()
    permit = await sem.acquire()
    waiter = await queue_up(sem)
    await until(lambda: Queued in heard.kinds)
    await aclose(client)
    with pytest.raises(SemaphoreClosed):
        await waiter
    assert permit.lost
    assert set(heard.kinds) == {Granted, Queued, Failed, Lost}
    assert len(heard.events) == 4


async def test_who_comes_to_a_closed_door_is_told_of_too(
    make: Make, client: Client, heard: Heard
) -> None:
    """A request, or an adoption, that is refused before anything was sent has failed."""
    sem = make()
    permit = await sem.acquire()
    closing = asyncio.create_task(aclose(client, drain=5.0))
    await asyncio.sleep(0)
    for refused in (sem.acquire(), sem.try_acquire(), sem.adopt(permit.id)):
        with pytest.raises(SemaphoreClosed):
            await refused
    with pytest.raises(PermitLost):
        await sem.adopt("no id")
    await permit.release()
    await closing
    assert heard.kinds == [Granted, *[Failed] * 4, Released]
    assert [type(event.error) for event in heard.events[1:5]] == [
        *[SemaphoreClosed] * 3,
        PermitLost,
    ]


async def test_what_a_reap_dropped_is_told(kind: type[AnySemaphore], name: str) -> None:
    """A holder that stalled, say, for longer than its lease."""
    backend = MemoryBackend()
    with observe(heard := Heard(name)):
        sem = kind(backend, name, 1, lease=5.0)
        permit = await kind(backend.peer(), name, 1, lease=5.0).acquire()
        await sem.reap()
        assert Reclaimed not in heard.kinds  # nothing had expired
        await permit.detach(expires_in=1.0)
        backend.advance(2.0)
        assert await sem.reap() == 1
    assert heard.last(Reclaimed) == Reclaimed(name=name, mode=heard.events[0].mode, count=1)


# -- who hears


async def test_each_end_belongs_to_a_beginning_that_was_heard(make: Make, name: str) -> None:
    """Whenever an observer comes or leaves: counters of what is held and waits never go wrong."""
    sem = make(2)
    before = await sem.acquire()
    early, late = Heard(name), Heard(name)
    with observe(early):
        between = await sem.acquire()
        waiter = await queue_up(sem)
        await until(lambda: Queued in early.kinds)
    with observe(late):
        await before.release()
        permit = await waiter
        await between.release()
        await permit.release()
    assert early.kinds == [Granted, Queued]
    assert late.kinds == [Granted, Released]
    assert not late.last(Granted).queued


async def test_stopped_it_hears_nothing_more_of_a_round_that_has_begun(
    make: Make, name: str
) -> None:
    """By another observer, or by itself, when many are told at once that they have to wait."""
    other = Heard(name)

    class Once(Heard):
        def _note(self, event: Any) -> None:
            super()._note(event)
            mine.stop()
            others.stop()

    once = Once(name)
    mine, others = observe(once), observe(other)
    sem = make()
    permit = await sem.acquire()
    assert (once.kinds, other.kinds) == ([Granted], [])
    mine, others = observe(once), observe(other)
    waiters = [await queue_up(sem) for _ in range(3)]
    assert (once.kinds, other.kinds) == ([Granted, Queued], [])
    await permit.release()
    for waiter in waiters:
        await (await waiter).release()


async def test_an_observer_that_fails_harms_nobody(
    make: Make, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged, and permits and other observers go on."""

    class Failing(Observer):
        def granted(self, event: Granted) -> None:
            raise asyncio.CancelledError

        def released(self, event: Released) -> None:
            raise ValueError("no disk")

    with observe(Failing()), observe(heard := Heard(name)):
        async with (sem := make()):
            pass
    assert heard.kinds == [Granted, Released]
    assert await sem.available() == 1
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "observer failed" in text] == [
        f"an observer failed: {Failing.__qualname__}.granted",
        f"an observer failed: {Failing.__qualname__}.released",
    ]


async def test_outcomes_are_told_in_the_context_of_who_asked(make: Make, name: str) -> None:
    """Where a tracer finds the span that it belongs to."""
    tasks: list[object] = []

    class Tasks(Observer):
        def granted(self, event: Granted) -> None:
            tasks.append(asyncio.current_task())

    with observe(Tasks()):
        async with make():
            assert tasks == [asyncio.current_task()]


def test_an_observer_is_told_once() -> None:
    """Twice the same would count all twice."""
    observer = Observer()
    with observe(observer), pytest.raises(ValueError, match="already registered"):
        observe(observer)
    observe(observer).stop()


async def test_under_load_all_is_told_that_happened(make: Make, heard: Heard) -> None:
    """Fifty tasks that contend, some of whom are cancelled or late: the sums come out."""
    sem = make(5)

    async def work(number: int) -> None:
        for _ in range(5):
            try:
                async with sem.acquire(timeout=0.02 if number % 3 == 0 else None):
                    await asyncio.sleep(0.001)
            except AcquireTimeout:
                pass

    tasks = [asyncio.create_task(work(number)) for number in range(50)]
    await asyncio.sleep(0.03)
    await cancelled(*tasks[::7])
    await asyncio.gather(*tasks, return_exceptions=True)
    await all_free(sem)
    waited = sum(isinstance(event, Queued) for event in heard.events)
    outcomes = [event for event in heard.events if isinstance(event, Outcome)]
    assert waited == sum(outcome.queued for outcome in outcomes)
    begun = [event.permit_id for event in outcomes if isinstance(event, Granted)]
    ended = [event.permit_id for event in heard.events if isinstance(event, PermitEvent)]
    assert len(begun) == len(set(begun))
    assert sorted(begun) == sorted(ended)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_hears_nothing_of_its_parents_permits(
    make: Make, heard: Heard
) -> None:
    """They are the parent's to end; locks of an observer's may be held by no one who could."""
    async with make():
        told = len(heard.events)
        child = os.fork()
        if child == 0:
            os._exit(len(heard.events) - told)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert heard.kinds == [Granted, Released]


def test_unobserved_nothing_of_it_is_even_imported() -> None:
    """What is off costs a look at an empty tuple."""
    code = (
        "import asyncio, sys\n"
        "from redsem_async import FairSemaphore\n"
        "from redsem_async.testing import MemoryBackend\n"
        "async def main():\n"
        "    async with FairSemaphore(MemoryBackend(), 'jobs', 1): pass\n"
        "asyncio.run(main())\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"redsem_async._observers.events", "redsem_async._observers.notifier"} & set(
        done.stdout.split()
    )
