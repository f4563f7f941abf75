# Generated from httpx.py by `nox -s httpx2`: change that file, and run it.
"""A transport for httpx2's ``AsyncClient`` that limits outbound calls."""

from collections.abc import Callable
from types import EllipsisType, TracebackType
from typing import Self

from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._core.errors import AcquireTimeout, BlockedBy, QueueFull
from ._integrations.outbound import OutboundLimiter, ReleasingStream, check_wrapped

try:
    import httpx2
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.httpx2 needs httpx2: pip install 'redsem-async[httpx2]'"
    ) from _missing

__all__ = ["PermitTimeout", "PermitsQueueFull", "SemaphoreTransport"]


class PermitTimeout(AcquireTimeout, httpx2.PoolTimeout):
    """No permit became free in time. The request was not sent.

    It is an ``AcquireTimeout`` and has its attributes. It is also a
    ``PoolTimeout``, so httpx2 and SDKs built on it treat it like a wait for a connection.
    """

    def __init__(
        self,
        name: str,
        waited: float,
        retry_after: float = 0.0,
        blocked_by: BlockedBy = "limit",
        nested: bool = False,  # noqa: FBT001, FBT002 - facts are pickled by position
    ) -> None:
        super().__init__(name, waited, retry_after, blocked_by, nested)
        self._request = None  # OSError's constructor does not call the next one


class PermitsQueueFull(QueueFull, httpx2.PoolTimeout):
    """The queue already has ``max_waiters`` waiters. The request was not sent.

    It is a ``QueueFull`` with its attributes, and a ``PoolTimeout``.
    """


class SemaphoreTransport(httpx2.AsyncBaseTransport):
    """Sends a request once it has a permit: ``AsyncClient(transport=SemaphoreTransport(sem))``.

    The permit is held until the response's body has been read or closed, or the request has
    failed or was cancelled. Every request needs a permit, and so does each redirect and each
    retry of an SDK. A response that is left unread for a lease is logged as a warning, and one
    that is garbage-collected before it was read gives a ``ResourceWarning``.

    If the permit is lost, the request is cancelled, even while its body is read, and
    ``PermitLost`` is raised (unless the semaphore has ``cancel_on_loss=False``).

    Args:
        sem_or_group: a semaphore for all requests, or a group with one for each *key*.
        wrapped: the transport that sends the requests. An ``AsyncHTTPTransport`` by default.
            Closing this transport closes it.
        key: of a request, in a group or in a semaphore with keys, a string or a function of the
            request. In a group it is the host by default. A semaphore with keys requires it,
            or ``None`` for requests without a key.
        timeout: seconds to wait for a permit. ``None`` waits forever. The default is the
            ``pool`` timeout of httpx2 (5 s unless the client has another), or the semaphore's
            timeout if that is shorter. The other timeouts start after that wait.
        permits: how many permits each request needs.
        cancel_on_loss: whether a lost permit cancels the request. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        back_off: whether the whole fleet backs off (``permit.back_off``) after a response with
            status 429 or 503, for as long as ``Retry-After`` says, or else for a second, doubled
            by each further overload in quick succession. The response is returned unchanged.

    Raises:
        PermitTimeout: (of a request) no permit became free in time.
        PermitsQueueFull: the queue already has ``max_waiters`` waiters.
        PermitLost: the permit was lost before the response was read.
        BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        ValueError, TypeError: (of the constructor) for invalid arguments.
    """

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        wrapped: httpx2.AsyncBaseTransport | None = None,
        *,
        key: Callable[[httpx2.Request], str] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        back_off: bool = False,
    ) -> None:
        self._limiter = OutboundLimiter(
            sem_or_group,
            key,
            _host,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
            back_off=back_off,
        )
        if wrapped is None:
            wrapped = httpx2.AsyncHTTPTransport()
        check_wrapped(wrapped, "httpx2")
        self._wrapped = wrapped

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Acquire a permit and send *request*. httpx2 calls this."""
        if not isinstance(request, httpx2.Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            library = type(request).__module__.partition(".")[0]
            raise TypeError(f"this is a client of {library}: use redsem_async.{library} in it")
        try:
            timeouts = request.extensions.get("timeout", {})
            held = await self._limiter.acquire(request, timeouts.get("pool"))
        except AcquireTimeout as full:
            raise PermitTimeout(
                full.name, full.waited, full.retry_after, full.blocked_by, full.nested
            ) from full
        except QueueFull as full:
            raise PermitsQueueFull(
                full.name, full.max_waiters, full.retry_after, full.for_key
            ) from full
        try:
            with held.guarded():
                response = await self._wrapped.handle_async_request(request)
            retry_after = response.headers.get("retry-after")
            self._limiter.answered(held, response.status_code, retry_after)
            if not response.is_closed:
                response.stream = _Body(_async_body(response), held)
                held.expect_reading(f"{request.method} {request.url.host}")
                return response
        except BaseException:
            await held.end()
            raise
        await held.end()  # the response has its content already, as in tests
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport. Open responses keep their permits."""
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._wrapped.__aexit__(exc_type, exc_value, traceback)


class _Body(ReleasingStream, httpx2.AsyncByteStream):
    pass


def _async_body(response: httpx2.Response) -> httpx2.AsyncByteStream:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("the wrapped transport's response has no async body of httpx2")
    return response.stream


def _host(request: httpx2.Request) -> str:
    return request.url.host
