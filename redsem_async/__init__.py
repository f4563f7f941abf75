"""Distributed semaphores for asyncio, kept in Redis: never more than N at a time, fleet-wide."""

from ._api.classes import FairSemaphore, Mutex, Semaphore
from ._api.client import aclose, connect, from_url
from ._api.group import SemaphoreGroup
from ._api.permit import Permit
from ._api.semaphore import AnySemaphore
from ._api.status import Client, Holder, KeyStatus, SemaphoreStatus, Waiter
from ._core.errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreError,
    SlotsMismatch,
)

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AnySemaphore",
    "BackendError",
    "BackendUnavailable",
    "Client",
    "FairSemaphore",
    "Holder",
    "KeyStatus",
    "ModeMismatch",
    "Mutex",
    "Permit",
    "PermitLost",
    "QueueFull",
    "Semaphore",
    "SemaphoreClosed",
    "SemaphoreError",
    "SemaphoreGroup",
    "SemaphoreStatus",
    "SlotsMismatch",
    "Waiter",
    "aclose",
    "connect",
    "from_url",
]
