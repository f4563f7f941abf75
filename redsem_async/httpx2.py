"""A transport for httpx2's ``AsyncClient`` that limits outbound calls."""

from typing import ClassVar

from ._core.errors import AcquireTimeout, QueueFull
from ._integrations.transport import Library, Transport

try:
    import httpx2
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.httpx2 needs httpx2: pip install 'redsem-async[httpx2]'"
    ) from _missing

__all__ = ["PermitTimeout", "PermitsQueueFull", "SemaphoreTransport"]


class PermitTimeout(AcquireTimeout, httpx2.PoolTimeout):
    """As in ``redsem_async.httpx``."""

    _request: httpx2.Request | None = None  # OSError's constructor does not call the next one


class PermitsQueueFull(QueueFull, httpx2.PoolTimeout):
    """As in ``redsem_async.httpx``."""


class SemaphoreTransport(
    Transport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport],
    httpx2.AsyncBaseTransport,
):
    """As in ``redsem_async.httpx``, which describes its arguments."""

    _library: ClassVar = Library(httpx2, PermitTimeout, PermitsQueueFull)
