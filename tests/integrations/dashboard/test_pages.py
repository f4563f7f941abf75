"""What the pages show."""

import asyncio
import html
import re
from typing import Any

import httpx
import pytest
import redis as sync
from fastapi import FastAPI
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redsem_async import FairSemaphore, Rate, Semaphore, __version__
from redsem_async.dashboard import dashboard
from redsem_async.dashboard._views import matcher
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.harness.clients import Connect
from tests.harness.wait import cancelled, queue_up, waiting
from tests.integrations.cli.commands import as_user, queued
from tests.integrations.dashboard.conftest import Serve
from tests.integrations.dashboard.site import PATIENCE, Site, first, serving

HOSTILE = """<img src=x onerror=alert(1)>"'&</script>\u202e"""


async def test_the_list_shows_trouble_and_long_waits_first(site: Site, redis: Redis) -> None:
    """Somebody who asks why everything waits looks at the first row. A full one is no trouble."""
    idle, half = FairSemaphore(redis, "idle", 4), Semaphore(redis, "half", 2)
    full = FairSemaphore(redis, "contended", 1, label="web")
    slow = FairSemaphore(redis, "slow", 1, lease=0.5)
    async with idle, half, full, slow:
        await idle.pause()
        tasks = [*await queued(slow), *await queued(full, 2)]
        view = await site.view(lambda view: view["attention"] and view["waiting"] == 3)
        await cancelled(*tasks)
    assert [row["name"] for row in view["rows"]] == ["slow", "idle", "contended", "half"]
    long, stopped, contended, half_row = view["rows"]
    assert (long["state"], long["attention"], long["oldest"] > 0.5) == (
        "queuing",
        "long wait",
        True,
    )
    assert (stopped["limit"], stopped["setLimit"], stopped["state"]) == (0, 0, "paused")
    assert (contended["held"], contended["limit"], contended["waiting"]) == (1, 1, 2)
    assert (contended["state"], contended["attention"]) == ("queuing", None)
    assert (half_row["class"], half_row["held"], half_row["limit"]) == ("Semaphore", 1, 2)
    assert (view["held"], view["waiting"], view["attention"]) == (4, 3, {"long wait": 1})


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", {"mail", "tenant:acme", "tenant:globex"}),
        ("TENANT", {"tenant:acme", "tenant:globex"}),
        ("tenant:*", {"tenant:acme", "tenant:globex"}),
        ("t*acm?", {"tenant:acme"}),
        ("[sm]*", {"mail"}),
        ("nobody", set[str]()),
    ],
)
def test_a_filter_is_a_part_of_the_name_or_a_glob(words: str, names: set[str]) -> None:
    known = ("mail", "tenant:acme", "tenant:globex")
    assert {*filter(matcher(words), known)} == names


async def test_a_list_has_as_many_rows_as_are_asked_for(site: Site, redis: Redis) -> None:
    """The totals count the others, too."""
    for number in range(60):
        await FairSemaphore(redis, f"tenant-{number:02}", 1).pause()
    view = await site.view()
    assert (len(view["rows"]), view["matched"], view["attention"]) == (50, 60, {})
    view = await site.view(rows="55")
    assert len(view["rows"]) == 55
    for nonsense in ("-1", "1e9", "99999999", "x", "٣"):
        assert (await site.view(rows=nonsense))["matched"] == 60


