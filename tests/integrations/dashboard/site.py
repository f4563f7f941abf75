"""A dashboard that is served, and what a browser would ask of it."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from starlette.requests import Request

from tests.harness.asgi import in_uvicorn

View = dict[str, Any]
Shows = Callable[[View], object]

PATIENCE = 20.0  # seconds for something that a page is to show
TOKEN = re.compile(r'data-token="([^"]*)"')


def always(answer: Any) -> Any:
    """A function for `authorize` that gives the same answer to every question."""

    def authorize(request: Request, action: str, name: str | None) -> Any:
        return answer

    return authorize


@dataclass
class Site:
    """A served application.

    Attributes:
        url: of its list, with a slash at the end.
        http: a client that keeps cookies, as a browser does.
    """

    url: str
    http: httpx.AsyncClient

    async def page(self, name: str | None = None) -> str:
        """The page of *name*, or of the list."""
        path = "" if name is None else f"semaphore?name={quote(name, safe='')}"
        response = await self.http.get(path)
        assert response.status_code == 200, response.text
        return response.text

    @asynccontextmanager
    async def stream(self, **query: str) -> AsyncGenerator[AsyncIterator[View]]:
        """The readings that a page with this query gets."""
        async with self.http.stream("GET", "events", params=query) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response)

    async def view(
        self, shows: Shows | None = None, *, within: float = PATIENCE, **query: str
    ) -> View:
        """The first complete reading; or the first of which *shows* holds."""
        last: View = {}
        try:
            async with asyncio.timeout(within), self.stream(**query) as events:
                async for last in events:
                    if shows(last) if shows else last["complete"] or query.get("name"):
                        return last
        except TimeoutError:
            raise AssertionError(f"not shown: {last}") from None
        raise AssertionError(f"the stream has ended: {last}")

    async def post(
        self, action: str, name: str, *, token: str | None = None, **more: Any
    ) -> httpx.Response:
        """Ask for a change as the page does; *token* stands for the page's own."""
        if token is None:
            token = str(TOKEN.findall(await self.page(name))[0])
        headers = {"X-CSRF-Token": token, "Sec-Fetch-Site": "same-origin"}
        return await self.http.post(
            "change", json={"action": action, "name": name, **more}, headers=headers
        )


async def first(events: AsyncIterator[View], shows: Shows) -> View:
    """The next of *events* of which *shows* holds."""
    async for view in events:
        if shows(view):
            return view
    raise AssertionError("the stream has ended")


async def _events(response: httpx.Response) -> AsyncIterator[View]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def serving(app: Any, path: str = "/") -> AsyncGenerator[Site]:
    """Serve *app*, which has the list at *path*."""
    async with (
        in_uvicorn(app) as url,
        httpx.AsyncClient(base_url=url + path, trust_env=False, timeout=30) as http,
    ):
        yield Site(url + path, http)
