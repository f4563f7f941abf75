"""Distributed semaphores for asyncio, kept in Redis: never more than N at a time, fleet-wide."""

from ._client import aclose, connect, from_url
from ._errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreError,
)
from ._group import SemaphoreGroup
from ._permit import Permit
from ._semaphore import AnySemaphore, FairSemaphore, Mutex, Semaphore
from ._status import Client, Holder, SemaphoreStatus, Waiter

__all__ = [
    "AcquireTimeout",
    "AnySemaphore",
    "BackendError",
    "BackendUnavailable",
    "Client",
    "FairSemaphore",
    "Holder",
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
    "Waiter",
    "aclose",
    "connect",
    "from_url",
]
