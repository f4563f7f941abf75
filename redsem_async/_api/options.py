"""What semaphores are made with: a client, and keyword options."""

import inspect
import os
import socket
from collections.abc import Callable
from functools import wraps
from types import EllipsisType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
)

from redsem_async._core import config
from redsem_async._core.config import Terms
from redsem_async._protocol.backend import Backend
from redsem_async._protocol.operations import KeyTerms
from redsem_async._redis.backend import redis_backend

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    AnyRedis = Redis | RedisCluster | Backend
    """A client of ``redis.asyncio``, or a ``MemoryBackend``."""

P = ParamSpec("P")
S = TypeVar("S")


def backend_of(client: object) -> Backend:
    """Return *client* itself if it is a backend, or else the Redis that *client* connects to."""
    if callable(getattr(client, "connect", None)) and hasattr(client, "place"):
        return cast("Backend", client)
    return redis_backend(client)


def takes_options(
    init: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], None]:
    """Decorate a constructor that passes its ``**options`` on, to `Terms` in the end.

    Its signature, for ``help``, shows the options and their defaults. Python names the function
    that got wrong arguments. This names the class that the user wrote, and how to call it.
    """
    own = inspect.signature(init)
    [options] = get_args(own.parameters["options"].annotation)
    shown = [
        *(each for name, each in own.parameters.items() if name != "options"),
        *(each for name, each in _TERMS.items() if name in options.__optional_keys__),
    ]
    known = {each.name for each in shown}

    @wraps(init)
    def checked(self: S, /, *args: P.args, **options: P.kwargs) -> None:
        if "rate" in options and "rate" not in known:
            raise TypeError(f"rate needs a FairSemaphore, not a {type(self).__name__}")
        try:
            (init if options.keys() <= known else accepted.bind)(self, *args, **options)
        except TypeError:
            try:
                accepted.bind(self, *args, **options)
            except TypeError as wrong:
                name = type(self).__name__
                raise TypeError(f"{name}(): {wrong}; {how_to_call(type(self))}") from None
            raise  # the arguments fit, so this is an error about one of them

    accepted = checked.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return checked


_TERMS = inspect.signature(Terms).parameters


def how_to_call(cls: type[Any]) -> str:
    """How a class is called: its positional arguments, and that options are keywords."""
    parameters = inspect.signature(cls).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return f"use {cls.__name__}({', '.join(names)}), with options as keywords"


def refuse_pickling(made: object, instead: str = "create one in each process") -> NoReturn:
    """Say what to do instead of pickling or copying what belongs to one process."""
    raise TypeError(f"cannot pickle or copy a {type(made).__name__}: {instead}")


def key_terms(terms: Terms, key: str | EllipsisType, permits: int) -> KeyTerms | None:
    """What a client declares for *key*. None if none is given, and there are no keys."""
    if key is ...:
        if terms.keyed:
            raise TypeError(
                "a semaphore with key_limit= or share=True needs acquire(key=...);"
                " key=None is for requests that have none"
            )
        return None
    key, limit, weight = terms.checked_key(key), terms.key_limit, terms.weight
    if callable(limit):
        limit = config.limit_or_none(limit(key), f"key_limit({key!r})")
    if limit and permits > limit:
        raise ValueError(f"permits must be at most the key_limit of {limit}, not {permits}")
    weight = config.weight_of(weight(key)) if callable(weight) else weight
    return KeyTerms(key, limit, weight, terms.patience_ms)


def signature(label: str | None) -> str:
    """Who sets a limit or begins a back-off, as 'label@host:pid', in at most 200 bytes."""
    who = f"{_cut(label, 100)}@" if label else ""
    return f"{who}{_cut(socket.gethostname(), 80)}:{os.getpid()}"


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
