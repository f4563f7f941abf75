"""The dashboard in a real browser: what an operator sees and does."""

import asyncio
import os
from collections.abc import AsyncIterator
from importlib import resources
from shutil import which
from typing import Any

import pytest
from playwright.async_api import (
    Browser,
    FloatRect,
    Locator,
    Page,
    async_playwright,
    expect,
)
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost, Rate
from redsem_async.dashboard import _reader, _views, dashboard
from redsem_async.testing import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.wait import cancelled, is_served, soon, waiting
from tests.integrations.cli.commands import queued
from tests.integrations.dashboard.conftest import Serve
from tests.integrations.dashboard.site import Site, always, serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = """<img src=x onerror=alert(1)>"'&</script><b>bold</b>\r\u202e"""
SHOWN = HOSTILE[:-2] + r"\u{d}\u{202e}"
AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PATIENCE = 20_000  # ms for what a page is to show, on a busy machine

expect.set_options(timeout=PATIENCE)


class Tabs:
    """Opens pages, and collects what goes wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.problems: list[str] = []

    async def open(
        self, site: Site, path: str = "", *, width: int = 1400, scheme: Any = "light"
    ) -> Page:
        """A window of its own."""
        context = await self._browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"{error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("console", self._console)
        await page.goto(site.url + path)
        return page

    def _console(self, message: Any) -> None:
        # A stream that is cut off is an error here, too: what is shown then is tested.
        if message.type == "error" and "net::" not in message.text:
            self.problems.append(message.text)


@pytest.fixture
async def tabs() -> AsyncIterator[Tabs]:
    """Pages of a headless browser, in none of which anything goes wrong."""
    program = os.environ.get("REDSEM_BROWSER") or next(filter(None, map(which, BROWSERS)), None)
    if program is None:
        pytest.fail("there is no Chromium here: Debian's package chromium is one")
    async with async_playwright() as playwright:
        options = ["--disable-gpu", "--mute-audio"]
        browser = await playwright.chromium.launch(executable_path=program, args=options)
        tabs = Tabs(browser)
        yield tabs
        await browser.close()
    assert tabs.problems == []


async def test_a_killed_process_and_what_becomes_of_its_permits(
    site: Site, tabs: Tabs, redis: Redis, start: StartWorker
) -> None:
    """They are not refreshed any more, end with the lease, and go to those who wait."""
    options = {"kind": FairSemaphore, "name": "gpu", "limit": 3, "lease": 2.0}
    holder = await start("hold", **options, permits=2, label="doomed")
    await holder.heard("held")
    sem = FairSemaphore(redis, "gpu", 3, lease=2.0, label="lives")
    waiter = asyncio.create_task(sem.acquire(permits=3))
    page = await tabs.open(site, "semaphore?name=gpu")
    await expect(page.locator("#words")).to_contain_text("needs 3 permits, and 1 is free")
    await expect(page.locator("#cells .cell[data-hue]")).to_have_count(2)
    await holder.kill()
    happened = page.locator("#happened")
    await expect(happened).to_contain_text("doomed has stopped refreshing.")
    await expect(happened).to_contain_text("doomed's permits are free again.")
    await expect(page.locator("#legend")).to_have_text("lives: 3")
    for line in ("line", "limit"):
        await expect(page.locator(f"#use-chart path.{line}")).to_have_count(1)
    await expect(page.locator("#marks li:visible")).to_have_text(
        ["limit", "problem", "problem resolved"]
    )
    await is_served(waiter)


async def test_an_operator_changes_the_limit_and_pauses(
    writable: Site, tabs: Tabs, redis: Redis
) -> None:
    """With the keyboard alone; those who wait are served. Each change asks once."""
    sem = FairSemaphore(redis, "openai", 1, label="web")
    async with sem:
        waiter = asyncio.create_task(sem.acquire())
        await waiting(sem, 1)
        page = await tabs.open(writable)
        await page.keyboard.press("/")
        await page.keyboard.type("OPEN")
        await expect(page.locator("#rows tr")).to_have_count(1)
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.locator("#words")).to_contain_text("The only permit is in use")
        await page.get_by_role("button", name="Set limit").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("New limit")).to_be_focused()
        await page.keyboard.type("3")
        await page.keyboard.press("Enter")
        await expect(page.locator("#limit")).to_have_text("3")
        await expect(page.locator("#toasts")).to_contain_text("Limit 3.")
        await expect(page.locator("#happened")).to_contain_text("It was 1.")
        await is_served(waiter)
        await page.get_by_role("button", name="Set limit").click()
        await page.get_by_label("Remove the set limit").check()
        await page.get_by_role("dialog").get_by_role("button", name="Set the limit").click()
        await expect(page.locator("#limit")).to_have_text("1")
        await page.get_by_role("button", name="Pause").click()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert (await sem.status()).set_limit is None
        await page.get_by_role("button", name="Pause").click()
        dialog = page.get_by_role("dialog", name="Pause “openai”?")
        await dialog.get_by_role("button", name="Pause").click()
        await expect(page.locator("#label")).to_have_text("paused")
        await expect(page.locator("#words")).to_contain_text(" ago by dashboard/")
        waiter = asyncio.create_task(sem.acquire())
        await expect(page.locator("#waiting")).to_have_text("1")
        await expect(page.get_by_role("button", name="Resume")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await expect(page.locator("#happened")).to_contain_text("Resumed")
    await is_served(waiter)


async def test_an_operator_revokes_a_permit(writable: Site, tabs: Tabs, redis: Redis) -> None:
    """Ids are shown on demand."""
    sem = FairSemaphore(redis, "gpu", 1, label="trainer")
    permit = await sem.acquire()
    page = await tabs.open(writable, "semaphore?name=gpu")
    await expect(page.locator("#holders tbody")).not_to_contain_text(permit.id)
    await page.get_by_role("button", name="Show ids").click()
    await expect(page.locator("#holders tbody")).to_contain_text(permit.id)
    await page.get_by_role("button", name="Revoke the permit").click()
    dialog = page.get_by_role("dialog", name="Revoke a permit of “gpu”?")
    await expect(dialog).to_contain_text("trainer")
    await dialog.get_by_role("button", name="Revoke").click()
    assert isinstance(await soon(permit.wait_lost()), PermitLost)
    await expect(page.locator("#held")).to_have_text("0")


async def test_hostile_text_is_shown_as_text(writable: Site, tabs: Tabs, redis: Redis) -> None:
    """In names, labels and keys, in every place: nothing of it becomes an element."""
    sem = FairSemaphore(redis, HOSTILE, 2, key_limit=1, label=HOSTILE)
    async with sem.acquire(key=HOSTILE):
        waiter = asyncio.create_task(sem.acquire(key=HOSTILE))
        await waiting(sem, 1)
        page = await tabs.open(writable)
        await page.get_by_role("link", name=SHOWN).click()
        await expect(page.locator("h1")).to_have_text(SHOWN)
        await expect(page.locator("#keys td").first).to_have_text(SHOWN)
        await expect(page.locator("#holders .who").first).to_have_text(SHOWN)
        await expect(page.locator("#waiters .who").first).to_have_text(SHOWN)
        assert await page.title() == f"1/2 +1 · {SHOWN} · Semaphores"
        await page.get_by_role("button", name="Set the limit of the key").click()
        await expect(page.get_by_role("dialog")).to_contain_text(SHOWN)
        await page.get_by_label("New limit").fill("5")
        await page.keyboard.press("Enter")
        await expect(page.locator("#toasts")).to_contain_text("limit 5")
        await page.get_by_role("button", name="Revoke the permit").first.click()
        await expect(page.get_by_role("dialog")).to_contain_text(SHOWN)
        assert await page.locator("img, b").count() == 0
        await is_served(waiter)


async def test_what_is_not_there_is_explained(site: Site, tabs: Tabs, redis: Redis) -> None:
    """An empty list, a filter that finds nothing, an unused name, and an unknown address."""
    page = await tabs.open(site)
    await expect(page.get_by_role("heading", name="No semaphore is in use")).to_be_visible()
    await expect(page.locator("#unused")).to_contain_text("prefix redsem")
    assert await violations(page) == []
    async with FairSemaphore(redis, "gpu", 4):
        await expect(page.locator("#rows tr")).to_have_count(1)
        await expect(page.locator("#unused")).to_be_hidden()
        await page.get_by_label("Filter by name").fill("cpu")
        await page.get_by_role("button", name="Clear the filter").click()
        await expect(page.locator("#rows tr")).to_have_count(1)
        await page.goto(f"{site.url}semaphore?name=GPU")
        await expect(page.locator("#label")).to_have_text("not in use")
        await expect(page.locator("#holders")).to_be_hidden()
        assert await violations(page) == []
        await page.get_by_role("link", name="search the list").click()
        await page.get_by_role("link", name="gpu").click()
        await expect(page.locator("#limit")).to_have_text("4")
        await page.goto(f"{site.url}gpu")
        assert await violations(page) == []
        assert [problem[-11:] for problem in tabs.problems] == ["(Not Found)"]
        tabs.problems.clear()
        await page.get_by_role("link", name="gpu").click()
        await expect(page.locator("#limit")).to_have_text("4")


async def test_keys_are_searched_and_paged(
    site: Site, tabs: Tabs, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is found among thousands, by how it begins."""
    monkeypatch.setattr(_reader, "ENTRIES", 2)
    monkeypatch.setattr(_views, "ENTRIES", 2)
    sem = FairSemaphore(redis, "llm", 9, key_limit=3)
    in_use = {"acme": 3, "globex": 2, "umbrella": 1}
    permits = [await sem.acquire(key=key, permits=count) for key, count in in_use.items()]
    page = await tabs.open(site, "semaphore?name=llm")
    keys = page.locator("#keys tbody td:first-child")
    await expect(keys).to_have_text(["acme", "globex"])
    await page.get_by_role("button", name="Next keys").click()
    await expect(keys).to_have_text(["umbrella"])
    await page.get_by_role("button", name="Back").click()
    await expect(keys).to_have_text(["acme", "globex"])
    await page.get_by_label("Keys that begin with").fill("gl")
    await expect(keys).to_have_text(["globex"])
    for permit in permits:
        await permit.release()


