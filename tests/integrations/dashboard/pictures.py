"""Takes the pictures of the dashboard for the documentation: ``python -m ... FOLDER``.

Real processes use semaphores on an embedded server; one of them is killed shortly before the
pictures are taken.
"""

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from shutil import which
from typing import Any

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright, expect

from redsem_async import AcquireTimeout, FairSemaphore, Semaphore, aclose, from_url
from redsem_async.dashboard import dashboard
from redsem_async.testing import embedded_redis
from tests.integrations.dashboard.site import always, serving

LEASE = 20.0
KEYS = ("acme", "globex", "initech", "umbrella", "soylent")
GATEWAYS = 5
KILLED = 4  # it uses one semaphore only
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


async def use(sem: FairSemaphore | Semaphore, hold: float, pause: float, *, keys: bool) -> None:
    """Hold permits again and again."""
    while True:
        more: dict[str, Any] = {"key": random.choice(KEYS)} if keys else {}
        with contextlib.suppress(AcquireTimeout):
            async with sem.acquire(**more):
                await asyncio.sleep(hold * random.uniform(0.5, 1.5))
        await asyncio.sleep(pause * random.uniform(0.3, 1.7))


async def work(url: str, number: int) -> None:
    """One process of the fleet."""
    redis = from_url(url)

    def fair(name: str, limit: int, label: str, **options: Any) -> FairSemaphore:
        return FairSemaphore(redis, name, limit, label=label, lease=LEASE, **options)

    def many(
        count: int, sem: FairSemaphore | Semaphore, hold: float, pause: float, keys: bool = False
    ) -> None:
        for _ in range(count):
            group.create_task(use(sem, hold, pause, keys=keys))

    async with asyncio.TaskGroup() as group:
        many(6, fair("openai", 16, f"gateway-{number}"), 1.6, 0.2)
        if number == KILLED:
            return
        many(8, fair("llm", 24, f"gateway-{number}", key_limit=6), 2.0, 0.1, keys=True)
        many(3, fair("stripe-api", 20, f"billing-{number}"), 0.4, 0.7)
        many(3, fair("geo-lookup", 50, f"web-{number}"), 0.3, 0.4)
        many(2, fair("mail-relay", 6, f"mailer-{number}"), 0.8, 0.4)
        many(2, fair("warehouse-sync", 10, f"sync-{number}"), 1.0, 3.0)
        many(3, fair(f"tenant:{KEYS[number - 1]}", 5, f"api-{number}"), 0.8, 0.5)
        if number <= 2:
            many(4, fair("gpu", 4, f"trainer-{number}"), 6.0, 1.0)
            many(4, Semaphore(redis, "pdf-render", 8, label=f"render-{number}"), 1.5, 2.0)
        if number == 1:
            many(1, fair("nightly-report", 1, "cron"), 60.0, 10.0)
            many(7, fair("tenant:acme", 5, "api-1"), 0.8, 0.5)


@contextlib.asynccontextmanager
async def fleet(url: str) -> AsyncGenerator[list[asyncio.subprocess.Process]]:
    """Processes that use the semaphores."""
    this = [sys.executable, "-m", "tests.integrations.dashboard.pictures"]
    processes = [
        await asyncio.create_subprocess_exec(*this, "work", url, str(number))
        for number in range(1, GATEWAYS + 1)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def take(folder: Path) -> None:
    """Take all pictures."""
    program = next(filter(None, map(which, BROWSERS)))
    with embedded_redis() as server:
        redis = from_url(server.url)
        app = dashboard(redis, writable=True, authorize=always("ada"), title="Production")
        async with (
            app.router.lifespan_context(app),
            fleet(server.url) as processes,
            serving(app) as site,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=program)
            await site.view(lambda view: view.get("held") == 1, within=90, name="nightly-report")
            await FairSemaphore(redis, "mail-relay", 6).pause()
            await FairSemaphore(redis, "gpu", 4).set_limit(3)
            await asyncio.sleep(60)
            await FairSemaphore(redis, "openai", 16).set_limit(20)
            one = "semaphore?name=openai"
            pages = {
                f"{kind}-wide-{scheme}.png": await opened(browser, url, scheme)
                for kind, url in (("one", site.url + one), ("list", site.url))
                for scheme in ("light", "dark")
            }
            await asyncio.sleep(15)
            processes[KILLED - 1].send_signal(signal.SIGKILL)
            told = pages["one-wide-light.png"].locator("#happened")
            await expect(told).to_contain_text("has stopped", timeout=40_000)
            state = pages["list-wide-light.png"].locator("#rows .pill").first
            await expect(state).to_have_text("stalled")
            await asyncio.gather(*(shoot(page, folder, shot) for shot, page in pages.items()))
            await browser.close()
        await aclose(redis)
        await redis.aclose()


async def opened(browser: Browser, url: str, scheme: Any) -> Page:
    """A page that shows *url*."""
    size: Any = {"width": 1400, "height": 985}
    context = await browser.new_context(viewport=size, color_scheme=scheme)
    page = await context.new_page()
    await page.goto(url)
    return page


async def shoot(page: Page, folder: Path, name: str) -> None:
    """Take what a screen of this size shows."""
    await page.screenshot(path=folder / name)
    smaller(folder / name)


def smaller(path: Path) -> None:
    """Few colours suffice, and make the file a third as large."""
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(200, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(take(Path(sys.argv[1])))
