"""A limit on the requests of any ASGI application, over HTTP and WebSockets."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from types import EllipsisType
from typing import Any

from ._api.group import SemaphoreGroup
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._core import config
from ._core.errors import PermitLost
from ._core.rates import Cost
from ._integrations.admission import (
    CLIENT_CLOSED_REQUEST,
    DISCONNECTS,
    READ_AHEAD,
    TRY_AGAIN_LATER,
    Admission,
    ClientDisconnected,
    Rejected,
    RetryAfter,
    logger,
    stop,
)
from ._integrations.outage import OnOutage

__all__ = ["ConcurrencyLimitMiddleware", "header"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MESSAGE = 256  # bytes that a message counts besides its content, because it may be empty


class ConcurrencyLimitMiddleware:
    """Runs a request once it has a permit, as in ``app = ConcurrencyLimitMiddleware(app, sem)``.

    In Starlette and FastAPI, ``app.add_middleware(ConcurrencyLimitMiddleware, sem_or_group=sem)``
    works too. The permit is acquired before the application gets the request. It is held until the
    body of the response has been sent, or until the application has finished after the client
    disconnected. A WebSocket holds it until it is closed. Work after the last byte (background
    tasks) is not covered. The application finds the permit in ``scope["redsem_async.permit"]``.
    The value is ``None`` if *on_outage* admitted the request without a permit.

    A request that gets no permit is answered with *status* and a ``Retry-After`` computed from
    the queue, plus a random part of up to the same length. A WebSocket is denied in the same way
    if the server supports it (the ``websocket.http.response`` extension), and is otherwise closed
    with 1013. A client that disconnects while it waits leaves the queue. The middleware does not
    notice this while 64 KiB of the client's body wait to be read.

    If the permit is lost, the application is cancelled (unless the semaphore has
    ``cancel_on_loss=False``). The client gets 503 if no header has been sent yet. Otherwise
    ``PermitLost`` is raised to the server, which closes the connection, and a WebSocket is
    closed with 1013.

    Args:
        app: the application.
        sem_or_group: a semaphore for all requests, or a group with one for each *key*.
        key: of a request, in a group or in a semaphore with keys, a string or a function of its
            scope, such as ``header`` returns. Any string is a valid key. A semaphore with keys
            requires it, or ``None`` for requests without a key.
        timeout: seconds to wait for a permit, instead of the semaphore's. ``None`` waits
            forever. 0 does not join the queue, and returns as soon as Redis replies.
        on_outage: what happens to requests while Redis is unavailable or rejects commands, as
            with full memory or a missing permission. With ``"closed"`` they get 503. With
            ``"open"`` all run. With a number, up to that many run at once in this process. The
            others wait for them, and get 503 when their timeout ends.
        status: the status code when no permit is free, such as 503 or 429.
        permits: how many permits each request takes.
        cancel_on_loss: whether a lost permit cancels the request. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what each request takes from the rate, or a dict of what it takes from each rate, by
            name, as for ``acquire``, or a function of its scope that returns one of these.
        retry_after: a function of the ``SemaphoreFull`` that returns the seconds for
            ``Retry-After``, in place of the error's estimate and of the random part.
        exempt: a function of the scope that returns whether a request needs no permit, such as
            a health check.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """

    def __init__(
        self,
        app: App,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Scope], str] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        on_outage: OnOutage = "closed",
        status: int = 503,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        cost: Callable[[Scope], Cost | None] | Cost | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        retry_after: RetryAfter | None = None,
    ) -> None:
        self._app = app
        if exempt is not None:
            config.check_function(exempt, "exempt")
        self._exempt = exempt
        self._admission = Admission(
            sem_or_group,
            key,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
            cost=cost,
            on_outage=on_outage,
            status=status,
            retry_after=retry_after,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI defines it. A cancelled request releases its permit."""
        limited = scope["type"] in ("http", "websocket")
        if not limited or (self._exempt is not None and self._exempt(scope)):
            await self._app(scope, receive, send)
            return
        inbox = _Inbox(receive)
        answer = _Answer(scope, send, inbox)
        try:
            async with self._admission.admitted(scope, inbox.gone) as permit:
                answer.permit = permit
                inside = {**scope, "redsem_async.permit": permit}
                await self._app(inside, inbox.receive, answer.send)
        except Rejected as refused:
            await answer.refuse(refused)
        except ClientDisconnected:
            logger.debug("a client disconnected while it waited for a permit")
            await answer.end_unheard()
        except ClientLeft:
            if not inbox.left:
                raise  # another middleware's
        finally:
            await stop(inbox.reader)


