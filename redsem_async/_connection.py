"""The one connection of a hub: replies in order, messages between them.

The protocol object is called by the event loop with what arrived and applies it at once, so
there is no reading task that could be late, cancelled or forgotten.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from ._backend import Letter, Link, Listener
from ._dial import Opened, checked_client, dial, place_of
from ._keys import channel
from ._protocol import Trouble
from ._resp import Push, Reader, WireError, broken, misfit, pack, scripts_forgotten
from ._wire import fault_of, message

logger = logging.getLogger("redsem_async")

CLOSING_TIME = 1.0  # seconds that closing may take


class RedisBackend:
    """Semaphores kept in Redis, reached with the settings of the user's client."""

    def __init__(self, client: object) -> None:
        self._client = checked_client(client)

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
        self._reader = Reader()
        self._slots: deque[Letter | _Subscribe] = deque()
        self._channels: dict[str, bytes] = {}  # by the prefix that it is for
        self._loaded: set[str] = set()
        self._paused = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._transport.set_protocol(self)
        if not self._hears:
            listener.deafened(broken("the server does not speak RESP3"))
        if opened.received:
            self.data_received(opened.received)

    # -- writing

    @property
    def writable(self) -> bool:
        return not (self._paused or self._ending)

    def send(self, letters: Sequence[Letter], now: float) -> None:
        parts: list[bytes] = []
        hub, loaded = self._listener.hub_id, self._loaded
        for letter in letters:
            wire = letter.wire
            if self._hears and wire.address.prefix not in self._channels:
                parts.append(self._subscribe(wire.address.prefix))
            letter.sent_at = now
            script, arguments = wire.command(letter.call, letter.tag, hub)
            if script.sha in loaded:
                parts.append(pack(("EVALSHA", script.sha, *arguments)))
            else:
                # What this connection has not sent yet goes as text: that costs no extra trip,
                # and a server that lost its scripts says NOSCRIPT.
                loaded.add(script.sha)
                parts.append(pack(("EVAL", script.text, *arguments)))
            self._slots.append(letter)
        self._transport.write(b"".join(parts))

    def _subscribe(self, prefix: str) -> bytes:
        name = channel(prefix, self._listener.hub_id)
        self._channels[prefix] = name.encode()
        self._slots.append(_Subscribe())
        return pack(("SUBSCRIBE", name))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._listener.writable_again()

    # -- reading

    def data_received(self, data: bytes) -> None:
        try:
            for item in self._reader.feed(data):
                if self._ending:
                    return
                if isinstance(item, Push):
                    self._pushed(item)
                else:
                    self._replied(item)
        except WireError as error:
            self._fail(error)

    def _pushed(self, push: Push) -> None:
        if push.kind == b"message":
            name, said = push.parts
            told = message(said) if isinstance(said, bytes) else None
            prefix = next((p for p, own in self._channels.items() if own == name), None)
            if prefix is not None and told is not None:
                self._listener.told(prefix, told)
            else:
                logger.debug("ignored a message that says nothing known")
        elif push.kind == b"subscribe":
            if self._slots and isinstance(self._slots[0], _Subscribe):
                self._slots.popleft()
        elif push.kind == b"unsubscribe":
            raise broken("the server ended the subscription")

    def _replied(self, reply: Any) -> None:
        slot = self._slots.popleft() if self._slots else None
        if isinstance(slot, _Subscribe) and isinstance(reply, Exception):
            if fault_of(reply).trouble is not Trouble.REFUSED:
                self._fail(reply)  # busy, or loading: nothing that says we may not hear
                return
            self._hears = False
            self._listener.deafened(reply)
            return
        if not isinstance(slot, Letter):
            raise misfit("the server replied to nothing that was asked")
        self.fresh_at = slot.sent_at
        if isinstance(reply, Exception):
            fault = fault_of(reply)
            if scripts_forgotten(reply):
                self._loaded.clear()
            self._listener.answered(slot, fault)
            if fault.trouble is Trouble.MOVED:
                self._fail(reply)
            return
        try:
            fits = reply[0] == b"%d" % slot.tag
            answer = slot.wire.reply(slot.call, reply) if fits else None
        except (TypeError, ValueError, IndexError) as error:
            raise misfit("the server's reply is none to that command") from error
        if answer is None:
            raise misfit("the server's reply belongs to another command")
        self._listener.answered(slot, answer)

    # -- ending

    def eof_received(self) -> None:
        self._fail(broken("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._fail(exc or broken("the connection was closed"))

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
