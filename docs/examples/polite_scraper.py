"""A polite scraper: many pages at the same time, but at most two from each domain.

    pip install 'redsem-async[embedded,httpx]'
    python polite_scraper.py

The limit for each domain holds across all scraping processes. Here a small local site replaces the
web. The program starts a Redis server if ``REDIS_URL`` is not set.
"""

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import httpx

from redsem_async import SemaphoreGroup, connect
from redsem_async.testing import embedded_redis
from redsem_async.throttle import throttled_map

DOMAINS = ("books.example", "maps.example", "news.example")
PAGES = [f"http://{domain}/{page}" for page in range(8) for domain in DOMAINS]


def domain_of(url: str) -> str:
    return urlsplit(url).hostname or ""


async def scrape(domains: SemaphoreGroup, web: httpx.AsyncClient) -> Counter[str]:
    """Fetch every page, and count them by domain."""
    found: Counter[str] = Counter()
    fetch = partial(get, web)
    async with throttled_map(domains, fetch, PAGES, key=domain_of, timeout=60) as pages:
        async for page in pages:  # in the order in which they arrive
            found[domain_of(str(page.url))] += page.is_success
    return found


async def get(web: httpx.AsyncClient, url: str) -> httpx.Response:
    return await web.get(url)


class Site:
    """A web server for all domains, which counts the concurrent requests to each."""

    def __init__(self) -> None:
        self._now: Counter[str] = Counter()
        self.most: dict[str, int] = defaultdict(int)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        domain = urlsplit(request.split()[1]).hostname or ""  # a proxy gets complete URLs
        self._now[domain] += 1
        self.most[domain] = max(self.most[domain], self._now[domain])
        await asyncio.sleep(0.02)
        self._now[domain] -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def the_web() -> AsyncGenerator[tuple[Site, httpx.AsyncClient]]:
    """All domains, behind a proxy on this machine."""
    site = Site()
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        proxy = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(proxy=proxy, trust_env=False) as client:
            yield site, client


async def main(url: str) -> None:
    async with connect(url) as redis, the_web() as (site, web):
        domains = SemaphoreGroup(redis, "domain", 2)
        async with asyncio.TaskGroup() as group:  # two scrapers, as if on two machines
            scrapers = [group.create_task(scrape(domains, web)) for _ in range(2)]
        pages = sum((scraper.result() for scraper in scrapers), Counter[str]())
    for domain in DOMAINS:
        print(f"{domain}: {pages[domain]} pages, at most {site.most[domain]} at a time")


if __name__ == "__main__":
    with ExitStack() as stack:
        redis_url = os.environ.get("REDIS_URL") or stack.enter_context(embedded_redis()).url
        asyncio.run(main(redis_url))
