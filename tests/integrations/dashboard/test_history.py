"""The last minutes of a semaphore, and processes that have stalled."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from redsem_async._core.lease import heartbeat_is_overdue, refresh_is_overdue
from redsem_async._integrations.discovery import SemaphoreInfo
from redsem_async._protocol.status import Client, Holder, SemaphoreStatus, Waiter
from redsem_async.dashboard import _history, _reader, dashboard
from redsem_async.dashboard._history import EVENTS, History, Point
from redsem_async.dashboard._reader import Reader
from redsem_async.dashboard._reading import Reading
from redsem_async.testing import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Connect
from tests.harness.wait import until
from tests.integrations.dashboard.site import Site, serving

PROCESS = Client("ab" * 16, label="trainer", limit=2, lease=10.0, refresh_interval=10 / 3)


def reading(
    *,
    left: float | None = None,
    dead_in: float | None = None,
    limit: int = 2,
    set_limit: int | None = None,
) -> Reading:
    """One of a permit with *left* seconds, or of a request whose process is *dead_in* more."""
    holders = () if left is None else (Holder("id", PROCESS, 60.0, left, 1, 1),)
    waiters = () if dead_in is None else (Waiter("id", PROCESS, 0, 3.0, 1),)
    alive = {} if dead_in is None else {PROCESS.id: dead_in}
    declares = (Client("cd" * 16, limit=limit),)
    info = SemaphoreInfo("gpu", "fair", "server", set_limit, declares, dead_in=alive)
    status = SemaphoreStatus(
        *("gpu", limit, len(holders), 1, len(waiters), holders, waiters), set_limit
    )
    return Reading(info, status, None, 0.0)


def told(*readings: Reading, every: float = 1.0) -> list[tuple[str, str]]:
    """What is noted of readings, one *every* so many seconds."""
    history = History()
    for number, one in enumerate(readings):
        history.add(one, 1000.0 + number * every, 0.0)
    return [(event.kind, event.text) for event in history.events]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"limit": 3}, "The clients declare a limit of 3. It was 2."),
        ({}, {"set_limit": 5}, "The limit was set to 5. It was 2."),
        ({}, {"set_limit": 0}, "Paused. No permit is granted until it is resumed."),
        ({"set_limit": 0}, {"set_limit": 4}, "Resumed with the set limit of 4."),
        ({"set_limit": 0}, {}, "Resumed. The clients' own limit applies (2)."),
        ({"set_limit": 9}, {}, "The set limit was removed. The clients' own limit applies (2)."),
    ],
)
def test_a_changed_limit_is_noted(before: Any, after: Any, text: str) -> None:
    assert told(reading(**before), reading(**after), reading(**after)) == [("limit", text)]


async def test_what_a_restart_of_redis_lost_is_shown(
    server: EmbeddedRedis, connect: Connect
) -> None:
    """Nobody removed it, so whoever set it has to do so again."""
    redis = connect(server.url)
    paused, backing_off = FairSemaphore(redis, "paused", 3), FairSemaphore(redis, "backs off", 3)
    limited, kept = FairSemaphore(redis, "limited", 3), FairSemaphore(redis, "kept", 3)
    reader = Reader(connect(server.url), "redsem", 1.0)
    for sem in (paused, backing_off, limited, kept):
        async with sem:
            pass
    await paused.pause()
    await backing_off.back_off(600.0)
    await limited.set_limit(2)
    await kept.set_limit(9)
    for _ in range(2):
        await reader.tick()
    await kept.set_limit(None)
    await reader.tick()
    server.kill()
    server.restart()
    async with paused, backing_off:
        await until(lambda: reads(reader), within=10)
    told = {name: [*history.events][-1] for name, history in reader.histories.items()}
    assert {name: (event.kind, event.text) for name, event in told.items()} == {
        "paused": ("bad", "The pause was lost with Redis's data."),
        "backs off": ("bad", "The back-off was lost with Redis's data."),
        "limited": ("bad", "The set limit of 2 was lost with Redis's data."),
        "kept": ("limit", "The set limit was removed. The clients' own limit applies (3)."),
    }


async def reads(reader: Reader) -> bool:
    await reader.tick()
    return reader.outage is None


def test_a_stalled_holder_is_noted_until_its_permits_end() -> None:
    """Once, and again when somebody else can have them."""
    lefts = (9.0, 7.0, 3.9, 2.9, None)
    assert told(*(reading(left=left) for left in lefts), every=3.0) == [
        ("bad", "trainer has stopped refreshing. The first of its permits expires in 3.9 s."),
        ("good", "trainer's permits are free again."),
    ]


def test_a_stalled_waiter_is_noted_until_it_recovers() -> None:
    alive = (14.0, 6.0, 5.0, 16.0)
    assert told(*(reading(dead_in=dead_in) for dead_in in alive)) == [
        ("bad", "trainer has stopped sending heartbeats. Its requests leave the queue in 6.0 s."),
        ("good", "trainer has recovered."),
    ]


def test_processes_that_do_not_say_their_lease_are_not_accused() -> None:
    silent = Holder("id", Client("ab" * 16), 60.0, 0.5, 1, 1)
    status = SemaphoreStatus("gpu", 2, 1, 1, 0, (silent,), ())
    assert Reading(SemaphoreInfo("gpu"), status, None, 0.0).stalled == {}


@pytest.mark.parametrize("lease", [1.0, 2.0, 10.0, 60.0, 3600.0])
def test_a_process_that_is_on_time_is_never_overdue(lease: float) -> None:
    """Not with a refresh that comes a tenth of a lease late, nor after one missed heartbeat."""
    assert not refresh_is_overdue(lease - lease / 3 - lease / 10, lease, lease / 3)
    assert refresh_is_overdue(lease / 3, lease, lease / 3)
    assert not heartbeat_is_overdue(lease, lease)


def test_a_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point for each slot, for 15 minutes; and the latest events."""
    history = History()
    for number in range(10_000):
        history.add(reading(set_limit=number % 2), 1000.0 + number, 0.0)
    assert 299 <= len(history.points) <= 301
    assert len(history.events) == EVENTS
    assert history.points[-1] == Point(10_999.0, 0, 1, 0)