async def test_one_semaphore_is_shown_in_full(
    site: Site, server: EmbeddedRedis, redis: Redis, connect: Connect, monkeypatch: Any
) -> None:
    """Who holds it, who waits, and who declares which limit. A process is one row and one colour.

    It may have several clients of Redis, or a new id since it was idle.
    """
    sem = FairSemaphore(redis, "gpu", 3, label="trainer")
    second = await FairSemaphore(connect(server.url), "gpu", 3, label="trainer").acquire()
    first = await sem.acquire(permits=2)
    waiter = asyncio.create_task(sem.acquire())
    await waiting(sem, 1)
    with monkeypatch.context() as there:
        there.setattr("os.getpid", lambda: 1)
        other = FairSemaphore(connect(server.url), "gpu", 4, label="batch")
        late = asyncio.create_task(other.acquire(permits=2))
        await waiting(sem, 2)
    view = await site.view(name="gpu")
    holder = next(holder for holder in view["holders"] if holder["permits"] == 2)
    assert holder["client"]["label"] == "trainer"
    assert holder["token"] == str(first.fencing_token)
    assert 0 < holder["left"] <= sem.lease
    assert [(w["position"], w["client"]["label"], w["permits"]) for w in view["waiters"]] == [
        (1, "trainer", 1),
        (2, "batch", 2),
    ]
    assert view["waiters"][0]["age"] >= view["waiters"][1]["age"] > 0
    trainer, batch = sorted(view["clients"], key=lambda client: client["limit"])
    assert (trainer["held"], trainer["waiting"]) == (3, 1)
    assert (batch["limit"], batch["waiting"]) == (4, 1)
    hues = [entry["client"]["hue"] for entry in (*view["holders"], *view["waiters"])]
    assert hues == [trainer["hue"]] * 3 + [batch["hue"]]
    assert trainer["hue"] != batch["hue"]
    again = await site.view(name="gpu")
    assert {client["hue"] for client in again["clients"]} == {*hues}, "another tab has the same"
    assert view["declared"] == [3, 4]
    assert {client["version"] for client in view["clients"]} == {__version__}
    await cancelled(waiter, late)
    for permit in (first, second):
        await permit.release()


async def test_keys_are_shown_with_what_was_set_for_them(site: Site, redis: Redis) -> None:
    """And that requests wait for their keys, not for the overall limit."""
    sem = FairSemaphore(redis, "llm", 10, key_limit=2, share=True, label="api")
    await sem.set_limit(1, key="acme")
    async with sem.acquire(key="acme"):
        waiter = asyncio.create_task(sem.acquire(key="acme"))
        await waiting(sem, 1)
        await sem.back_off(30, key="beta")
        view = await site.view(name="llm")
        [row] = (await site.view())["rows"]
        await cancelled(waiter)
    assert (view["mode"], [holder["key"] for holder in view["holders"]]) == (
        "fair+share",
        ["acme"],
    )
    acme, beta = view["keys"]
    numbers = ("key", "held", "waiting", "limit", "setLimit", "backOff")
    assert [acme[name] for name in numbers] == ["acme", 1, 1, 1, 1, None]
    assert " s ago by api@" in acme["setOrigin"]
    assert " s ago by api@" in beta["backOffOrigin"]
    assert {(view["state"], view["who"]), (row["state"], row["who"])} == {("keys full", "acme")}
    told = [text for _, _, text in view["history"]["events"]]
    assert [text.partition(" by ")[0] for text in told] == [
        "Key acme: the limit was set to 1",
        "Key beta: a back-off of 30 s was started",
    ]


async def test_rates_are_shown_with_their_debt(site: Site, redis: Redis) -> None:
    sem = FairSemaphore(redis, "llm", 3, rate=Rate(1, per=60, burst=5))
    async with sem.acquire(cost=20):
        waiter = await queue_up(sem)
        view = await site.view(name="llm")
        await cancelled(waiter)
        [row] = (await site.view(lambda view: view["complete"] and not view["waiting"]))["rows"]
    [rate] = view["rates"]
    assert (rate["name"], rate["burst"], round(rate["available"])) == ("requests", 5, -15)
    for shown in (view, row):  # without a queue, too
        assert (shown["state"], shown["who"]) == ("rate used up", "requests")


@pytest.mark.parametrize("kind", [FairSemaphore, Semaphore])
async def test_slots_are_shown_with_their_holders(
    kind: type[FairSemaphore], site: Site, redis: Redis
) -> None:
    """A `Semaphore` keeps no order, with slots or without."""
    sem = kind(redis, "gpu", slots=["cuda:0", "cuda:1"])
    async with sem, sem:
        waiters = await queued(sem, 2)
        view = await site.view(name="gpu")
        await cancelled(*waiters)
    assert {holder["slots"] for holder in view["holders"]} == {"cuda:0", "cuda:1"}
    assert (view["slotted"], view["held"], view["limit"], view["waiting"]) == (True, 2, 2, 2)
    assert (len(view["waiters"]), view["moreWaiters"], view["oldest"] > 0) == (2, 0, True)


