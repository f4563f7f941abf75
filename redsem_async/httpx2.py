"""Outbound calls under a limit: a transport for httpx2's ``AsyncClient``."""

from collections.abc import Callable
from types import EllipsisType, TracebackType
from typing import Self

from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._core.errors import AcquireTimeout, QueueFull
from ._integrations.outbound import OutboundLimiter, ReleasingStream

try:
    import httpx2
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.httpx2 needs httpx2: pip install 'redsem-async[httpx2]'"
    ) from _missing

__all__ = ["PermitTimeout", "PermitsQueueFull", "SemaphoreTransport"]


class PermitTimeout(AcquireTimeout, httpx2.PoolTimeout):
    """No permit became free in time; the request was not sent.

    A :class:`~redsem_async.AcquireTimeout` with its facts, and a ``PoolTimeout``: to httpx2, and
    to SDKs built on it, waiting for a permit is waiting for a connection.
    """

    def __init__(self, name: str, waited: float, retry_after: float = 0.0) -> None:
        super().__init__(name, waited, retry_after)
        self._request = None  # OSError's constructor calls no other


class PermitsQueueFull(QueueFull, httpx2.PoolTimeout):
    """As many callers wait already as ``max_waiters`` allows; the request was not sent.

    A :class:`~redsem_async.QueueFull` with its facts, and a ``PoolTimeout``.
    """


class SemaphoreTransport(httpx2.AsyncBaseTransport):
    """Sends a request when it holds a permit: ``AsyncClient(transport=SemaphoreTransport(sem))``.

    The permit is held until the response's body has been read or closed, or the request has
    failed or was cancelled. Every request takes one: each redirect, each attempt of an SDK that
    tries again. A response that is dropped unread gives a ``ResourceWarning``.

    When the permit is lost the request is cancelled, a body in the middle, and ``PermitLost`` is
    raised (unless the semaphore has ``cancel_on_loss=False``).

    Args:
        sem_or_group: a semaphore for all requests, or a group with one for each *key*.
        wrapped: the transport that sends; an ``AsyncHTTPTransport`` by default. It is closed
            with this one.
        key: the key of a request in the group; its host by default.
        timeout: seconds to wait for a permit, instead of the semaphore's own; ``None`` for ever.
            httpx2's own timeouts begin when it is held.
        permits: how many each request takes.

    Raises:
        PermitTimeout: (of a request) no permit became free in time.
        PermitsQueueFull: ``max_waiters`` wait already.
        PermitLost: the permit was lost before the response was read.
        BackendError: Redis refused, or could not be asked (``BackendUnavailable``).
        ValueError, TypeError: (of the constructor) for arguments that cannot be meant.
    """

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        wrapped: httpx2.AsyncBaseTransport | None = None,
        *,
        key: Callable[[httpx2.Request], str] | None = None,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
    ) -> None:
        self._limiter = OutboundLimiter(sem_or_group, key, _host, timeout=timeout, permits=permits)
        self._wrapped = httpx2.AsyncHTTPTransport() if wrapped is None else wrapped

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send *request* when a permit is held: for the client to call."""
        try:
            held = await self._limiter.hold(request)
        except AcquireTimeout as full:
            raise PermitTimeout(full.name, full.waited, full.retry_after) from full
        except QueueFull as full:
            raise PermitsQueueFull(full.name, full.max_waiters, full.retry_after) from full
        try:
            with held.guarded():
                response = await self._wrapped.handle_async_request(request)
            if not response.is_closed:
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _Body(response.stream, held)
                return response
        except BaseException:
            await held.end()
            raise
        await held.end()  # it was made with its content, as in tests
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport. Responses that are open hold their permits on."""
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


def _host(request: httpx2.Request) -> str:
    return request.url.host