def test_a_time_in_which_nothing_was_read_is_a_gap() -> None:
    """And what changed in it happened at a time that nobody knows."""
    history = History()
    history.add(reading(), 1000.0, 0.0)
    history.add(reading(set_limit=5), 1060.0, 1050.0)
    assert [point.held for point in history.points] == [0, None, 0]
    assert not history.events


async def test_histories_are_kept_of_a_bounded_number_of_names(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is opened is among them."""
    monkeypatch.setattr(_reader, "HISTORIES", 2)
    reader = Reader(redis, "redsem", 60.0)
    for number in range(4):
        await FairSemaphore(redis, f"name-{number}", 1).pause()
    while not reader.complete:
        await reader.tick()
    assert len(reader.histories) == 2
    async with reader.watching(_reader.Watch(detail=_reader.Detail("name-3"))):
        await until(lambda: "name-3" in reader.histories)
    assert len(reader.histories) == 2


async def test_the_last_minutes_are_there_when_a_page_is_opened(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the dashboard is served by itself, as `serve` does."""
    for module in (_history, _reader):
        monkeypatch.setattr(module, "SLOT", 0.05)
    ticks = 0
    tick = Reader.tick

    async def counted(self: Reader) -> None:
        nonlocal ticks
        await tick(self)
        ticks += 1

    monkeypatch.setattr(Reader, "tick", counted)
    app = dashboard(redis, interval=60.0)
    sem = FairSemaphore(redis, "gpu", 4)
    await sem.set_limit(3)
    async with app.router.lifespan_context(app), sem:
        await until(lambda: ticks > 50)
        await sem.set_limit(2)
        before = ticks
        await until(lambda: ticks > before + 50)
        async with serving(app) as site:
            view = await site.view(lambda view: view["found"], name="gpu")
    assert len(view["history"]["points"]) > 2
    [event] = view["history"]["events"]
    assert event[1:] == ["limit", "The limit was set to 2. It was 3."]


async def test_a_stalled_process_comes_first(site: Site, redis: Redis, start: StartWorker) -> None:
    """What it holds and what it waits for: marked, then gone."""
    options = {"kind": FairSemaphore, "lease": 2.0, "label": "doomed"}
    holder = await start("hold", name="held", **options)
    await holder.heard("held")
    lives = await FairSemaphore(redis, "waited-for", 1, label="lives").acquire()
    waiter = await start("wait", name="waited-for", **options)
    await waiter.heard("waits")
    await site.view(lambda view: view["waiting"] == 1 and view["held"] == 2)
    for process in (holder, waiter):
        process.stop()

    async def list_shows(name: str) -> None:
        view = await site.view(
            lambda view: (
                view["rows"][0]["state"]
                == "stalled"
                == (next(row["state"] for row in view["rows"] if row["name"] == name))
            )
        )
        assert view["attention"]["stalled"] >= 1

    async def page_shows(name: str, entries: str) -> None:
        view = await site.view(
            lambda view: any(entry["stalled"] for entry in view.get(entries, ())), name=name
        )
        assert view["words"].startswith("doomed has stopped ")

    async with asyncio.TaskGroup() as group:
        for name, entries in (("held", "holders"), ("waited-for", "waiters")):
            _ = group.create_task(list_shows(name))
            _ = group.create_task(page_shows(name, entries))
    view = await site.view(lambda view: view.get("waiting") == 0, name="waited-for")
    assert (view["waiters"], view["oldest"]) == ([], None)
    await lives.release()
