"""Distributed semaphores for asyncio, kept in Redis. Never more than N at a time, fleet-wide."""

from ._api.classes import FairSemaphore, Mutex, Semaphore
from ._api.client import aclose, connect, from_url
from ._api.group import SemaphoreGroup
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._core.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    LayoutMismatch,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreError,
    SemaphoreFull,
    SlotsMismatch,
)
from ._core.rates import Rate
from ._core.version import __version__ as __version__
from ._protocol.views import (
    BackOff,
    Client,
    Holder,
    KeyStatus,
    RateStatus,
    SemaphoreStatus,
    Waiter,
)

# A traceback names an error as programs import it.
for _error in (
    *(AcquireTimeout, BackendError, BackendUnavailable, LayoutMismatch, ModeMismatch, PermitLost),
    *(QueueFull, SemaphoreClosed, SemaphoreError, SemaphoreFull, SlotsMismatch),
):
    _error.__module__ = __name__

__all__ = [
    "AcquireTimeout",
    "AnySemaphore",
    "BackOff",
    "BackendError",
    "BackendUnavailable",
    "Client",
    "FairSemaphore",
    "Holder",
    "KeyStatus",
    "LayoutMismatch",
    "ModeMismatch",
    "Mutex",
    "Permit",
    "PermitLost",
    "QueueFull",
    "Rate",
    "RateStatus",
    "Semaphore",
    "SemaphoreClosed",
    "SemaphoreError",
    "SemaphoreFull",
    "SemaphoreGroup",
    "SemaphoreStatus",
    "SlotsMismatch",
    "Waiter",
    "aclose",
    "connect",
    "from_url",
]
