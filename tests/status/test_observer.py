"""Observers get what happens to permits: each beginning, and its one end."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from redsem_async import (
    AcquireTimeout,
    FairSemaphore,
    Permit,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    aclose,
)
from redsem_async._observers.registry import observers
from redsem_async.observer import Event, observe
from redsem_async.testing import MemoryBackend
from tests.harness.children import forked
from tests.harness.clients import Client, Make, MakePair, key_of
from tests.harness.inside import beat
from tests.harness.wait import all_free, cancelled, give_back, queue_up, soon, until, waiting

_request: ContextVar[object] = ContextVar("request")

OUTCOMES = {"granted", "abandoned", "shed", "failed"}


class Recorder:
    """Keeps the events of the semaphores of one name."""

    def __init__(self, name: str) -> None:
        self.events: list[Any] = []  # of type Event, whose facts may be None
        self._name = name
        self.noted: Callable[[], object] = lambda: None

    def __call__(self, event: Event) -> None:
        if event.name == self._name:
            self.events.append(event)
            self.noted()

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def last(self, kind: str) -> Any:
        """The last event of *kind*, whose facts it has."""
        found = [event for event in self.events if event.kind == kind]
        assert found, (kind, self.events)
        return found[-1]


@pytest.fixture
def recorder(name: str) -> Iterator[Recorder]:
    """Observes the test's semaphore."""
    with observe(made := Recorder(name)):
        yield made


async def test_events_carry_keys_only_where_they_are_asked_for(
    client: Client, name: str, recorder: Recorder
) -> None:
    """There may be as many as tenants, and they may identify a person."""
    sem = FairSemaphore(client, name, 2, key_limit=1)
    with observe(asked := Recorder(name), keys=True):
        async with sem.acquire(key="acme") as permit:
            waiter = await queue_up(sem, key="acme")
            with pytest.raises(AcquireTimeout):
                await sem.acquire(key="acme", timeout=0)
            await permit.refresh()
        last = await waiter
        async with sem.acquire(key=None):
            assert await sem.release(last.id)
            await until(lambda: "lost" in asked.kinds)
    assert {*asked.kinds} == {"granted", "queued", "shed", "refreshed", "released", "lost"}
    with_key = [event for event in asked.events if event.key is not None]
    assert {event.key for event in with_key} == {"acme"}
    assert [event.kind for event in asked.events if event.key is None] == ["granted", "released"]
    assert recorder.kinds == asked.kinds
    assert {event.key for event in recorder.events} == {None}
    assert "acme" not in repr(recorder.events)


