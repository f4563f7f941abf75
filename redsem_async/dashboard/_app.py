"""The application, with its routes, its pages and its streams."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
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
from redsem_async._redis.dial import ClusterClient, known_nodes, place_of
from redsem_async._tools.stored import READ_ERRORS

from ._access import HEADERS, METRICS, VIEW, Access, set_token, token_of
from ._changes import NotChanged, change
from ._metrics import Metrics
from ._reader import Detail, Reader, Watch
from ._views import LONGEST_START, MOST_ROWS, ROWS, detail_view, list_view

HERE = Path(__file__).parent
STREAM_LIFE = 60.0  # seconds after which a page connects again, and is authorized again
PING = 10.0  # seconds without an event until a comment keeps the connection open
LOOK = 0.25  # seconds after which a stream looks whether the server is to end
STALLED = 20.0  # seconds for a client to take an event

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
            Route("/{path:path}", self.unknown_page),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        app.add_middleware(_Headers)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        """Where it is served by itself, the last minutes are there before a page is opened."""
        async with self._reader()[0].watching(Watch(live=False)):
            yield

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
        return await self._page(request, "list.html")

    async def detail_page(self, request: Request) -> Response:
        """One semaphore, for ``?name=``."""
        name = request.query_params.get("name", "")
        if not name:
            return RedirectResponse("./")
        return await self._page(request, "semaphore.html", name)

    async def unknown_page(self, request: Request) -> Response:
        """Any other address, with links to the pages that there are."""
        path: str = request.path_params["path"]
        home = "../" * path.count("/") or "./"
        return await self._page(request, "unknown.html", path=path, home=home)

    async def _page(
        self,
        request: Request,
        template: str,
        name: str | None = None,
        *,
        path: str = "",
        home: str = "./",
    ) -> Response:
        if await self._access.who(request, VIEW, name) is None:
            return PlainTextResponse("You may not see this page.", 403)
        token = token_of(request)
        allowed = [] if name is None else await self._access.changes(request, name)
        text = self._pages.get_template(template).render(
            title=self._title,
            name=name,
            path=path,
            home=home,
            token=token if self._access.writable else "",
            allowed=" ".join(allowed),
            writable=self._access.writable,
            place=_place(self._redis),
            prefix=self._prefix,
        )
        response = Response(text, 404 if path else 200, media_type="text/html")
        if self._access.writable:
            set_token(request, response, token)
        return response

    # -- streams

    async def events(self, request: Request) -> Response:
        """What a page shows, again and again.

        ``?name=``, and ``?keys=``, where its keys begin, or ``?keys_after=``. Otherwise
        ``?filter=`` and ``?rows=``.
        """
        asked = request.query_params
        name = asked.get("name")
        if await self._access.who(request, VIEW, name) is None:
            return PlainTextResponse("You may not see this page.", 403)
        reader, _ = self._reader()
        if request.method == "HEAD":
            stream = _nothing()
        elif name is None:
            rows = asked.get("rows", "")
            count = int(rows) if rows.isdecimal() and len(rows) < 5 else ROWS
            stream = _list_stream(reader, asked.get("filter", ""), min(count, MOST_ROWS))
        else:
            keys = asked.get("keys_after"), asked.get("keys", "")[:LONGEST_START]
            whole = await self._access.may(request, "revoke", name)
            stream = _detail_stream(reader, Detail(name, *keys), whole_ids=whole)
        return _EventStream(
            stream,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    # -- changes and metrics

    async def change(self, request: Request) -> Response:
        """Make a change, for a POST of JSON."""
        reader, _ = self._reader()
        try:
            text = await change(request, self._access, self._redis, self._prefix, reader.histories)
        except NotChanged as refused:
            return JSONResponse({"ok": False, "text": str(refused)}, refused.status)
        reader.read_soon()
        return JSONResponse({"ok": True, "text": text})

    async def metrics(self, request: Request) -> Response:
        """The numbers for Prometheus. ``?match=`` chooses names, and may be repeated."""
        if await self._access.who(request, METRICS, None) is None:
            return PlainTextResponse("You may not see the metrics.", 403)
        reader, metrics = self._reader()
        words = request.query_params.getlist("match")
        try:
            text, kind = await metrics.text(reader, words, request.headers.get("accept", ""))
        except (SemaphoreError, TimeoutError, *READ_ERRORS) as error:
            reason = str(error) or type(error).__name__
            return PlainTextResponse(f"Redis cannot be read: {reason}\n", 503)
        return Response(text, headers={"Content-Type": kind})


def _place(redis: Any) -> str:
    """Which Redis, and which database of it."""
    if isinstance(redis, ClusterClient):
        host, port = known_nodes(redis)[0]
        return f"Redis Cluster at {host}:{port}"
    database = redis.connection_pool.connection_kwargs.get("db") or 0
    return f"{place_of(redis.connection_pool)}, database {database}"


# -- streams


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield b""


def _list_stream(reader: Reader, words: str, rows: int) -> AsyncGenerator[bytes]:
    watch = Watch()

    def event() -> bytes:
        made = reader.views.get((words, rows))
        if made is None:  # by the first of the tabs that show the same
            view, names = list_view(reader, words, rows)
            made = reader.views[words, rows] = (_event(view), names)
        watch.rows = made[1]
        return made[0]

    return _stream(reader, watch, event)


def _detail_stream(reader: Reader, detail: Detail, *, whole_ids: bool) -> AsyncGenerator[bytes]:
    def event() -> bytes:
        made = reader.views.get((detail, whole_ids))
        if made is None:
            view = detail_view(reader, detail, whole_ids=whole_ids)
            made = reader.views[detail, whole_ids] = _event(view)
        return made

    return _stream(reader, Watch(detail=detail), event)


def _event(view: Any) -> bytes:
    return f"data: {json.dumps(view)}\n\n".encode()


async def _stream(
    reader: Reader, watch: Watch, event: Callable[[], bytes]
) -> AsyncGenerator[bytes]:
    """Events for a page, until it is to connect again. At most one waits to be sent."""
    loop = asyncio.get_running_loop()
    sent = began = loop.time()
    async with reader.watching(watch):
        yield b"retry: 500\n\n"
        while loop.time() < began + STREAM_LIFE and not _server_ends():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await watch.changed.wait()
            if watch.changed.is_set():
                watch.changed.clear()
                yield event()
            elif loop.time() < sent + PING:
                continue
            else:
                yield b": still here\n\n"
            sent = loop.time()


def _server_ends() -> bool:
    """Whether uvicorn is shutting down. It then waits for all streams, without notifying them."""
    server: object = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


class _EventStream(StreamingResponse):
    """A stream that ends if its client does not take an event in time."""

    async def stream_response(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        body = {"type": "http.response.body"}
        events = cast("AsyncGenerator[bytes]", self.body_iterator)
        async with contextlib.aclosing(events):
            with contextlib.suppress(TimeoutError):
                async for event in events:
                    async with asyncio.timeout(STALLED):
                        await send({**body, "body": event, "more_body": True})
        await send({**body, "more_body": False})


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