async def test_many_keys_are_not_read_whole(site: Site, redis: Redis) -> None:
    sem = FairSemaphore(redis, "llm", 9000, key_limit=130)
    permits = [await sem.acquire(key=f"tenant:{n:03}", permits=130 - n) for n in range(130)]
    view = await site.view(name="llm")
    assert (len(view["keys"]), view["moreKeys"]) == (100, True)
    asked: list[tuple[dict[str, Any], str | None, bool]] = [
        ({"keys_after": view["keys"][-1]["key"]}, "tenant:100", False),
        ({"keys": "tenant:120"}, "tenant:120", False),
        ({"keys": "tenant:1"}, "tenant:100", False),
        ({"keys": "tenant:0"}, "tenant:000", True),
        ({"keys": "u"}, None, False),
    ]
    for query, start, more in asked:
        view = await site.view(name="llm", **query)
        keys = [key["key"] for key in view["keys"]] or [None]
        assert (keys[0], view["moreKeys"]) == (start, more)
    for permit in permits:
        await permit.release()


async def test_a_name_that_is_not_in_use_is_no_error(site: Site, redis: Redis) -> None:
    """The page stays open and shows the semaphore when it comes into use."""
    async with site.stream(name="later") as events:
        assert (await anext(events))["found"] is False
        async with FairSemaphore(redis, "later", 1), asyncio.timeout(10):
            await first(events, lambda view: view["found"])


async def test_what_is_no_semaphore_is_said(site: Site, redis: Redis) -> None:
    """Keys of another program under the same prefix do not hide the others."""
    async with FairSemaphore(redis, "newer", 1):
        pass
    await redis.hset("redsem:{newer}:meta", "layout", "99")
    await redis.set("redsem:{broken}:meta", "text")
    await redis.set(f"redsem:{{{'x' * 600}}}:limit", 1)  # no client takes such a name
    await redis.set("redsem:{number}:limit", "none")
    async with FairSemaphore(redis, "fine", 1):
        view = await site.view(lambda view: view["total"] == 5)
    assert [row["state"] for row in view["rows"]] == [*["unreadable"] * 4, "full"]
    assert view["attention"] == {"unreadable": 4}
    assert "do not hold a semaphore" in (await site.view(name="broken"))["words"]
    layout = f"layout 99 (used by redsem-async {__version__})"
    assert layout in (await site.view(name="newer"))["words"]


async def test_without_the_right_to_list_names(
    serve: Serve, server: EmbeddedRedis, admin: Redis, redis: Redis, connect: Connect
) -> None:
    """The list says so; a page whose name is known works."""
    url = await as_user(admin, server.url, "~*", "&*", "+@all", "-scan")
    site = await serve(connect(url))
    async with FairSemaphore(redis, "known", 1):
        assert "scan" in (await site.view(lambda view: view["refusal"]))["refusal"].lower()
        assert (await site.view(name="known"))["held"] == 1


# -- text from outside


async def test_hostile_text_stays_text(serve: Serve, redis: Redis) -> None:
    """A name comes from whoever may call the service; the operator's browser must not run it."""
    site = await serve(title=HOSTILE)
    sem = FairSemaphore(redis, HOSTILE, 1, label=HOSTILE)
    async with sem:
        page = await site.page(HOSTILE)
        view = await site.view(name=HOSTILE)
    assert "<img" not in page
    assert html.escape(HOSTILE, quote=False).split("\"'")[0] in page
    assert page.count("<script") == 1
    assert view["holders"][0]["client"]["label"] == HOSTILE


async def test_pages_run_no_script_of_others(site: Site) -> None:
    """What slips in nevertheless is not run: only the files of the package are."""
    for path in ("", "semaphore?name=x", "static/list.js", "metrics", "nothing", "events"):
        async with site.http.stream("GET", path) as response:
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["x-content-type-options"] == "nosniff"
    for path in ("", "semaphore?name=x"):
        page = (await site.http.get(path)).text
        assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
        assert not re.search(r"<style|\sstyle=|\son\w+=", page)
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []


