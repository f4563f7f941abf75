"""What an operator changes, who may, and what is refused."""

import logging
import os
import socket
from typing import Any

import pytest
from redis.asyncio import Redis
from starlette.exceptions import HTTPException
from starlette.requests import Request

from redsem_async import FairSemaphore, PermitLost
from redsem_async.dashboard import _changes
from redsem_async.dashboard._access import CHANGES, COOKIE
from redsem_async.testing import EmbeddedRedis
from tests.harness.servers import stopped
from tests.harness.wait import soon
from tests.integrations.dashboard.conftest import Serve
from tests.integrations.dashboard.site import TOKEN, Site, always

OLD = "A" * 43  # a token of the right form
HERE = f"{socket.gethostname()}:{os.getpid()}"


@pytest.fixture
async def gpu(redis: Redis) -> FairSemaphore:
    """A semaphore whose limit was set to 2."""
    sem = FairSemaphore(redis, "gpu", 2)
    await sem.set_limit(2)
    return sem


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "redsem_event", "") == event]


async def test_a_limit_is_set_and_removed(
    writable: Site, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says who did it."""
    caplog.set_level(logging.INFO)
    sem = FairSemaphore(redis, "openai", 4)
    async with sem.acquire(permits=4):
        done = await writable.post("set_limit", "openai", limit=2)
        assert done.status_code == 200
        assert done.json()["text"] == (
            "Limit 2; 4 permits still held; no new permit until fewer than 2 are held."
        )
        status = await sem.status()
        assert (status.set_limit, status.set_limit_by) == (2, f"dashboard/ada@{HERE}")
        view = await writable.view(name="openai")
        assert view["setOrigin"].endswith(f" s ago by dashboard/ada@{HERE}")
        done = await writable.post("set_limit", "openai", limit=None)
        assert done.json()["ok"]
        assert (await sem.status()).set_limit is None
        removed = "The set limit was removed by dashboard/ada."
        await writable.view(
            lambda view: view["history"]["events"][-1][2].startswith(removed), name="openai"
        )
    first, second = said(caplog, "changed")
    assert (first.levelname, first.redsem_semaphore, first.redsem_action) == (
        "INFO",
        "openai",
        "set_limit",
    )
    assert (first.redsem_who, first.redsem_limit) == ("ada", 2)
    assert second.redsem_limit is None
    assert "'openai': set_limit 2 by 'ada'" in first.getMessage()


async def test_it_backs_off_for_some_seconds(
    writable: Site, gpu: FairSemaphore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    done = await writable.post("back_off", "gpu", seconds=30)
    assert done.json()["text"] == "No permit for 30 s, then the limit in force rises again."
    view = await writable.view(name="gpu")
    assert (view["state"], view["backOff"]) == ("backing off", 0)
    assert view["words"].endswith(f" ago by dashboard/ada@{HERE}.")
    assert view["history"]["events"][-1][2].endswith(f" was started by dashboard/ada@{HERE}.")
    assert (await writable.post("back_off", "gpu", seconds=0)).json()["ok"]
    assert (await gpu.status()).back_off is None
    ended = "The back-off was ended by dashboard/ada."
    await writable.view(lambda view: view["history"]["events"][-1][2] == ended, name="gpu")
    assert "'gpu': back_off 30 by 'ada'" in said(caplog, "changed")[0].getMessage()


async def test_a_permit_is_revoked_and_a_semaphore_deleted(
    writable: Site, gpu: FairSemaphore, caplog: pytest.LogCaptureFixture
) -> None:
    """By the whole id, which a page has that may do so; the log has a part of it."""
    caplog.set_level(logging.INFO)
    revoked, deleted = await gpu.acquire(), await gpu.acquire()
    ids = {holder["id"] for holder in (await writable.view(name="gpu"))["holders"]}
    assert ids == {revoked.id, deleted.id}
    assert (await writable.post("revoke", "gpu", permit=revoked.id)).json()["ok"]
    assert isinstance(await soon(revoked.wait_lost()), PermitLost)
    assert (await writable.post("revoke", "gpu", permit=revoked.id)).status_code == 409
    assert revoked.id not in caplog.text
    assert len(said(caplog, "changed")) == 1
    assert (await writable.post("delete", "gpu")).json()["ok"]
    await soon(deleted.wait_lost())
    assert not await gpu.exists()
    view = await writable.view(lambda view: view["found"] is False, name="gpu")
    told = [text for _, _, text in view["history"]["events"]]
    assert told[1:] == ["Deleted by dashboard/ada."]


async def test_the_limit_of_a_key_is_set(writable: Site, redis: Redis) -> None:
    """And not that of a semaphore whose requests have no keys."""
    sem = FairSemaphore(redis, "llm", 9, key_limit=3)
    async with sem.acquire(key="acme"), FairSemaphore(redis, "plain", 1):
        done = await writable.post("set_limit", "llm", limit=1, key="acme")
        assert done.json()["text"] == "Key acme: limit 1."
        assert (await sem.status()).keys[0].set_limit == 1
        refused = await writable.post("set_limit", "plain", limit=1, key="acme")
    assert refused.status_code == 400


async def test_hostile_names_are_changed_like_others(
    serve: Serve, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A line break in a name makes no line of the log; what no label can have is left out."""
    caplog.set_level(logging.INFO)
    site = await serve(redis, writable=True, authorize=always("{ada}\n" + "a" * 600))
    name = "a/b?c=d#e&f\"'<x>\nINFO forged"
    sem = FairSemaphore(redis, name, 1)
    await sem.set_limit(1)
    assert (await site.post("pause", name)).json()["ok"]
    status = await sem.status()
    assert (status.set_limit, status.set_limit_by) == (0, f"dashboard/ada{'a' * 87}@{HERE}")
    [record] = said(caplog, "changed")
    assert "\n" not in record.getMessage()


# -- who may


@pytest.mark.parametrize("action", CHANGES)
async def test_read_only_means_read_only(action: str, site: Site, redis: Redis) -> None:
    """No page has a token; and a request with one is refused."""
    sem = FairSemaphore(redis, "gpu", 2)
    async with sem as permit:
        assert TOKEN.findall(await site.page("gpu")) == [""]
        assert site.http.cookies.get(COOKIE) is None
        site.http.cookies.set(COOKIE, OLD)
        refused = await site.post(action, "gpu", token=OLD, limit=1, permit=permit.id)
        assert (refused.status_code, refused.json()["ok"]) == (403, False)
        assert (await sem.status()).set_limit is None
        assert not permit.lost


async def test_who_may_not_is_refused_and_logged(
    serve: Serve, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The page shows the controls that work, and whole ids to those who may revoke."""

    async def authorize(request: Request, action: str, name: str | None) -> bool | str:
        assert isinstance(request, Request)
        return action == "view" or (action == "pause" and name == "mine" and "grace")

    site = await serve(writable=True, authorize=authorize)
    mine, theirs = FairSemaphore(redis, "mine", 1), FairSemaphore(redis, "theirs", 1)
    async with mine, theirs as permit:
        assert 'data-allowed="pause"' in await site.page("mine")
        assert 'data-allowed=""' in await site.page("theirs")
        assert permit.id not in str(await site.view(name="theirs"))
        assert (await site.post("pause", "mine")).status_code == 200
        assert (await site.post("pause", "theirs")).status_code == 403
        assert (await site.post("resume", "mine")).status_code == 403
        assert (await theirs.status()).set_limit is None
        assert (await mine.status()).set_limit == 0
    refused = said(caplog, "change refused")
    assert [(record.redsem_semaphore, record.redsem_action) for record in refused] == [
        ("theirs", "pause"),
        ("mine", "resume"),
    ]
    assert {record.levelname for record in refused} == {"WARNING"}


async def test_a_function_may_refuse_by_raising(
    serve: Serve, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of FastAPI do: the page has no controls then, and the refusal is logged."""

    def authorize(request: Request, action: str, name: str | None) -> bool:
        if action == "view" and name != "secret":
            return True
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})

    site = await serve(writable=True, authorize=authorize)
    async with FairSemaphore(redis, "gpu", 2) as permit:
        assert 'data-allowed=""' in await site.page("gpu")
        assert permit.id not in str(await site.view(name="gpu"))
        refused = await site.post("pause", "gpu")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
    assert (await site.http.get("semaphore?name=secret")).status_code == 401
    assert len(said(caplog, "change refused")) == 1