LATER_THAN_THE_PAGE = """
navigator.locks.request("redsem hidden tab 1", {ifAvailable: true}, (lock) => lock === null)
"""
HIDDEN = "Object.defineProperty(Document.prototype, 'hidden', {get: () => !window.seen});"


async def test_tabs_that_nobody_sees_leave_connections_to_others(site: Site, tabs: Tabs) -> None:
    """A browser has six to one server: with six open streams, nothing else would work."""
    first = await tabs.open(site)
    await first.context.add_init_script(HIDDEN)
    hidden = [await first.context.new_page() for _ in range(3)]
    streams: list[str] = []
    hidden[2].on("request", lambda request: streams.append(request.url))
    for page in hidden[:2]:
        await page.goto(site.url)
        await expect(page.locator("#live-text")).to_have_text("live")
    await hidden[2].goto(site.url)
    assert await hidden[2].evaluate(LATER_THAN_THE_PAGE)
    assert not [url for url in streams if "events" in url]
    await hidden[2].evaluate("seen = true; document.dispatchEvent(new Event('visibilitychange'))")
    await expect(hidden[2].locator("#live-text")).to_have_text("live")


async def test_the_connection_to_redis_is_lost_and_found(
    own_client: Any, serve: Serve, tabs: Tabs, redis: Redis, server: EmbeddedRedis
) -> None:
    """The page says so, keeps what it knew, changes nothing meanwhile, and recovers by itself."""
    site = await serve(own_client(), writable=True, authorize=always("ada"), title="Staging")
    await FairSemaphore(redis, "gpu", 4).set_limit(3)
    list_page = await tabs.open(site)
    page = await tabs.open(site, "semaphore?name=gpu")
    await expect(page.locator("#limit")).to_have_text("3")
    await expect(list_page.locator("#rows tr")).to_have_count(1)
    server.kill()
    for one in (page, list_page):
        await expect(one.locator("#banner")).to_contain_text("Redis has been unreachable since")
        await expect(one.locator("#banner")).to_contain_text("(connection refused)")
        await expect(one.locator("#live-text")).to_contain_text("stale: last read at")
    await expect(page.locator("#limit")).to_have_text("3")
    await expect(page.get_by_role("button", name="Set limit")).to_be_disabled()
    await expect(page.locator("#banner")).to_contain_text("Changes are disabled until then.")
    await expect(list_page.locator("#banner")).not_to_contain_text("Changes")
    for one in (page, list_page):
        assert await violations(one) == []
    server.restart()
    for one in (page, list_page):
        await expect(one.locator("#live-text")).to_have_text("live")
        await expect(one.locator("#banner")).to_be_hidden()
        await expect(one.locator(".brand")).to_have_text("Staging")
        await expect(one.locator(".place")).to_contain_text(f":{server.port}, database 0")
    await expect(page.locator("#happened")).to_contain_text("Redis answers again.")
    await FairSemaphore(redis, "gpu", 4).set_limit(2)
    await expect(page.locator("#limit")).to_have_text("2")
    await expect(page.get_by_role("button", name="Set limit")).to_be_enabled()


