"""The one connection of a hub: replies in order, messages between them.

The protocol object is called by the event loop with what arrived and applies it at once, so
there is no reading task that could be late, cancelled or forgotten.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import hiredis
import redis.asyncio as aioredis
import redis.exceptions as errors

from ._backend import Letter, Link, Listener
from ._dial import Opened, check_client, dial, place_of
from ._keys import Address, channel
from ._protocol import Trouble
from ._wire import Wire, error_of, fault_of, message

logger = logging.getLogger("redsem_async")

CLOSING_TIME = 1.0  # seconds that closing may take

_INCOMPLETE = object()
# Typed too narrowly in hiredis: as a tuple of one.
_pack = cast("Callable[[tuple[str | int, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class RedisBackend:
    """Semaphores kept in Redis, reached with the settings of the user's client."""

    def __init__(self, client: aioredis.Redis) -> None:
        check_client(client)
        self._client = client

    @property
    def place(self) -> str:
        return place_of(self._client)

    async def connect(self, listener: Listener) -> Link:
        return Connection(await dial(self._client), listener)


class _Subscribe:
    """The slot of a SUBSCRIBE, whose confirmation is a push."""


class Connection(asyncio.Protocol):
    """A link to Redis. One reply for each slot, in order; pushes take no slot."""

    def __init__(self, opened: Opened, listener: Listener) -> None:
        self.fresh_at: float | None = None
        self._listener = listener
        self._transport = opened.transport
        self._keep = opened.keep
        self._hears = opened.speaks_resp3
        self._reader = hiredis.Reader(
            replyError=error_of, protocolError=errors.InvalidResponse, notEnoughData=_INCOMPLETE
        )
        self._slots: deque[Letter | _Subscribe] = deque()
        self._prefixes: dict[bytes, str] = {}
        self._loaded: set[str] = set()
        self._wires: WeakKeyDictionary[Address, Wire] = WeakKeyDictionary()
        self._paused = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._transport.set_protocol(self)
        if not self._hears:
            listener.deafened(errors.ResponseError("the server does not speak RESP3"))
        if opened.received:
            self.data_received(opened.received)

    # -- writing

    @property
    def writable(self) -> bool:
        return not (self._paused or self._ending)

    def send(self, letters: Sequence[Letter], now: float) -> None:
        parts: list[bytes] = []
        for letter in letters:
            self._subscribe(letter.address.prefix, parts)
            letter.sent_at = now
            wire = self._wire(letter.address)
            script, arguments = wire.command(letter.call, letter.tag, self._listener.hub_id)
            # EVAL where this connection has not sent the text yet: it costs no extra trip, and
            # a server that lost its scripts says NOSCRIPT.
            known = script.sha in self._loaded
            self._loaded.add(script.sha)
            head = ("EVALSHA", script.sha) if known else ("EVAL", script.text)
            parts.append(_pack((*head, *arguments)))
            self._slots.append(letter)
        self._transport.write(b"".join(parts))

    def _wire(self, address: Address) -> Wire:
        wire = self._wires.get(address)
        if wire is None:
            wire = self._wires[address] = Wire(address)
        return wire

    def _subscribe(self, prefix: str, parts: list[bytes]) -> None:
        name = channel(prefix, self._listener.hub_id)
        if self._hears and name.encode() not in self._prefixes:
            self._prefixes[name.encode()] = prefix
            self._slots.append(_Subscribe())
            parts.append(_pack(("SUBSCRIBE", name)))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._listener.writable_again()

    # -- reading

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while not self._ending and (item := self._reader.gets()) is not _INCOMPLETE:
                if isinstance(item, hiredis.PushNotification):
                    self._pushed(item)
                else:
                    self._replied(item)
        except errors.RedisError as error:
            self._fail(error)

    def _pushed(self, push: Sequence[Any]) -> None:
        kind = push[0]
        if kind == b"message":
            prefix = self._prefixes.get(push[1])
            told = message(push[2]) if isinstance(push[2], bytes) else None
            if prefix is not None and told is not None:
                self._listener.told(prefix, told)
            else:
                logger.debug("ignored a message that says nothing known")
        elif kind == b"subscribe" and self._slots and isinstance(self._slots[0], _Subscribe):
            self._slots.popleft()
        elif kind == b"unsubscribe":
            raise errors.ConnectionError("the server ended the subscription")

    def _replied(self, reply: Any) -> None:
        slot = self._slots.popleft() if self._slots else None
        if isinstance(slot, _Subscribe) and isinstance(reply, Exception):
            self._hears = False
            self._listener.deafened(reply)
            return
        if not isinstance(slot, Letter):
            raise errors.InvalidResponse("the server replied to nothing that was asked")
        self.fresh_at = slot.sent_at
        if isinstance(reply, Exception):
            fault = fault_of(reply)
            if isinstance(reply, errors.NoScriptError):
                self._loaded.clear()
            self._listener.answered(slot, fault)
            if fault.trouble is Trouble.MOVED:
                self._fail(reply)
            return
        parts = cast("list[Any]", reply) if isinstance(reply, list) else []
        if not parts or parts[0] != b"%d" % slot.tag:
            raise errors.InvalidResponse("the server's reply belongs to another command")
        self._listener.answered(slot, self._wire(slot.address).reply(slot.call, parts))

    # -- ending

    def eof_received(self) -> None:
        self._fail(errors.ConnectionError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._fail(exc or errors.ConnectionError("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if not self._ending:
            self._ending = True
            self._transport.abort()
            self._listener.link_lost(error)

    def abort(self) -> None:
        self._ending = True
        self._transport.abort()

    async def close(self) -> None:
        self._ending = True
        self._transport.close()
        await asyncio.wait([self._closed], timeout=CLOSING_TIME)
        if not self._closed.done():
            self._transport.abort()
