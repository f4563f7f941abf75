"""The last minutes of semaphores on a server, and processes that have stalled."""

import re

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from redsem_async.dashboard import _history, _reader, dashboard
from redsem_async.dashboard._reader import Reader
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect
from tests.harness.wait import until
from tests.integrations.dashboard.site import serving


@pytest.mark.parametrize("how", ["a restart", "a flush"])
async def test_what_redis_has_lost_is_shown(
    how: str, server: EmbeddedRedis, connect: Connect
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
    if how == "a flush":
        await redis.flushall()
    else:
        server.kill()
        server.restart()
    async with paused, backing_off:
        await until(lambda: reads(reader), within=10)
    told = {name: [*history.events][-1] for name, history in reader.histories.items()}
    reader._known.clear()
    reader._scanned = None  # Redis has nothing of "limited" any more
    await reads(reader)
    labels = {name: reading.state.label for name, reading in reader.readings.items()}
    assert labels == dict.fromkeys(("paused", "backs off", "limited"), "state lost")
    said = {
        name: re.sub(", set .* ago by .*:[0-9]+", ", set…", each.text)
        for name, each in told.items()
    }
    lost = ", set…, was lost with Redis's data. Set it again if it is still needed."
    assert {name: (event.kind, said[name]) for name, event in told.items()} == {
        "paused": ("bad", f"The pause{lost}"),
        "backs off": ("bad", f"The back-off{lost}"),
        "limited": ("bad", f"The set limit of 2{lost}"),
        "kept": ("limit", "The set limit was removed. The clients' own limit applies (3)."),
    }


async def reads(reader: Reader) -> bool:
    await reader.tick()
    return reader.outage is None


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
    [_, event] = view["history"]["events"]
    assert event[1] == "limit"
    assert event[2].startswith("The limit was set to 2 by ")
