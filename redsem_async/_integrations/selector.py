"""One semaphore, or one of a group: which permit a call or a request needs."""

from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypedDict

from redsem_async._api.awaitables import Acquisition
from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config

Key = Callable[..., str]
Acquire = Callable[..., Acquisition]
"""Acquires what a call with these arguments needs. Takes any, as a key function may."""


def acquirer(
    sem: AnySemaphore | SemaphoreGroup,
    key: Key | None,
    *,
    timeout: float | EllipsisType | None,
    permits: int,
    cancel_on_loss: bool | None,
) -> Acquire:
    """Return what acquires a permit of *sem*, or, where it is a group, of its ``key(...)``.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant, saying what to do.
    """
    options = checked(sem, timeout, permits, cancel_on_loss)
    if isinstance(sem, AnySemaphore):
        if key is not None:
            raise TypeError("key= chooses from a SemaphoreGroup, and this is a single semaphore")
        return lambda *_, **__: sem.acquire(**options)
    if not callable(key):
        raise TypeError("a SemaphoreGroup needs key=, a function that gives the key")
    chosen = key

    def acquire(*args: Any, **kwargs: Any) -> Acquisition:
        return sem[chosen(*args, **kwargs)].acquire(**options)

    return acquire


class AcquireOptions(TypedDict):
    """The arguments of ``acquire``."""

    timeout: float | EllipsisType | None
    permits: int
    cancel_on_loss: bool | None


def checked(
    sem: AnySemaphore | SemaphoreGroup,
    timeout: float | EllipsisType | None,
    permits: int,
    cancel_on_loss: bool | None,  # noqa: FBT001 - as it was given
) -> AcquireOptions:
    """Return the arguments of ``acquire``, if *sem* can be asked for them.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant.
    """
    if not isinstance(sem, AnySemaphore | SemaphoreGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a semaphore or a SemaphoreGroup is needed, not {sem!r}")
    limit = sem.limit if isinstance(sem, AnySemaphore) else 0
    if timeout is not ...:
        timeout = config.timeout_of(timeout)
    if cancel_on_loss is not None:
        cancel_on_loss = config.flag(cancel_on_loss, "cancel_on_loss")
    permits = config.permits_of(permits, limit)
    return {"timeout": timeout, "permits": permits, "cancel_on_loss": cancel_on_loss}