async def test_the_request_that_came_first_is_not_kept_and_leaves_no_trace(
    pair: MakePair,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connection, timers and refreshes are everybody's, and outlive the request they began in."""
    caplog.set_level(logging.INFO)
    sem, other = pair(1, lease=1.0)
    contexts: list[object] = []

    def note(record: logging.LogRecord | None = None) -> bool:
        contexts.append(_request.get(None))
        return record is not None

    monkeypatch.setattr(recorder, "noted", note)
    monkeypatch.setattr(caplog.handler, "filters", [note])

    async def first() -> tuple[Permit, weakref.ref[object]]:
        _request.set(request := Recorder("of the request"))
        return await sem.acquire(), weakref.ref(request)

    held, request = await asyncio.create_task(first())
    contexts.clear()  # it was granted in the context of the task that asked
    await until(lambda: "refreshed" in recorder.kinds)
    assert await other.release(held.id)
    await soon(held.wait_lost())
    gc.collect()
    assert request() is None
    assert recorder.kinds[-1] == "lost"
    assert caplog.messages
    assert {*contexts} == {None}


async def test_a_waiter_is_queued_and_granted_or_abandoned(
    make: Make, client: MemoryBackend, recorder: Recorder
) -> None:
    """However often it has to ask."""
    sem = make()
    first = await sem.acquire()
    second, third, leaving = [await queue_up(sem) for _ in range(3)]
    await until(lambda: recorder.kinds.count("queued") == 3)
    client._store.redis.command("DEL", key_of(sem, "queue"))
    beat(sem)
    await waiting(sem, 3)
    await cancelled(leaving)
    assert recorder.last("abandoned").queued
    await give_back(first, second, third)
    await all_free(sem)
    outcomes = [event for event in recorder.events if event.kind in OUTCOMES]
    assert [event.kind for event in outcomes] == ["granted", "abandoned", "granted", "granted"]
    assert [event.queued for event in outcomes] == [False, True, True, True]
    assert recorder.kinds.count("queued") == recorder.kinds.count("released") == 3


async def test_a_refused_request_is_shed(make: Make, recorder: Recorder) -> None:
    """With the reason, and the same advice that the caller gets."""
    sem = make(max_waiters=0)
    async with sem:
        with pytest.raises(AcquireTimeout) as late:
            await sem.acquire(timeout=0)
        assert recorder.last("shed").reason == "timeout"
        assert recorder.last("shed").retry_after == late.value.retry_after
        with pytest.raises(QueueFull):
            await sem.acquire()
        assert recorder.last("shed").reason == "queue full"
        assert await sem.try_acquire() is None
    assert recorder.kinds == ["granted", "shed", "shed", "shed", "released"]


async def test_a_permit_handed_over_is_granted_again(make: Make, recorder: Recorder) -> None:
    sem = make()
    permit = await sem.acquire()
    async with sem.adopt(await permit.detach(expires_in=5)) as adopted:
        pass
    assert recorder.kinds == ["granted", "detached", "granted", "released"]
    assert recorder.last("detached").permit_id == permit.id
    assert recorder.last("released").permit_id == adopted.id


async def test_a_close_ends_what_was_begun(make: Make, client: Client, recorder: Recorder) -> None:
    """A waiter and what is asked meanwhile fail, adoptions too, and a holder loses."""
    sem = make()
    permit = await sem.acquire()
    waiter = await queue_up(sem)
    closing = asyncio.create_task(aclose(client, drain=0.01))
    await asyncio.sleep(0)
    for refused in (sem.acquire(), sem.try_acquire(), sem.adopt(permit.id), waiter):
        with pytest.raises(SemaphoreClosed):
            await refused
    with pytest.raises(PermitLost):
        await sem.adopt("no id")
    await closing
    assert permit.lost
    assert sorted(recorder.kinds) == ["failed"] * 5 + ["granted", "lost", "queued"]
    closed = [isinstance(event.error, SemaphoreClosed) for event in recorder.events]
    assert closed.count(True) == 4


async def test_a_reap_says_how_many_it_dropped(
    pair: MakePair, client: MemoryBackend, recorder: Recorder
) -> None:
    sem, there = pair(lease=5.0)
    permit = await there.acquire()
    await sem.reap()
    assert "reclaimed" not in recorder.kinds  # nothing had expired
    await permit.detach(expires_in=1.0)
    client.advance(2.0)
    assert await sem.reap() == 1
    mode = recorder.events[0].mode
    assert recorder.last("reclaimed") == Event(kind="reclaimed", name=sem.name, mode=mode, count=1)


async def test_each_end_belongs_to_a_beginning_that_was_observed(make: Make, name: str) -> None:
    """Whenever an observer comes or leaves: counts of permits and waiters never go wrong."""
    sem = make(2)
    before = await sem.acquire()
    early, late = Recorder(name), Recorder(name)
    with observe(early):
        between = await sem.acquire()
        waiter = await queue_up(sem)
        await until(lambda: "queued" in early.kinds)
    with observe(late):
        await before.release()
        permit = await waiter
        await give_back(between, permit)
    assert early.kinds == ["granted", "queued"]
    assert late.kinds == ["granted", "released"]
    assert not late.last("granted").queued


async def test_an_observer_that_is_stopped_gets_nothing_more_of_a_round_that_has_begun(
    make: Make, name: str
) -> None:
    """By another observer, or by itself, when many requests are queued in one round."""
    other = Recorder(name)

    class Once(Recorder):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            mine.stop()
            others.stop()

    once = Once(name)
    mine, others = observe(once), observe(other)
    sem = make()
    permit = await sem.acquire()
    assert (once.kinds, other.kinds) == (["granted"], [])
    mine, others = observe(once), observe(other)
    waiters = [await queue_up(sem) for _ in range(3)]
    assert (once.kinds, other.kinds) == (["granted", "queued"], [])
    await give_back(permit, *waiters)


async def test_an_observer_that_fails_harms_no_permit(
    make: Make, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is logged, and permits and other observers go on."""

    def failing(event: Event) -> None:
        raise asyncio.CancelledError if event.kind == "granted" else ValueError("no disk")

    with observe(failing):
        async with (sem := make()):
            pass
    assert recorder.kinds == ["granted", "released"]
    assert await sem.available() == 1
    logged = [record.getMessage() for record in caplog.records]
    assert [text for text in logged if "observer failed" in text] == [
        f"an observer failed: {failing!r}, at {kind}" for kind in ("granted", "released")
    ]


async def _coroutine_function(_: Event) -> None:
    """Nobody would await it."""


@pytest.mark.parametrize("observer", [None, object(), _coroutine_function])
def test_only_a_function_observes_and_once(observer: Any, recorder: Recorder) -> None:
    """Twice the same would count all twice. A method is the same whenever it is looked up."""
    with pytest.raises(TypeError, match="observer must be a function, not"):
        observe(observer)
    with observe(recorder.__call__), pytest.raises(ValueError, match="already added"):
        observe(recorder.__call__)
    observe(recorder.__call__).stop()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_observes_nothing_of_its_parent(
    make: Make, recorder: Recorder
) -> None:
    """They are the parent's to end, and locks of an observer's may be held for ever."""
    async with make():
        before = len(recorder.events)
        assert forked(lambda: len(recorder.events) == before)
    assert recorder.kinds == ["granted", "released"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_observer_is_told_keys_in_a_forked_child_too(recorder: Recorder) -> None:
    with observe(recorder.events.append, keys=True):
        assert forked(lambda: observers.notifiers[-1].keys)
