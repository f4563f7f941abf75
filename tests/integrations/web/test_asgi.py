"""What ConcurrencyLimitMiddleware does beside the promises of every front."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from redsem_async import FairSemaphore, Permit, PermitLost
from redsem_async.asgi import ClientLeft, ConcurrencyLimitMiddleware
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, soon, until, waiting
from tests.integrations.web.exchange import Exchange, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
PART: Message = {"type": "http.response.body", "body": b".", "more_body": True}
END: Message = {"type": "http.response.body", "body": b"."}


class App:
    """One application for each path."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.permits: list[Permit | None] = []
        self.error: BaseException | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.permits.append(scope.get("redsem_async.permit"))
        try:
            await getattr(self, scope["path"].strip("/") or "plain")(receive, send)
        except BaseException as error:
            self.error = error
            raise

    async def plain(self, receive: Receive, send: Send) -> None:
        await self.go.wait()
        await send(START)
        await send(END)

    async def reads(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.plain(receive, send)

    async def stream(self, receive: Receive, send: Send) -> None:
        await send(START)
        while True:
            await send(PART)

    async def trailers(self, receive: Receive, send: Send) -> None:
        await send({**START, "trailers": True})
        await send(END)
        await send({"type": "http.response.trailers", "headers": [], "more_trailers": True})
        await self.go.wait()
        await send({"type": "http.response.trailers", "headers": [], "more_trailers": False})

    async def afterwards(self, receive: Receive, send: Send) -> None:
        await send(START)
        await send(END)
        await self.go.wait()

    async def hears(self, receive: Receive, send: Send) -> None:
        for _ in range(3):  # the body, that the client has left, and that again
            await receive()
        await send(START)
        await send(PART)
        await send(END)

    async def file(self, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.pathsend", "path": "/"})
        await self.go.wait()

    async def file_trailers(self, receive: Receive, send: Send) -> None:
        await send({**START, "trailers": True})
        await send({"type": "http.response.pathsend", "path": "/"})
        await self.go.wait()
        await send({"type": "http.response.trailers", "headers": []})

    async def denies(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
        await self.go.wait()
        await send({"type": "websocket.http.response.body", "body": b"."})

    async def listens(self, receive: Receive, send: Send) -> None:
        await receive()
        left = asyncio.ensure_future(receive())
        await send(START)
        while not left.done():
            await send(PART)
        await send(END)

    async def left(self, receive: Receive, send: Send) -> None:
        raise ClientLeft

    async def loss(self, receive: Receive, send: Send) -> None:
        raise PermitLost("another", "id", "for a test")

    async def closes(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        await self.go.wait()

    async def idle(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.go.wait()


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def limited(app: App, sem: FairSemaphore) -> ConcurrencyLimitMiddleware:
    return ConcurrencyLimitMiddleware(
        app, sem, timeout=0.5, on_outage="open", exempt=lambda scope: scope["path"] == "/alive"
    )


async def test_little_of_a_body_is_read_in_the_queue(app: App, sem: FairSemaphore) -> None:
    """Uploads that wait must not fill the memory of the process."""
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with sem, Exchange(limited, "/reads", body=None) as upload:
        await waiting(sem, 1)
        for _ in range(100):
            upload.say({"type": "http.request", "body": b"x" * 16_384, "more_body": True})
        await until(lambda: upload.unread <= 96)
        await sem.status()
        assert upload.unread == 96


async def test_few_empty_messages_are_read(app: App, limited: ConcurrencyLimitMiddleware) -> None:
    """They carry nothing, and take memory all the same."""
    async with Exchange(limited, "/idle", kind="websocket") as flood:
        for _ in range(2000):
            flood.say({"type": "websocket.receive", "text": ""})
        await flood.heard("websocket.accept")
        for _ in range(2000):
            await asyncio.sleep(0)
        assert flood.unread > 1000


async def test_a_stream_whose_client_left_is_ended(
    app: App, limited: ConcurrencyLimitMiddleware, sem: FairSemaphore
) -> None:
    """Not every application listens for a disconnect: the next chunk raises an OSError."""
    async with Exchange(limited, "/stream") as stream:
        await stream.heard("http.response.body", 3)
        stream.hang_up()
        await stream.done()
    assert isinstance(app.error, OSError)
    await all_free(sem)


async def test_who_leaves_the_queue_is_no_error_of_a_middleware_outside(
    limited: ConcurrencyLimitMiddleware, sem: FairSemaphore
) -> None:
    """Starlette's BaseHTTPMiddleware raises "No response returned" without a response."""
    statuses: list[int] = []

    async def notes(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        statuses.append(response.status_code)
        return response

    async with sem, Exchange(BaseHTTPMiddleware(limited, notes)) as leaver:
        await waiting(sem, 1)
        leaver.hang_up()
        await leaver.done()
    assert statuses == [499]
    await all_free(sem)


async def test_a_server_may_raise_for_a_response_to_a_client_that_left(
    limited: ConcurrencyLimitMiddleware, sem: FairSemaphore
) -> None:
    """As ASGI 2.4 has it."""

    async def served(scope: Any, receive: Receive, _: Send) -> None:
        await limited(scope, receive, AsyncMock(side_effect=OSError))

    async with sem, Exchange(served) as leaver:
        await waiting(sem, 1)
        leaver.hang_up()
        await leaver.done()
    await all_free(sem)


@pytest.mark.parametrize("path", ["/plain", "/hears", "/listens"])
async def test_an_answer_after_the_client_left_is_no_error(
    app: App, limited: ConcurrencyLimitMiddleware, sem: FairSemaphore, path: str
) -> None:
    async with Exchange(limited, path) as late:
        await until(lambda: app.permits)
        late.hang_up()
        await until(lambda: not late.unread)
        app.go.set()
        await late.done()
    assert (app.error, late.sent[-1]) == (None, END)
    await all_free(sem)


@pytest.mark.parametrize(
    ("path", "kind", "last"),
    [
        ("/afterwards", "http", "http.response.body"),
        ("/file", "http", "http.response.pathsend"),
        ("/closes", "websocket", "websocket.close"),
    ],
)
async def test_what_an_application_does_afterwards_is_not_counted(
    limited: ConcurrencyLimitMiddleware, sem: FairSemaphore, path: str, kind: str, last: str
) -> None:
    """Background tasks have no client: a limit on requests is not for them."""
    async with Exchange(limited, path, kind=kind) as exchange:
        await exchange.heard(last)
        await all_free(sem)
        assert not exchange.task.done()


@pytest.mark.parametrize(
    ("path", "kind", "first"),
    [
        ("/trailers", "http", "http.response.trailers"),
        ("/file_trailers", "http", "http.response.pathsend"),
        ("/denies", "websocket", "websocket.http.response.start"),
    ],
)
async def test_trailers_belong_to_the_response(
    app: App,
    limited: ConcurrencyLimitMiddleware,
    sem: FairSemaphore,
    path: str,
    kind: str,
    first: str,
) -> None:
    async with Exchange(limited, path, kind=kind) as exchange:
        await exchange.heard(first)
        assert await sem.locked()
        app.go.set()
        await exchange.done()
        assert "_Inbox" not in repr(asyncio.all_tasks()), "it is still read"
    await all_free(sem)


@pytest.mark.parametrize("path", ["/denies", "/idle"])
async def test_a_websocket_that_is_over_is_not_closed_again(
    limited: ConcurrencyLimitMiddleware, sem: FairSemaphore, path: str
) -> None:
    """It was denied, or its client has left: a loss is an error for the server's log."""
    async with Exchange(limited, path, kind="websocket") as socket:
        await until(lambda: socket.sent)
        if path == "/idle":
            socket.hang_up()
            await until(lambda: not socket.unread)
        await sem.delete()
        with pytest.raises(PermitLost):
            await socket.done()
    assert len(socket.sent) == 1


@pytest.mark.parametrize("path", ["/loss", "/left"])
async def test_an_applications_own_loss_stays_its_own(
    app: App, limited: ConcurrencyLimitMiddleware, sem: FairSemaphore, path: str
) -> None:
    """It may use other semaphores and middlewares: their errors are for its own handlers."""
    async with Exchange(limited, path) as exchange:
        with pytest.raises((PermitLost, ClientLeft)) as raised:
            await exchange.done()
    assert raised.value is app.error
    assert exchange.sent == []
    await all_free(sem)


async def test_lifespan_and_exempt_requests_need_no_permit(
    app: App, limited: ConcurrencyLimitMiddleware, sem: FairSemaphore
) -> None:
    """A health check that waits would have the process killed for being busy."""
    seen: list[str] = []

    async def alive(receive: Receive, send: Send) -> None:
        seen.append("alive")

    app.alive = app.plain = alive  # type: ignore[attr-defined, method-assign]
    async with sem:
        await Exchange(limited, kind="lifespan").done()
        await Exchange(limited, "/alive").done()
    assert seen == ["alive"] * 2
    assert app.permits == [None] * 2
    for never in ("/alive", alive):  # a coroutine is true: nothing would be limited
        with pytest.raises(TypeError, match="exempt must be a function"):
            ConcurrencyLimitMiddleware(app, sem, exempt=never)  # type: ignore[arg-type]


async def test_one_request_at_a_time_asks_whether_an_outage_is_over(
    app: App,
    limited: ConcurrencyLimitMiddleware,
    sem: FairSemaphore,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where Redis is silent this takes seconds, which the others must not wait for."""
    app.go.set()
    backend.down()
    await Exchange(limited).done()
    acquire, asked, silence = sem.acquire, asyncio.Event(), asyncio.Event()

    async def asks(**options: Any) -> Permit:
        asked.set()
        await silence.wait()
        return await acquire(**options)

    monkeypatch.setattr(sem, "acquire", asks)
    async with Exchange(limited) as first:
        await asked.wait()
        await soon(asyncio.gather(*(Exchange(limited).done() for _ in range(9))))
        assert not first.task.done()
        backend.up()
        silence.set()
        await first.done()
    await soon(Exchange(limited).done())
    assert [permit is None for permit in app.permits] == [True] * 10 + [False] * 2


async def test_an_error_of_the_server_reaches_the_application(
    app: App, limited: ConcurrencyLimitMiddleware, sem: FairSemaphore
) -> None:
    """Reading ahead must not hide it."""

    async def receive() -> Message:
        raise ZeroDivisionError

    async def send(message: Message) -> None: ...

    with pytest.raises(ZeroDivisionError):
        await limited({"type": "http", "path": "/reads", "headers": []}, receive, send)
    await all_free(sem)
