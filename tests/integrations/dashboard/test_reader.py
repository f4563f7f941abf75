"""How much is read from Redis, when, and what is shown while it cannot be read."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from redsem_async import BackendUnavailable, FairSemaphore, Semaphore, aclose
from redsem_async.dashboard import _app, _reader, dashboard
from redsem_async.dashboard._reader import BUDGET, DETAILS, SHOWN, Detail, Reader, Watch
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect, scripts_run
from tests.harness.servers import stopped
from tests.harness.topologies import Cluster
from tests.harness.wait import cancelled, in_background, soon, until
from tests.integrations.cli.commands import queued
from tests.integrations.dashboard.conftest import Serve
from tests.integrations.dashboard.site import PATIENCE, Site, first

INTERVAL = 0.05


async def make_names(redis: Redis) -> list[str]:
    """Have so many names in use that they are not read at once."""
    names = [f"name-{number:04}" for number in range(4 * BUDGET)]
    await redis.mset({f"redsem:{{{name}}}:limit": 1 for name in names})
    return names


async def test_nothing_is_read_while_nobody_looks(site: Site, redis: Redis, admin: Redis) -> None:
    """A dashboard that is mounted everywhere costs nothing."""
    sem = FairSemaphore(redis, "quiet", 1)
    await sem.set_limit(1)
    for _ in range(3):  # a reload ends the last stream while the next begins
        assert (await site.view())["total"] == 1

    async def ended() -> bool:
        before = await scripts_run(admin)
        await asyncio.sleep(5 * 0.1)  # five intervals of the dashboard
        return await scripts_run(admin) == before

    await until(ended, "the reader stops", within=10)


async def test_all_tabs_share_one_reader(site: Site, redis: Redis, admin: Redis) -> None:
    """Ten operators who look at an incident are no load of their own."""
    for number in range(5):
        await FairSemaphore(redis, f"name-{number}", 1).set_limit(1)
    async with AsyncExitStack() as stack:
        tabs = [await stack.enter_async_context(site.stream()) for _ in range(10)]
        for tab in tabs:
            while not (await anext(tab))["complete"]:
                pass
        before, rounds = await scripts_run(admin), 10
        for _ in range(rounds):
            await asyncio.gather(*(anext(tab) for tab in tabs))
        read = await scripts_run(admin) - before
    # Each round five names; the streams may have had a reading or two in stock.
    assert read <= 5 * (rounds + 5)


async def test_a_tick_reads_a_bounded_number_of_names(redis: Redis, admin: Redis) -> None:
    """However many names there are, and rows or tabs show; and each name has its turn."""
    names = await make_names(redis)
    reader = Reader(redis, "redsem", 60.0)
    tabs = [Watch(rows=names[:400])]
    tabs += [Watch(detail=Detail(name)) for name in names[:50]]
    for watches in ([Watch(rows=["name-0599", "name-0000"])], tabs):
        reader._watches = {*watches}
        while not reader.complete:
            await reader.tick()
        seen: set[object] = set()
        for _ in range(2 * len(names) // (BUDGET - SHOWN)):
            before, known = await scripts_run(admin), reader.readings | reader.details
            await reader.tick()
            assert 0 < await scripts_run(admin) - before <= BUDGET + DETAILS
            now = reader.readings | reader.details
            seen |= {what for what, reading in now.items() if reading is not known.get(what)}
        assert len(seen) == len(names) + len(reader.details)


async def test_all_pages_that_are_open_are_read_in_turns(redis: Redis) -> None:
    reader = Reader(redis, "redsem", INTERVAL)
    details = [Detail(name) for name in (await make_names(redis))[: DETAILS + 1]]
    reader._watches = {Watch(detail=detail) for detail in details}
    for _ in range(2):
        await reader._read_details()
    before = {**reader.details}
    for _ in range(2):
        await reader._read_details()
    assert not [each for each in details if reader.details[each] is before[each]]


async def test_a_name_that_another_class_uses_now_is_read_as_that(redis: Redis) -> None:
    reader = Reader(redis, "redsem", INTERVAL)
    for kind in (FairSemaphore, Semaphore):
        sem = kind(redis, "gpu", 1)
        async with sem:
            reading = await reader.read("gpu", 1)
            assert reading is not None and reading.status is not None, reading
        await sem.delete()


async def test_what_was_read_long_ago_is_not_shown(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is opened an hour after the last one waits for new numbers."""
    monkeypatch.setattr(_reader, "OLD", 0.0)
    await FairSemaphore(redis, "gpu", 1).set_limit(1)
    reader = Reader(redis, "redsem", INTERVAL)
    async with reader.watching(Watch()):
        await until(lambda: reader.complete)
    assert "gpu" in reader.readings
    monkeypatch.setattr(reader, "tick", asyncio.Event().wait)  # Redis takes long to answer
    async with reader.watching(Watch()):
        await until(lambda: not reader.complete)
        assert reader.readings == {}