@pytest.mark.parametrize("answer", [None, 0, 1, "", [], object()])
async def test_only_yes_means_yes(answer: Any, serve: Serve, gpu: FairSemaphore) -> None:
    """A function that forgets its return statement opens nothing."""
    site = await serve(writable=True, authorize=always(answer))
    assert (await site.http.get("")).status_code == 403
    site.http.cookies.set(COOKIE, OLD)
    assert (await site.post("pause", "gpu", token=OLD)).status_code == 403


# -- requests of other sites


MIME = "application/json"
JSON = {"action": "pause", "name": "gpu"}


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, "another site"),
        ({"Sec-Fetch-Site": "same-site"}, "another site"),
        ({"Sec-Fetch-Site": "none"}, "another site"),
        ({"Sec-Fetch-Site": None}, "another site"),
        ({"Sec-Fetch-Site": None, "Origin": "http://evil.example"}, "another site"),
        ({"Sec-Fetch-Site": None, "Origin": "null"}, "another site"),
        ({"Content-Type": "text/plain"}, "not JSON"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "not JSON"),
        ({"X-CSRF-Token": None}, "token"),
        ({"X-CSRF-Token": OLD}, "token"),
        ({"X-CSRF-Token": "é"}, "token"),
        ({"Cookie": ""}, "token"),
        ({"Cookie": f"{COOKIE}=", "X-CSRF-Token": ""}, "token"),
    ],
)
async def test_requests_of_other_sites_are_refused(
    headers: dict[str, str | None], reason: str, writable: Site, gpu: FairSemaphore
) -> None:
    """The operator's browser sends its cookies wherever a page of others sends it."""
    [token] = TOKEN.findall(await writable.page("gpu"))
    own: dict[str, str | None] = {
        "Sec-Fetch-Site": "same-origin",
        "X-CSRF-Token": token,
        **headers,
    }
    sent = [(name.encode(), text.encode()) for name, text in own.items() if text is not None]
    refused = await writable.http.post("change", json=JSON, headers=sent)
    assert refused.status_code == 403
    assert reason in refused.json()["text"]
    assert (await gpu.status()).set_limit == 2


