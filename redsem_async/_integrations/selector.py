"""Which permit a call or request needs, from one semaphore or from one of a group."""

from collections.abc import Callable
from functools import partial
from types import EllipsisType
from typing import Any, NamedTuple, TypedDict, cast

from redsem_async._api.awaitables import Acquisition
from redsem_async._api.group import SemaphoreGroup, abridged
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config

Key = Callable[..., str]
Acquire = Callable[..., Acquisition]
"""Acquires what a call with these arguments needs. Takes any, as a key function may."""


class AcquireOptions(TypedDict):
    """The arguments of ``acquire``."""

    timeout: float | EllipsisType | None
    permits: int
    cancel_on_loss: bool | None


class Choice(NamedTuple):
    """What one call or request acquires, with *key* where *semaphore* has keys."""

    semaphore: AnySemaphore
    key: str | None
    options: AcquireOptions

    def acquire(self, timeout: float | EllipsisType | None = ...) -> Acquisition:
        """Acquire it. *timeout* replaces that of the options."""
        options: AcquireOptions = {**self.options}
        if timeout is not ...:
            options["timeout"] = timeout
        return self.semaphore.acquire(**options, key=self.key)


class Selector:
    """Chooses the semaphore, or the key, of a call or a request."""

    def __init__(
        self,
        source: AnySemaphore | SemaphoreGroup,
        key: Key | str | EllipsisType | None,
        *,
        timeout: float | EllipsisType | None,
        permits: int,
        cancel_on_loss: bool | None,
        default: Key | None = None,
    ) -> None:
        """Raises ValueError or TypeError for arguments that cannot be meant.

        *key* is ``...`` where none was given. A semaphore with keys rejects that, because its
        limits of keys would have no effect. It accepts None, for requests without a key.
        *default* is the key of a group where *key* says nothing.
        """
        self._options = checked(source, timeout, permits, cancel_on_loss)
        given = None if key is ... else key
        if not isinstance(source, AnySemaphore):
            given = default if given is None else given
            if given is None:
                raise TypeError(
                    "a SemaphoreGroup needs key=, a string or a function that returns one"
                )
        elif source.keyed:
            if key is ...:
                raise TypeError(
                    "a semaphore with key_limit= or share=True needs key=, a string or a"
                    " function that returns one; key=None is for requests that have none"
                )
        elif given is not None:
            raise TypeError(
                "key= goes with a SemaphoreGroup, or with a FairSemaphore that has"
                " key_limit= or share=True"
            )
        self._source = source
        self._key = None if given is None else key_function(given)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Choice:
        """What a call with these arguments acquires."""
        if self._key is None:
            assert isinstance(self._source, AnySemaphore)
            return Choice(self._source, None, self._options)
        key = self._key(*args, **kwargs)
        if isinstance(self._source, AnySemaphore):
            return Choice(self._source, _fitting(key), self._options)
        return Choice(self._source[key], None, self._options)


def key_function(key: object) -> Key:
    """*key*, or a function that returns it, where it is a string."""
    if isinstance(key, str):
        return partial(_always, key)
    if not callable(key):
        raise TypeError(f"key must be a str or a function, not {key!r}")
    config.check_function(key, "key")
    return cast("Key", key)


def _always(key: str, /, *_: Any, **__: Any) -> str:
    return key


def _fitting(key: str) -> str:
    """*key*, where ``acquire`` takes it. Another string is replaced by its prefix and a digest.

    Keys come from requests, so any string may be one, even an empty or a very long header.
    """
    try:
        return config.key_of(key)
    except ValueError:
        return abridged(key, key.encode(errors="replace").decode())


def acquirer(
    source: AnySemaphore | SemaphoreGroup,
    key: Key | str | EllipsisType | None,
    *,
    timeout: float | EllipsisType | None,
    permits: int,
    cancel_on_loss: bool | None,
) -> Acquire:
    """Return what acquires a permit for a call, given its arguments.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant, saying what to do.
    """
    choose = Selector(source, key, timeout=timeout, permits=permits, cancel_on_loss=cancel_on_loss)
    return lambda *args, **kwargs: choose(*args, **kwargs).acquire()


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
        raise TypeError(f"expected a semaphore or a SemaphoreGroup, got {sem!r}")
    limit = sem.limit if isinstance(sem, AnySemaphore) else sem.declared_limit
    if timeout is not ...:
        timeout = config.timeout_of(timeout)
    if cancel_on_loss is not None:
        cancel_on_loss = config.flag(cancel_on_loss, "cancel_on_loss")
    permits = config.permits_of(permits, limit)
    return {"timeout": timeout, "permits": permits, "cancel_on_loss": cancel_on_loss}
