"""Which permit a call or request needs, from one semaphore or from one of a group."""

from collections.abc import Callable
from functools import partial
from types import EllipsisType
from typing import Any, NamedTuple, TypedDict, Unpack, cast

from redsem_async._api.awaitables import Acquisition
from redsem_async._api.group import SemaphoreGroup, abridged
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.rates import Cost

Key = Callable[..., str | None]
CostOf = Cost | Callable[..., Cost | None] | None
"""What a call costs, or a function of its arguments that returns it."""


class CallOptions(TypedDict):
    """The arguments of ``acquire`` that are the same for all calls."""

    timeout: float | EllipsisType | None
    permits: int
    cancel_on_loss: bool | None


class AcquireOptions(CallOptions):
    """The arguments of ``acquire``."""

    cost: CostOf


class Choice(NamedTuple):
    """What one call or request acquires, with *key* where *semaphore* has keys."""

    semaphore: AnySemaphore
    key: str | None
    cost: Cost | None
    options: CallOptions

    @property
    def timeout(self) -> float | None:
        """For how long a call waits. None for as long as it takes."""
        timeout = self.options["timeout"]
        return self.semaphore.timeout if timeout is ... else timeout

    def acquire(self, timeout: float | EllipsisType | None = ...) -> Acquisition:
        """Acquire it. *timeout* replaces that of the options."""
        options: CallOptions = {**self.options}
        if timeout is not ...:
            options["timeout"] = timeout
        return self.semaphore.acquire(**options, key=self.key, cost=self.cost)


class Selector:
    """Chooses the semaphore, or the key, of a call or a request."""

    def __init__(
        self,
        source: AnySemaphore | SemaphoreGroup,
        key: Key | str | EllipsisType | None,
        default: Key | None = None,
        **options: Unpack[AcquireOptions],
    ) -> None:
        """Raises ValueError or TypeError for arguments that cannot be meant.

        *key* is ``...`` where none was given. A semaphore with keys rejects that, because its
        limits of keys would have no effect. It accepts None, for requests without a key.
        *default* is the key of a group where *key* says nothing.
        """
        self._options = checked(source, **options)
        self._cost = options["cost"]
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
        key = cast("str", self.key(*args, **kwargs))  # None is refused
        return self.choose(key, self.cost(*args, **kwargs))

    def key(self, /, *args: Any, **kwargs: Any) -> str | EllipsisType | None:
        """The key of a call. ``...`` without keys, and None where the user's function says so."""
        return ... if self._key is None else self._key(*args, **kwargs)

    def cost(self, /, *args: Any, **kwargs: Any) -> Cost | None:
        """The cost of a call."""
        return self._cost(*args, **kwargs) if callable(self._cost) else self._cost

    def choose(self, key: str | EllipsisType, cost: Cost | None) -> Choice:
        """What a call with this key and cost acquires."""
        if isinstance(self._source, AnySemaphore):
            fitting = None if key is ... else _fitting(key)
            return Choice(self._source, fitting, cost, self._options)
        assert key is not ...
        return Choice(self._source[key], None, cost, self._options)


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


def checked(
    source: AnySemaphore | SemaphoreGroup, **options: Unpack[AcquireOptions]
) -> CallOptions:
    """Return the arguments of ``acquire``, if *source* can be asked for them.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant.
    """
    if not isinstance(source, AnySemaphore | SemaphoreGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a semaphore or a SemaphoreGroup, got {source!r}")
    terms = terms_of(source)
    timeout, cancel, cost = options["timeout"], options["cancel_on_loss"], options["cost"]
    if callable(cost):
        config.check_function(cost, "cost")
    else:
        terms.costs(cost)  # raises
    return {
        "timeout": timeout if timeout is ... else config.timeout_of(timeout),
        "permits": config.permits_of(options["permits"], terms.limit),
        "cancel_on_loss": None if cancel is None else config.flag(cancel, "cancel_on_loss"),
    }


def terms_of(source: AnySemaphore | SemaphoreGroup) -> config.Terms:
    """The options of *source*. Those of a group have a limit of 0 if a function returns it."""
    return source._terms  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