async def test_it_ends_in_whatever_moment_of_a_read(own_client: Any, redis: Redis) -> None:
    """A cancellation that is swallowed below leaves no second reader behind."""
    for number in range(6):
        await FairSemaphore(redis, f"name-{number}", 3).set_limit(2)
    reader = Reader(own_client(), "redsem", 0.05)
    ended: set[asyncio.Task[None] | None] = set()
    for spread in range(400):
        async with reader.watching(Watch(detail=Detail("name-1"))):
            await asyncio.sleep(spread % 20 * 0.001)
            ended.add(reader._task)
        assert reader.outage is None
    await until(lambda: all(task is None or task.done() for task in ended), within=5)


async def test_a_client_that_does_not_read_is_dropped(
    redis: Redis, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read for it any more, and nothing is kept for it."""
    monkeypatch.setattr(_app, "STALLED", 0.1)
    app = dashboard(redis, interval=0.1)
    sent: list[Any] = []
    blocked, last = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("more_body"):
            blocked.set()
            await asyncio.Event().wait()
        elif message["type"] == "http.response.body":
            last.set()

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/events", "headers": []}
    scope |= {"asgi": {"version": "3.0", "spec_version": "2.4"}, "query_string": b""}
    receive: Any = asyncio.Event().wait
    task = in_background(app(scope, receive, send))
    await soon(blocked.wait())
    await soon(last.wait())
    await soon(task)
    assert len(sent) == 3  # its head, one event, its end
    assert await scripts_run(admin) == 0


async def test_a_line_of_thousands_is_read_in_part(site: Site, redis: Redis, admin: Redis) -> None:
    """The reply to a page's reading stays small, however many wait."""
    sem = FairSemaphore(redis, "crawl", 1)
    async with sem:
        tasks = await queued(sem, 3000)
        await site.view(name="crawl")
        before = (await admin.info("stats"))["total_net_output_bytes"]
        view = await site.view(name="crawl")
        after = (await admin.info("stats"))["total_net_output_bytes"]
        await cancelled(*tasks)
    assert (view["waiting"], len(view["waiters"])) == (3000, 100)
    assert after - before < 200_000


@pytest.mark.parametrize("name", [None, "gpu"])
async def test_an_outage_is_shown_and_its_end(
    name: str | None, own_client: Any, serve: Serve, server: EmbeddedRedis, redis: Redis
) -> None:
    """The last numbers stay, with the word that they are old."""
    site = await serve(own_client())
    await FairSemaphore(redis, "gpu", 4).set_limit(3)
    query = {} if name is None else {"name": name}
    async with site.stream(**query) as events, asyncio.timeout(3 * PATIENCE):
        await first(events, lambda view: view["complete"] and "gpu" in str(view))
        server.kill()
        view = await first(events, lambda view: view["outage"])
        assert view["outage"]["since"] <= view["at"]
        [row] = view["rows"] if name is None else [view]
        assert row["setLimit"] == 3
        server.restart()
        # The server has lost its state: the name is not in use any more.
        view = await first(events, lambda view: not view["outage"] and "was lost" in str(view))
        if name is not None:
            view = await first(events, lambda view: view["found"] is False)
            assert "The set limit of 3, set" in view["lost"]


async def test_an_outage_names_no_semaphore(redis: Redis, monkeypatch: Any) -> None:
    """The one that was being read is another than that of most pages."""
    reader = Reader(redis, "redsem", 60.0)
    error = BackendUnavailable("other", "no answer in 3 s")
    monkeypatch.setattr(reader, "_data_id", AsyncMock(side_effect=error))
    await reader.tick()
    assert reader.outages[0].text == "Redis became unreachable (no answer in 3 s)."


async def test_a_server_that_stays_silent_is_an_outage(
    serve: Serve, server: EmbeddedRedis, redis: Redis, connect: Connect, monkeypatch: Any
) -> None:
    """Also with a client that would wait for ever."""
    monkeypatch.setattr(_reader, "READ_TIMEOUT", 0.3)
    site = await serve(connect(server.url, socket_timeout=None))
    await FairSemaphore(redis, "gpu", 4).set_limit(3)
    async with site.stream(name="gpu") as events, asyncio.timeout(3 * PATIENCE):
        assert (await anext(events))["outage"] is None
        with stopped(server):
            view = await first(events, lambda view: view["outage"])
            assert view["at"] - view["outage"]["since"] >= 0.3, "it was silent before"
        await first(events, lambda view: view["outage"] is None)


async def test_the_shards_of_a_cluster_are_all_read(serve: Serve, cluster: Cluster) -> None:
    """Names are on every shard."""
    async with RedisCluster.from_url(cluster.url) as client:
        names = [f"name-{number}" for number in range(12)]
        for name in names:
            await FairSemaphore(client, name, 2).set_limit(1)
        site = await serve(client)
        view = await site.view(lambda view: view["total"] == 12)
        assert sorted(row["name"] for row in view["rows"]) == sorted(names)
        assert (await site.view(name="name-3"))["setLimit"] == 1
        assert (await site.http.get("metrics")).text.count("redsem_status_limit{") == 12
        await aclose(client)