def header(name: str, default: str = "") -> Callable[[Scope], str]:
    """Make a ``key`` function that returns the value of a request header, unchanged.

    Args:
        name: of the header, in upper or lower case.
        default: the key of requests without this header.
    """
    wanted = name.lower().encode("latin-1")

    def key(scope: Scope) -> str:
        for found, value in scope["headers"]:
            if found.lower() == wanted:
                text: str = value.decode("latin-1")
                return text
        return default

    return key


class ClientLeft(OSError):
    """Raised to an application that streams to a client that has disconnected, as in ASGI 2.4."""


class _Inbox:
    """What the client sends, read before the application asks, to notice a disconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._last: Message | None = None
        self._listening = 0
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reader = asyncio.create_task(self._read())

    @property
    def left(self) -> bool:
        """Whether the client has disconnected."""
        return self.gone.done()

    @property
    def unheard(self) -> bool:
        """Whether the client has disconnected, and the application is not receiving messages."""
        return self.left and not self._listening and bool(self._messages)

    async def receive(self) -> Message:
        """The application's ``receive``."""
        self._listening += 1
        try:
            while not self._messages:
                if self._last is not None:
                    return self._last
                if self.reader.done():
                    self.reader.result()  # raises the error of the server
                await self._next_change()
        finally:
            self._listening -= 1
        message = self._messages.popleft()
        self._size -= _size(message)
        self._change()
        return message

    async def _read(self) -> None:
        try:
            while self._last is None:
                while self._size >= READ_AHEAD:
                    await self._next_change()
                message = await self._receive()
                if message["type"] in DISCONNECTS:
                    self._last = message
                    self.gone.set_result(None)
                self._messages.append(message)
                self._size += _size(message)
                self._change()
        finally:
            self._change()

    def _change(self) -> None:
        # A new event for each change, so that every waiting task sees it, however late it runs.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next_change(self) -> None:
        await self._changed.wait()


class _Answer:
    """The response, with what has been sent to the client, and so what may still be sent."""

    def __init__(self, scope: Scope, send: Send, inbox: _Inbox) -> None:
        self.permit: Permit | None = None
        self._scope = scope
        self._send = send
        self._inbox = inbox
        self._trailers = False
        self._started = False
        self._ended = False

    async def send(self, message: Message) -> None:
        """The application's ``send``."""
        kind = message["type"]
        if self._inbox.unheard and kind == "http.response.body" and message.get("more_body"):
            raise ClientLeft("the client has disconnected")
        if kind in ("http.response.start", "websocket.accept"):
            self._started = True
            self._trailers = message.get("trailers", False)
        elif self._is_last(message):
            self._ended = True
        await self._send(message)
        denies = kind == "websocket.http.response.start"
        if self._ended and not denies and not message.get("more_body"):
            await self._give_back()

    def _is_last(self, message: Message) -> bool:
        match message["type"]:
            case "http.response.body":
                return not message.get("more_body") and not self._trailers
            case "http.response.trailers":
                return not message.get("more_trailers")
            case "http.response.pathsend":
                return not self._trailers
            case kind:  # after a denial, nothing can be added
                return kind in ("websocket.close", "websocket.http.response.start")

    async def _give_back(self) -> None:
        """Leave the permit's block. The response is sent, even if the application still runs."""
        permit, self.permit = self.permit, None
        if permit is not None and not permit.lost:
            await permit.__aexit__(None, None, None)

    async def refuse(self, refused: Rejected) -> None:
        """Send the rejection in the way that is still possible."""
        websocket = self._scope["type"] == "websocket"
        if self._started or self._ended:
            if websocket and not self._ended and not self._inbox.left:
                await self._close(refused)
            elif isinstance(refused.__cause__, PermitLost):
                raise refused.__cause__
        elif not websocket:
            await self._respond(refused, "http.response")
        elif "websocket.http.response" in (self._scope.get("extensions") or {}):
            await self._respond(refused, "websocket.http.response")
        else:
            await self._close(refused)

    async def end_unheard(self) -> None:
        """Respond although the client is gone, because middleware outside may insist on it."""
        if self._scope["type"] == "http":
            status = CLIENT_CLOSED_REQUEST
            with suppress(OSError):  # which a server may raise for that
                await self._send({"type": "http.response.start", "status": status, "headers": []})
                await self._send({"type": "http.response.body"})

    async def _close(self, refused: Rejected) -> None:
        close = {"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": refused.detail}
        await self._send(close)

    async def _respond(self, refused: Rejected, kind: str) -> None:
        body = json.dumps({"detail": refused.detail}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", str(refused.retry_after).encode()),
        ]
        start = {"type": f"{kind}.start", "status": refused.status, "headers": headers}
        await self._send(start)
        await self._send({"type": f"{kind}.body", "body": body})


def _size(message: Message) -> int:
    return MESSAGE + len(message.get("body") or message.get("bytes") or message.get("text") or b"")