async def test_the_server_of_the_page_is_lost(tabs: Tabs, redis: Redis) -> None:
    """Numbers that do not change any more must not look live."""
    await FairSemaphore(redis, "gpu", 4).set_limit(3)
    async with serving(dashboard(redis, interval=0.1)) as site:
        page = await tabs.open(site, "semaphore?name=gpu")
        await expect(page.locator("#limit")).to_have_text("3")
        await expect(page.locator("#live-text")).to_have_text("live")
        await page.clock.install()
        await page.reload()
        await expect(page.locator("#live-text")).to_have_text("live")
    await page.clock.fast_forward(7000)
    await expect(page.locator("#banner")).to_contain_text("has not answered")
    await expect(page.locator("#live-text")).to_contain_text("stale: last read at")


ONE = "semaphore?name=llm"
CONTRAST = """
(cell) => {
  const linear = (part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = colour.match(/[0-9.]+/g).map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
  };
  const card = light(getComputedStyle(cell.closest(".stage")).backgroundColor);
  const edge = light(getComputedStyle(cell).borderTopColor);
  return Math.max(card, edge) / Math.min(card, edge);
}
"""  # of the edge of a cell, as WCAG defines it


@pytest.mark.parametrize(
    ("width", "scheme", "path"),
    [
        (400, "dark", ONE),
        (1400, "light", ""),
        pytest.param(400, "dark", "", marks=pytest.mark.release),
        pytest.param(1400, "light", ONE, marks=pytest.mark.release),
    ],
)
async def test_everybody_can_use_it(
    width: int, scheme: str, path: str, writable: Site, tabs: Tabs, redis: Redis
) -> None:
    """On a phone and a wide screen, in both schemes: nothing sticks out, and axe finds nothing."""
    long = "tenant:" + "abcdefghij" * 12
    rate = {"requests": Rate(1, burst=9), "tokens": Rate(1, per=60, burst=90)}
    sem = FairSemaphore(redis, "llm", 4, key_limit=2, label="gateway", rate=rate)
    ask: dict[str, Any] = {"key": "acme", "cost": {"tokens": 120}}
    busy = FairSemaphore(redis, long, 2, label=long)
    async with sem.acquire(**ask, permits=2), busy.acquire(permits=2):
        tasks = [asyncio.create_task(sem.acquire(**ask)) for _ in range(2)]
        await waiting(sem, 2)
        await FairSemaphore(redis, "stopped", 3).pause()
        tasks += await queued(busy, 3)
        await busy.set_limit(1)
        page = await tabs.open(writable, path, width=width, scheme=scheme)
        await expect(page.locator("#keys tbody tr" if path else "#rows tr").first).to_be_visible()
        await everything_fits(page)
        assert await violations(page) == []
        if path:
            debt = page.get_by_role("img", name="tokens: in debt by")
            await expect(debt.locator(".balance.debt")).to_be_visible()
            fill, bar = await box(debt.locator("i")), await box(debt.locator(".balance"))
            assert 0 < fill["width"] <= bar["width"] / 2, "it does not look like a full one"
            cell, queue = page.locator("#cells .cell.free").last, page.locator("#cells .queue")
            assert await cell.evaluate(CONTRAST) >= 3
            assert (await box(queue))["y"] > (await box(cell))["y"], "dots stay together, below"
            await expect(queue.locator(".dot")).to_have_count(2)
            await page.get_by_role("button", name="Set limit").first.click()
            assert await violations(page) == []
            await page.goto(f"{writable.url}semaphore?name={long}")
            await expect(page.locator("#holders tbody tr")).to_have_count(1)
            await everything_fits(page)
        await cancelled(*tasks)


async def violations(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds: the rules that are broken, and where."""
    await page.evaluate(AXE)
    found: Any = await page.evaluate("(options) => axe.run(options)", WCAG)
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]


async def box(element: Locator) -> FloatRect:
    """Where it is on the page."""
    found = await element.bounding_box()
    assert found is not None
    return found


async def everything_fits(page: Page) -> None:
    """No page has to be moved sideways."""
    beyond = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert beyond <= 0
