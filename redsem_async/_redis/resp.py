"""RESP3 as bytes. Packs commands, and separates replies from push messages. hiredis parses."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import hiredis
import redis.exceptions as errors

from .faults import error_from

_INCOMPLETE = object()

# hiredis types it too narrowly, as a tuple of one.
pack = cast("Callable[[tuple[str | int, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""The bytes of one command."""

ASKING: bytes = pack(("ASKING",))
"""Lets the next command in before its semaphore has arrived."""

WireError = errors.RedisError
"""What is wrong with a connection or with a reply, as redis-py names it."""


class RawPush(NamedTuple):
    """A push message as it arrived."""

    kind: bytes
    parts: list[Any]


class ReplyReader:
    """Bytes in, replies and push messages out. An error reply is an exception, not raised."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(
            replyError=error_from, protocolError=errors.InvalidResponse, notEnoughData=_INCOMPLETE
        )

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add *data*, and yield what is complete. Raises `WireError` where it is not RESP."""
        self._reader.feed(data)
        try:
            while (item := self._reader.gets()) is not _INCOMPLETE:
                if isinstance(item, hiredis.PushNotification):
                    kind, *parts = cast("list[Any]", item) or [b""]
                    yield RawPush(kind, parts)
                else:
                    yield item
        except TypeError as error:
            raise invalid_reply("the key of a map is an array or a map") from error


def connection_error(reason: str) -> WireError:
    """An error for a connection that ended."""
    return errors.ConnectionError(reason)


def invalid_reply(reason: str) -> WireError:
    """An error for a reply that does not fit its command."""
    return errors.InvalidResponse(reason)
