"""A limit on the requests of FastAPI's routes: ``Depends(RequirePermit(sem))``."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import EllipsisType
from typing import Any

from ._api.group import SemaphoreGroup
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._core.cancellation import finish
from ._integrations.admission import (
    TRY_AGAIN_LATER,
    UNAVAILABLE,
    Admission,
    ClientDisconnected,
    OnOutage,
    Rejected,
)

try:
    import fastapi
    from fastapi import HTTPException, Request, WebSocket, WebSocketException
    from fastapi.requests import HTTPConnection
    from fastapi.websockets import WebSocketState
    from starlette.requests import ClientDisconnect
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.fastapi needs FastAPI: pip install 'redsem-async[fastapi]'"
    ) from _missing

__all__ = ["RequirePermit"]

OLDEST = (0, 118)


def _see_that_responses_are_covered(version: str) -> None:
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise ImportError(
            f"redsem_async.fastapi needs FastAPI 0.118 or newer, not {version}: from 0.106 a"
            " dependency ended before the response was sent, so that streamed bodies would run"
            " without a permit, and before that it could not answer that its permit was lost."
            " Update it, or use redsem_async.asgi, which needs no FastAPI"
        )


_see_that_responses_are_covered(fastapi.__version__)

HELD = "redsem_async.permits"  # in the scope: what the request holds already
READ_AHEAD = 65_536  # bytes of a body that is read before the line is joined
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
CLIENT_CLOSED_REQUEST = 499  # what proxies log for a client that left


class RequirePermit:
    """A dependency that holds a permit for as long as its request lasts.

    ``permit: Annotated[Permit, Depends(RequirePermit(sem))]`` gives it to the handler;
    ``dependencies=[Depends(...)]`` of a route, router or application only requires it. Plain
    ``def`` handlers may use it too, and WebSocket routes. Make one object and use it everywhere:
    in one request it then stands for one permit, however often it is named.

    The permit is acquired before any header is sent, and held until the response has been sent,
    a streamed body and background tasks included, or the client has left.

    Who finds no place gets *status* with a ``Retry-After`` computed from the queue; a WebSocket
    is denied with the same where the server can, and closed with 1013 elsewhere. A client that
    hangs up in line gives its place up; of a request with a body, that is noticed when the
    handler declares the body, or when it has 64 KiB at most. When the permit is lost the handler
    is cancelled (unless the semaphore has ``cancel_on_loss=False``; code in a thread runs on),
    and the client gets 503 if no header is out yet; otherwise its connection is ended.

    Args:
        sem_or_group: a semaphore for all requests, or a group with one for each *key*.
        key: the key of a request in the group: a function of the ``Request`` (or
            ``WebSocket``). Any text will do, raw header values too.
        timeout: seconds to wait in line, instead of the semaphore's own; ``None`` for ever,
            0 for not at all.
        on_outage: what becomes of requests while Redis cannot be asked. ``"closed"``: they get
            503. ``"open"``: all are let through. A number: as many at a time in this process,
            and the others get 503. The handler of one that is let through without a permit is
            given ``None``: annotate it ``Permit | None`` then.
        status: of the answer when all places are taken: 503, or 429 say.
        permits: how many each request takes.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant.
    """

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Request], str] | Callable[[WebSocket], str] | None = None,
        timeout: float | EllipsisType | None = ...,
        on_outage: OnOutage = "closed",
        status: int = 503,
        permits: int = 1,
    ) -> None:
        any_key: Callable[[Any], str] | None = key
        self._admission = Admission(
            sem_or_group,
            any_key,
            timeout=timeout,
            permits=permits,
            on_outage=on_outage,
            status=status,
        )

    async def __call__(self, connection: HTTPConnection) -> AsyncGenerator[Permit | None]:
        """Hold a permit for one request: for FastAPI to call."""
        held: dict[RequirePermit, Permit | None] = connection.scope.setdefault(HELD, {})
        if self in held:  # what FastAPI itself remembers may be a matter of security scopes
            yield held[self]
            return
        semaphore = self._admission.semaphore_for(connection)
        watch = None
        try:
            if await _heard(connection):
                watch = asyncio.create_task(_until_gone(connection))
            async with self._admission.admitted(semaphore, watch) as permit:
                await _end(watch)
                held[self] = permit
                yield permit
        except Rejected as refused:
            raise _error_for(connection, refused) from refused.__cause__
        except ClientDisconnected:
            raise _farewell(connection) from None
        finally:
            held.pop(self, None)
            await _end(watch)

    @property
    def responses(self) -> dict[int | str, dict[str, Any]]:
        """For OpenAPI, where FastAPI does not look into dependencies for answers.

        ``@app.get("/", responses=require.responses)``, or the same for a router or application.
        """
        retry = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
        detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
        said: dict[str, Any] = {
            "headers": {"Retry-After": retry},
            "content": {"application/json": {"schema": detail}},
        }
        full = {"description": "All places are taken: try again later.", **said}
        unavailable = {"description": "No place can be given out now: try again later.", **said}
        return {UNAVAILABLE: unavailable, self._admission.status: full}


async def _heard(connection: HTTPConnection) -> bool:
    """Whether a hang-up would be heard: whether nothing comes any more that is not for us."""
    if isinstance(connection, WebSocket):
        if connection.client_state is WebSocketState.CONNECTING:
            await connection.receive()  # the handshake's request, as `accept` would
        return connection.application_state is WebSocketState.CONNECTING
    if not isinstance(connection, Request):
        return False
    if not getattr(connection, "_stream_consumed", False):
        if not _is_small(connection):
            return False
        try:
            await connection.body()  # kept there for the handler
        except ClientDisconnect:
            raise ClientDisconnected from None
    return True


def _is_small(request: Request) -> bool:
    """Whether the request's body is known to be small, if it has any."""
    length = request.headers.get("content-length")
    if length is not None:
        return length.isdecimal() and int(length) <= READ_AHEAD
    if "transfer-encoding" in request.headers:
        return False
    # HTTP/1 has no third way to send a body.
    return request.scope["http_version"].startswith("1") or request.method in WITHOUT_BODY


async def _until_gone(connection: HTTPConnection) -> None:
    """Wait until the client has hung up."""
    assert isinstance(connection, Request | WebSocket)
    kind = ""
    while kind not in ("http.disconnect", "websocket.disconnect"):
        kind = (await connection.receive())["type"]


async def _end(watch: "asyncio.Task[None] | None") -> None:
    if watch is None:
        return
    if not watch.done():
        watch.cancel()
        await finish(watch, 1.0)
    if watch.done() and not watch.cancelled():
        watch.exception()  # whoever reads next is told


def _error_for(connection: HTTPConnection, refused: Rejected) -> Exception:
    """What FastAPI answers the request with."""
    if isinstance(connection, WebSocket):
        if connection.application_state is WebSocketState.DISCONNECTED and refused.__cause__:
            return RuntimeError(refused.detail)
        denial = "websocket.http.response" in (connection.scope.get("extensions") or {})
        if connection.application_state is not WebSocketState.CONNECTING or not denial:
            return WebSocketException(TRY_AGAIN_LATER, refused.detail)
    headers = {"Retry-After": str(refused.retry_after)}
    return HTTPException(refused.status, refused.detail, headers)


def _farewell(connection: HTTPConnection) -> Exception:
    """For the log: nobody hears it."""
    if isinstance(connection, WebSocket):
        return WebSocketException(TRY_AGAIN_LATER, "the client has hung up")
    return HTTPException(CLIENT_CLOSED_REQUEST, "the client has hung up")
