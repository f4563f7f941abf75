"""A limit on the requests of FastAPI's routes: ``Depends(RequirePermit(sem))``."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import EllipsisType
from typing import Any

from ._api.group import SemaphoreGroup
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._core.rates import Cost
from ._integrations.admission import (
    CLIENT_CLOSED_REQUEST,
    DISCONNECTS,
    READ_AHEAD,
    TRY_AGAIN_LATER,
    UNAVAILABLE,
    Admission,
    ClientDisconnected,
    Rejected,
    RetryAfter,
    stop,
)
from ._integrations.outage import OnOutage

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
            " dependency ended before the response was sent, so streamed bodies were sent"
            " without a permit; before 0.106, a dependency could not answer a request whose permit"
            " was lost. Update FastAPI, or use redsem_async.asgi, which does not need it"
        )


_see_that_responses_are_covered(fastapi.__version__)

HELD = "redsem_async.permits"  # in the scope: the permits that the request holds
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})


class RequirePermit:
    """A dependency that holds a permit for as long as its request lasts.

    ``permit: Annotated[Permit, Depends(RequirePermit(sem))]`` passes the permit to the handler.
    ``dependencies=[Depends(...)]`` of a route, router or application only requires it. Plain
    ``def`` handlers and WebSocket routes may use it too. Create one object and use it everywhere.
    A request then holds one permit, however many of its dependencies name the object.

    The permit is acquired before any header is sent. It is held until the response has been sent,
    including a streamed body and background tasks, or until the client has disconnected.

    A request that gets no permit is answered with *status* and a ``Retry-After`` computed from
    the queue and from recent hold times, plus a random part of up to the same length. A WebSocket
    is denied in the same way if the server supports it, and is otherwise closed with 1013. A
    client that disconnects while it waits leaves the queue. If the request has a body over 64 KiB,
    the disconnect is noticed only if the handler declares the body.

    If the permit is lost, the handler is cancelled, unless the semaphore has
    ``cancel_on_loss=False``. Code in a thread continues. The client gets 503 if no header has
    been sent yet. Otherwise its connection is closed.

    Args:
        sem_or_group: a semaphore for all requests, or a group with one for each *key*.
        key: in a group or in a semaphore with keys, a string or a function of the ``Request`` (or
            ``WebSocket``). Any string is a valid key, even a raw header value. A semaphore with
            keys requires it, or ``None`` for requests without a key.
        timeout: seconds to wait for a permit, instead of the semaphore's. ``None`` waits
            forever. 0 does not join the queue, and returns as soon as Redis replies.
        on_outage: what happens to requests while Redis is unavailable or rejects commands, as
            with full memory or a missing permission. With ``"closed"`` they get 503. With
            ``"open"`` all run. With a number, up to that many run at once in this process. The
            others wait for them, and get 503 when their timeout ends. A handler that runs without
            a permit gets ``None``, so annotate it ``Permit | None``.
        status: the status code when no permit is free, such as 503 or 429.
        permits: how many permits each request takes.
        cancel_on_loss: whether a lost permit cancels the handler. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what each request takes from the rate, or a dict of what it takes from each rate, by
            name, as for ``acquire``, or a function of the ``Request`` (or ``WebSocket``) that
            returns one of these.
        retry_after: a function of the ``SemaphoreFull`` that returns the seconds for
            ``Retry-After``, in place of the error's estimate and of the random part.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[Request], str]
        | Callable[[WebSocket], str]
        | str
        | EllipsisType
        | None = ...,
        timeout: float | EllipsisType | None = ...,
        on_outage: OnOutage = "closed",
        status: int = 503,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        cost: Callable[[Request], Cost | None]
        | Callable[[WebSocket], Cost | None]
        | Cost
        | None = None,
        retry_after: RetryAfter | None = None,
    ) -> None:
        any_key: Callable[[Any], str] | str | EllipsisType | None = key
        any_cost: Callable[[Any], Cost | None] | Cost | None = cost
        self._admission = Admission(
            sem_or_group,
            any_key,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
            cost=any_cost,
            on_outage=on_outage,
            status=status,
            retry_after=retry_after,
        )

    async def __call__(self, connection: HTTPConnection) -> AsyncGenerator[Permit | None]:
        """Hold a permit for one request. FastAPI calls this."""
        held: dict[RequirePermit, Permit | None] = connection.scope.setdefault(HELD, {})
        if self in held:  # FastAPI caches dependencies by their security scopes too
            yield held[self]
            return
        watch = None
        try:
            if await _only_disconnect_follows(connection):
                watch = asyncio.create_task(_until_gone(connection))
            async with self._admission.admitted(connection, watch) as permit:
                if watch is not None:
                    await stop(watch)  # the next receive raises its error again
                held[self] = permit
                yield permit
        except Rejected as refused:
            raise _error_for(connection, refused) from refused.__cause__
        except ClientDisconnected:
            raise _goodbye_message(connection) from None
        finally:
            held.pop(self, None)
            if watch is not None:
                await stop(watch)

    @property
    def responses(self) -> dict[int | str, dict[str, Any]]:
        """The error responses for OpenAPI, because FastAPI finds none in dependencies.

        ``@app.get("/", responses=require.responses)``, or the same for a router or application.
        """
        retry = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
        detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
        said: dict[str, Any] = {
            "headers": {"Retry-After": retry},
            "content": {"application/json": {"schema": detail}},
        }
        full = {"description": "All permits are in use: try again later.", **said}
        unavailable = {"description": "No permit can be granted now: try again later.", **said}
        return {UNAVAILABLE: unavailable, self._admission.status: full}


async def _only_disconnect_follows(connection: HTTPConnection) -> bool:
    """Whether the next message can only be a disconnect, so that it is safe to wait for it."""
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
    """Wait until the client has disconnected."""
    assert isinstance(connection, Request | WebSocket)
    while (await connection.receive())["type"] not in DISCONNECTS:
        pass


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


def _goodbye_message(connection: HTTPConnection) -> Exception:
    """The error for the log; the client is gone."""
    if isinstance(connection, WebSocket):
        return WebSocketException(TRY_AGAIN_LATER, "the client has disconnected")
    return HTTPException(CLIENT_CLOSED_REQUEST, "the client has disconnected")
