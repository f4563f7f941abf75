"""The application: its routes, its pages and its streams."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redsem_async._core.errors import SemaphoreError
from redsem_async._redis.stored import READ_ERRORS

from ._access import HEADERS, METRICS, VIEW, Access, set_token, token_of
from ._changes import Refused, change
from ._metrics import Metrics
from ._reader import Reader, Watch
from ._views import ROWS, Json, detail_view, list_view

HERE = Path(__file__).parent
STREAM_LIFE = 60.0  # seconds after which a page connects again, and is authorized again
PING = 10.0  # seconds without an event until a comment keeps the connection open

Handler = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The handlers of one dashboard."""

    def __init__(
        self,
        redis: Any,
        prefix: str,
        interval: float,
        access: Access,
        metrics: Callable[[str], bool],
        title: str,
    ) -> None:
        self._redis = redis
        self._prefix = prefix
        self._interval = interval
        self._access = access
        self._metrics = metrics
        self._title = title
        self._readers: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Reader, Metrics]] = (
            WeakKeyDictionary()
        )
        self._pages = Environment(
            loader=PackageLoader("redsem_async.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
        )

    def app(self) -> Starlette:
        """The application, to be mounted."""
        static = StaticFiles(directory=HERE / "static")
        routes = [
            Route("/", self.list_page),
            Route("/semaphore", self.detail_page),
            Route("/events", self.events),
            Route("/change", self.change, methods=["POST"]),
            Route("/metrics", self.metrics),
            Mount("/static", static),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(_Headers)
        app.state.end_streams = self.end_streams
        return app

    def end_streams(self) -> None:
        """Let the open pages go: a server waits for them before it ends."""
        for reader, _ in self._readers.values():
            reader.close()

    def _reader(self) -> tuple[Reader, Metrics]:
        loop = asyncio.get_running_loop()
        if loop not in self._readers:
            self._readers[loop] = (
                Reader(self._redis, self._prefix, self._interval),
                Metrics(self._redis, self._prefix, self._metrics),
            )
        return self._readers[loop]

    # -- pages

    async def list_page(self, request: Request) -> Response:
        """All semaphores."""
        return await self._page(request, "list.html", None)

    async def detail_page(self, request: Request) -> Response:
        """One semaphore: ``?name=``."""
        name = request.query_params.get("name", "")
        if not name:
            return RedirectResponse("./")
        return await self._page(request, "semaphore.html", name)

    async def _page(self, request: Request, template: str, name: str | None) -> Response:
        if await self._access.who(request, VIEW, name) is None:
            return PlainTextResponse("You may not see this page.", 403)
        token = token_of(request)
        allowed = [] if name is None else await self._access.changes(request, name)
        text = self._pages.get_template(template).render(
            title=self._title,
            name=name,
            token=token if self._access.writable else "",
            allowed=" ".join(allowed),
            writable=self._access.writable,
            prefix=self._prefix,
            interval=self._interval,
        )
        response = Response(text, media_type="text/html")
        if self._access.writable:
            set_token(request, response, token)
        return response

    # -- streams

    async def events(self, request: Request) -> Response:
        """What a page shows, again and again: ``?name=``, or ``?filter=`` and ``?rows=``."""
        name = request.query_params.get("name")
        if await self._access.who(request, VIEW, name) is None:
            return PlainTextResponse("You may not see this page.", 403)
        if name is None:
            words = request.query_params.get("filter", "")
            rows = request.query_params.get("rows", "")
            count = int(rows) if rows.isdecimal() and len(rows) < 5 else ROWS
            stream = self._list_stream(words, count)
        else:
            whole = await self._access.who(request, "kick", name) is not None
            stream = self._detail_stream(name, whole_ids=whole)
        return StreamingResponse(
            stream,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _list_stream(self, words: str, rows: int) -> AsyncGenerator[bytes]:
        reader, _ = self._reader()
        watch = Watch()

        def view() -> Json:
            shown, watch.rows = list_view(reader, words, rows)
            return shown

        async for event in _stream(reader, watch, view):
            yield event

    async def _detail_stream(self, name: str, *, whole_ids: bool) -> AsyncGenerator[bytes]:
        reader, _ = self._reader()
        watch = Watch(detail=name)
        async for event in _stream(
            reader, watch, lambda: detail_view(reader, name, whole_ids=whole_ids)
        ):
            yield event

    # -- changes and metrics

    async def change(self, request: Request) -> Response:
        """Make a change: a POST of JSON."""
        try:
            text = await change(request, self._access, self._redis, self._prefix)
        except Refused as refused:
            return JSONResponse({"ok": False, "text": str(refused)}, refused.status)
        self._reader()[0].read_soon()
        return JSONResponse({"ok": True, "text": text})

    async def metrics(self, request: Request) -> Response:
        """The numbers for Prometheus: ``?match=`` chooses names."""
        if await self._access.who(request, METRICS, None) is None:
            return PlainTextResponse("You may not see the metrics.", 403)
        reader, metrics = self._reader()
        words = request.query_params.get("match", "")
        try:
            text, kind = await metrics.text(reader, words, request.headers.get("accept", ""))
        except (SemaphoreError, TimeoutError, *READ_ERRORS) as error:
            reason = str(error) or type(error).__name__
            return PlainTextResponse(f"Redis cannot be read: {reason}\n", 503)
        return Response(text, headers={"Content-Type": kind})


async def _stream(reader: Reader, watch: Watch, view: Callable[[], Json]) -> AsyncGenerator[bytes]:
    """Events for a page, until it is to connect again. At most one waits to be sent."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STREAM_LIFE
    async with reader.watching(watch):
        yield b"retry: 500\n\n"
        while loop.time() < end and not reader.closing:
            try:
                await asyncio.wait_for(watch.changed.wait(), PING)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            watch.changed.clear()
            yield f"data: {json.dumps(view())}\n\n".encode()


class _Headers:
    """Adds the headers that every response has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                cached = b"no-cache" if scope["path"].find("/static/") >= 0 else b"no-store"
                own = {**{n: v.encode() for n, v in HEADERS.items()}, "Cache-Control": cached}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value)
                        for name, value in own.items()
                        if name.lower().encode() not in present
                    ),
                ]
            await send(message)

        if scope["type"] == "http" and scope["path"] == scope.get("root_path", "") != "":
            # The addresses of a page are relative to its folder.
            await RedirectResponse(scope["path"].rpartition("/")[2] + "/")(scope, receive, send)
            return
        await self._app(scope, receive, with_headers)