async def test_ids_are_not_shown_whole(site: Site, redis: Redis) -> None:
    """The id of a permit is the right to release it."""
    sem = FairSemaphore(redis, "gpu", 1)
    async with sem.acquire() as permit:
        hub, _, number = permit.id.partition(".")
        waiter = asyncio.create_task(sem.acquire())
        await waiting(sem, 1)
        texts = [await site.page(), await site.page("gpu")]
        texts += [str(await site.view()), str(await site.view(name="gpu"))]
        texts.append((await site.http.get("metrics")).text)
        assert f"{hub[:6]}….{number}" in texts[3]
        for text in texts:
            assert hub[:9] not in text
        await cancelled(waiter)


# -- where it is mounted


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "nested"])
async def test_it_is_mounted_anywhere(framework: str, redis: Redis) -> None:
    """All addresses are relative to its folder."""
    own = dashboard(redis, interval=0.1)
    app: Any = Starlette(routes=[Mount("/ops/semaphores", own)])
    if framework == "fastapi":
        app = FastAPI()
        app.mount("/ops/semaphores", own)
    elif framework == "nested":
        app = Starlette(routes=[Mount("/ops", Starlette(routes=[Mount("/semaphores", own)]))])
    async with FairSemaphore(redis, "a/b?c", 1), serving(app, "/ops/semaphores/") as site:
        unknown = await site.http.get("some/<i>")
        assert unknown.status_code == 404
        links = re.findall(r'href="([^"#]+)"', unknown.text)
        assert '"../semaphore?name=some%2F%3Ci%3E"' in unknown.text
        found = [await site.http.get(f"some/{html.unescape(link)}") for link in links]
        assert {response.status_code for response in found} == {200}, links
        bare = await site.http.get(site.url.rstrip("/"), follow_redirects=True)
        assert str(bare.url) == site.url
        page = await site.page("a/b?c")
        for link in re.findall(r'(?:src|href)="([^"#]+)"', page):
            response = await site.http.get(httpx.URL(site.url).join(html.unescape(link)))
            assert response.status_code == 200, link
        assert (await site.view(name="a/b?c"))["held"] == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"writable": True}, "authorize"),
        ({"writable": 1}, "writable"),
        ({"interval": 0.0}, "interval"),
        ({"interval": float("nan")}, "interval"),
        ({"prefix": ""}, "prefix"),
        # Names of semaphores in memory cannot be listed.
        *(({"redis": other}, r"redis\.asyncio") for other in (MemoryBackend(), sync.Redis(), "x")),
    ],
)
def test_invalid_arguments(wrong: dict[str, Any], error: str, redis: Redis) -> None:
    options: dict[str, Any] = {"redis": redis, **wrong}
    with pytest.raises((ValueError, TypeError), match=error):
        dashboard(options.pop("redis"), **options)


@pytest.mark.parametrize("path", ["events", "events?name=x", ""])
async def test_a_head_request_ends(path: str, site: Site) -> None:
    """That of a stream, too; and nothing is read for it."""
    async with asyncio.timeout(PATIENCE):
        assert (await site.http.head(path)).status_code == 200


async def test_who_may_not_view_sees_nothing(serve: Serve, redis: Redis) -> None:
    """Pages, streams and metrics are asked for one by one."""
    asked: list[tuple[str, str | None]] = []

    async def authorize(request: Request, action: str, name: str | None) -> bool:
        asked.append((action, name))
        return name == "public"

    site = await serve(authorize=authorize)
    async with FairSemaphore(redis, "public", 1), FairSemaphore(redis, "secret", 1):
        for path in ("", "semaphore?name=secret", "events", "events?name=secret", "metrics"):
            assert (await site.http.get(path)).status_code == 403
        assert (await site.view(name="public"))["held"] == 1
    assert asked[:3] == [("view", None), ("view", "secret"), ("view", None)]
    assert ("metrics", None) in asked
