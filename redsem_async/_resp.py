"""RESP3 as bytes: commands packed, replies and pushes told apart. hiredis does the work."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import hiredis
import redis.exceptions as errors

from ._wire import error_of

_INCOMPLETE = object()

# Typed too narrowly in hiredis: as a tuple of one.
pack = cast("Callable[[tuple[str | int, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""The bytes of one command."""

WireError = errors.RedisError
"""What is wrong with a connection or with a reply, as redis-py calls it."""


class Push(NamedTuple):
    """Something that the server says unasked."""

    kind: bytes
    parts: list[Any]


class Reader:
    """Bytes in, replies and pushes out. An error reply is an exception that is not raised."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(
            replyError=error_of, protocolError=errors.InvalidResponse, notEnoughData=_INCOMPLETE
        )

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add *data*, and yield what is complete. Raises `WireError` where it is no RESP."""
        self._reader.feed(data)
        while (item := self._reader.gets()) is not _INCOMPLETE:
            if isinstance(item, hiredis.PushNotification):
                kind, *parts = cast("list[Any]", item)
                yield Push(kind, parts)
            else:
                yield item


def broken(reason: str) -> WireError:
    """An error for a connection that ended."""
    return errors.ConnectionError(reason)


def misfit(reason: str) -> WireError:
    """An error for a reply that does not fit what was asked."""
    return errors.InvalidResponse(reason)


def scripts_forgotten(error: Exception) -> bool:
    """Whether an error reply says that the server does not know a script."""
    return isinstance(error, errors.NoScriptError)
