"""A transport for httpx's ``AsyncClient`` that limits outbound calls."""

from typing import ClassVar

from ._core.errors import AcquireTimeout, QueueFull
from ._integrations.transport import Library, Transport

try:
    import httpx
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.httpx needs httpx: pip install 'redsem-async[httpx]'"
    ) from _missing

__all__ = ["PermitTimeout", "PermitsQueueFull", "SemaphoreTransport"]


class PermitTimeout(AcquireTimeout, httpx.PoolTimeout):
    """No permit became free in time. The request was not sent.

    It is an ``AcquireTimeout`` and has its attributes. It is also a
    ``PoolTimeout``, so httpx and SDKs built on it treat it like a wait for a connection.
    """

    _request: httpx.Request | None = None  # OSError's constructor does not call the next one


class PermitsQueueFull(QueueFull, httpx.PoolTimeout):
    """The queue already has ``max_waiters`` waiters. The request was not sent.

    It is a ``QueueFull`` with its attributes, and a ``PoolTimeout``.
    """


class SemaphoreTransport(
    Transport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport],
    httpx.AsyncBaseTransport,
):
    """Sends a request once it has a permit: ``AsyncClient(transport=SemaphoreTransport(sem))``.

    The permit is held until the response's body has been read or closed, or the request has
    failed or was cancelled. Every request needs a permit, and so does each redirect and each
    retry of an SDK. A response that is left unread for a lease is logged as a warning, and one
    that is garbage-collected before it was read emits a ``ResourceWarning``.

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
            ``pool`` timeout of httpx (5 s unless the client has another), or the semaphore's
            timeout if that is shorter. The other timeouts start after that wait.
        permits: how many permits each request needs.
        cancel_on_loss: whether a lost permit cancels the request. By default as the semaphore
            says. ``False`` suits a cap on load, because running work continues.
        cost: what each request takes from the rate, or a dict of what it takes from each rate, by
            name, as for ``acquire``, or a function of the request that returns one of these.
        settle: a function of the response that returns what the request really cost
            (``permit.settle``), or ``None`` to keep *cost*. It is called when the body has been
            read or is closed, and gets a copy of the response with what was read as its
            ``content``, which is kept in memory until then. A request that fails, a response that
            is never read, and an exception of the function, which is logged, also keep *cost*.
        back_off: whether the whole fleet backs off (``permit.back_off``) from an upstream that
            is overloaded. In a semaphore with keys only the requests of the same key do. The
            response is returned unchanged. With True, an overload is a response with status 429
            or 503. It pauses for as long as ``Retry-After``, ``retry-after-ms`` or (of a 429) a
            used-up rate limit says. If none does, it only cuts the limit in force. A
            function from the response to the number of seconds (0 without a pause), or to
            ``None`` for no overload, replaces these rules.
        on_outage: what happens to requests while Redis is unavailable or rejects commands. With
            ``"closed"`` the error is raised. With ``"open"`` all are sent without a permit. With a
            number, up to that many at a time are, in this process. The others wait for them, for
            up to their timeout.

    Raises:
        PermitTimeout: (of a request) no permit became free in time.
        PermitsQueueFull: the queue already has ``max_waiters`` waiters.
        PermitLost: the permit was lost before the response was read.
        BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        ValueError, TypeError: (of the constructor) for invalid arguments.
    """

    _library: ClassVar = Library(httpx, PermitTimeout, PermitsQueueFull)