async def test_pages_of_ours_make_changes_and_links_do_not(
    writable: Site, gpu: FairSemaphore
) -> None:
    """A browser sends its origin where the page came over http from another machine.

    A page that was opened later does not make the first one useless, and links are GETs.
    """
    [first] = TOKEN.findall(await writable.page("gpu"))
    assert TOKEN.findall(await writable.page("gpu")) == [first]
    assert (await writable.http.get("change", params=JSON)).status_code == 404
    assert (await gpu.status()).set_limit == 2
    headers = {"Origin": writable.url.rstrip("/"), "X-CSRF-Token": first}
    done = await writable.http.post("change", json=JSON, headers=headers)
    assert (done.status_code, (await gpu.status()).set_limit) == (200, 0)
    assert (await writable.post("resume", "gpu", token=first)).status_code == 200
    cookie = next(cookie for cookie in writable.http.cookies.jar if cookie.name == COOKIE)
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "lax"


# -- nonsense and outages


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"action": "drop"}, 400),
        ({"action": ["pause"]}, 400),
        ({"name": "nobody"}, 404),
        ({"name": ""}, 400),
        ({"name": "a{b}"}, 400),
        ({"name": "x" * 600}, 400),
        ({"name": 5}, 400),
        ({"action": "set_limit"}, 400),
        ({"action": "set_limit", "limit": -1}, 400),
        ({"action": "set_limit", "limit": 1.5}, 400),
        ({"action": "set_limit", "limit": "4"}, 400),
        ({"action": "set_limit", "limit": True}, 400),
        ({"action": "set_limit", "limit": 10**16}, 400),
        ({"action": "set_limit", "limit": 1, "key": ""}, 400),
        ({"action": "set_limit", "limit": 1, "key": 7}, 400),
        ({"action": "revoke"}, 400),
        ({"action": "revoke", "permit": "ab"}, 400),
        ({"action": "revoke", "permit": "0" * 32 + ".1"}, 409),
        ({"key": "x" * 20_000}, 413),
        ({"action": "back_off", "seconds": -1}, 400),
    ],
)
async def test_nonsense_is_refused(
    wrong: dict[str, Any], status: int, writable: Site, gpu: FairSemaphore
) -> None:
    [token] = TOKEN.findall(await writable.page("gpu"))
    asked = {"action": "pause", "name": "gpu", **wrong}
    refused = await writable.post(asked.pop("action"), asked.pop("name"), token=token, **asked)
    assert (refused.status_code, refused.json()["ok"]) == (status, False), refused.text
    assert (await gpu.status()).set_limit == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b"\xff", b"[" * 9000, b'{"action": "pause", "name": "\\ud800"}'],
)
async def test_what_is_not_json_is_refused(body: bytes, writable: Site) -> None:
    [token] = TOKEN.findall(await writable.page("gpu"))
    headers = {"X-CSRF-Token": token, "Sec-Fetch-Site": "same-origin", "Content-Type": MIME}
    refused = await writable.http.post("change", content=body, headers=headers)
    assert refused.status_code == 400


async def test_a_change_does_not_wait_for_a_silent_server(
    writable: Site, server: EmbeddedRedis, gpu: FairSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a client that would wait for ever."""
    monkeypatch.setattr(_changes, "CHANGE_TIMEOUT", 0.3)
    [token] = TOKEN.findall(await writable.page("gpu"))
    with stopped(server):
        failed = await writable.post("pause", "gpu", token=token)
    assert (failed.status_code, "unknown" in failed.json()["text"]) == (503, True)


async def test_a_change_during_an_outage_fails_in_words(
    own_client: Any, serve: Serve, server: EmbeddedRedis, gpu: FairSemaphore
) -> None:
    """The operator learns that it is unknown, and is not told that it was done."""
    site = await serve(own_client(), writable=True, authorize=always("ada"))
    [token] = TOKEN.findall(await site.page("gpu"))
    server.kill()
    failed = await site.post("pause", "gpu", token=token)
    assert (failed.status_code, failed.json()["ok"]) == (503, False)
