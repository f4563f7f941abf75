"""The one connection of a hub, with replies in order and push messages between them.

The event loop calls the protocol object with what arrived, which applies it at once. There is no
reading task that could be late, cancelled or forgotten.

A script is called by its digest, the first time too. If the server lacks one, the hub writes the
command again, and from then on the first call of each script has its text.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError

from redsem_async._protocol.backend import Listener
from redsem_async._protocol.errors import ErrorKind
from redsem_async._protocol.operations import AnyOperation, Operation, SemaphoreRef
from redsem_async._protocol.pushes import push_of

from .codec import Codec
from .dial import Opened
from .faults import command_error
from .resp import (
    ASKING,
    RawPush,
    WireError,
    connection_error,
    invalid_reply,
    pack,
)
from .subscriptions import Subscribe, Subscriptions, Unsubscribe

logger = logging.getLogger("redsem_async")

CLOSING_TIME = 1.0  # seconds that closing may take


class _Asking:
    """The slot of an ASKING, which lets the next command in before its semaphore has arrived."""


class Connection(asyncio.Protocol):
    """A link to Redis. One reply for each slot, in order. Push messages take no slot."""

    def __init__(self, opened: Opened, listener: Listener) -> None:
        self.fresh_at: float | None = None
        self.writable: bool = True
        self.uncounted: bool = opened.met is not None and opened.met.uncounted
        self._listener = listener
        self._transport = opened.transport
        self._keep = opened.keep
        self._push = opened.no_push is None
        self._reader = opened.replies
        self._hub = listener.hub_id
        self._sharded = opened.sharded
        self._slots: deque[AnyOperation | Subscribe | Unsubscribe | _Asking] = deque()
        self._subscriptions = Subscriptions(self._hub, sharded=opened.sharded)
        self._codecs: WeakKeyDictionary[SemaphoreRef, Codec] = WeakKeyDictionary()
        self._tags = 0
        self._texts_sent: set[str] | None = None  # by digest, since the server lacked a script
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._transport.set_protocol(self)
        if opened.no_push is not None:
            listener.push_unavailable(connection_error(opened.no_push))
        if opened.received:
            self.data_received(opened.received)

    @property
    def open(self) -> bool:
        """Whether it is in use. Not where its event loop was closed with it."""
        return not (self._ending or self._closed.get_loop().is_closed())

    # -- writing

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        parts: list[bytes] = []
        hub, sent, sharded, slots = self._hub, self._texts_sent, self._sharded, self._slots
        subscriptions = self._subscriptions
        subscribed = subscriptions.known
        while subscriptions.unused:
            slot, packed = subscriptions.unsubscribe()
            slots.append(slot)
            parts.append(packed)
        for command in commands:
            command.sent_at = now
            semaphore = command.semaphore
            codec = self._codecs.get(semaphore)
            if codec is None:
                codec = self._codecs[semaphore] = Codec(semaphore.address)
            if semaphore.asking:
                parts.append(ASKING)
                slots.append(_Asking())
            elif self._push and (codec.shard if sharded else codec.prefix) not in subscribed:
                subscribe, packed = subscriptions.subscribe(semaphore, codec)
                slots.append(subscribe)
                parts.append(packed)
            slots.append(command)
            self._tags = command.tag = self._tags + 1
            script, arguments = codec.encode(command, command.tag, hub, sharded)
            if sent is None or script.sha in sent:
                parts.append(pack(("EVALSHA", script.sha, *arguments)))
            else:
                sent.add(script.sha)
                parts.append(pack(("EVAL", script.text, *arguments)))
        if parts:
            # A transport that cannot write all of it at once keeps the context until it has.
            Context().run(self._transport.write, b"".join(parts))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = not self._ending
        self._listener.resume_writing()

    # -- reading

    def data_received(self, data: bytes) -> None:
        try:
            for item in self._reader.feed(data):
                if self._ending:
                    return
                if isinstance(item, RawPush):
                    self._push_received(item)
                else:
                    self._reply_received(item)
        except WireError as error:
            self._fail(error)

    def _push_received(self, push: RawPush) -> None:
        slots, subscriptions = self._slots, self._subscriptions
        match push.kind, push.parts:
            case b"message" | b"smessage", [bytes() as channel, bytes() as text]:
                prefix = subscriptions.prefixes.get(channel)
                message = push_of(text)
                if prefix is not None and message is not None:
                    self._listener.push_received(prefix, message)
                else:
                    logger.debug("ignored a push message that is not understood")
            case b"subscribe" | b"ssubscribe", _:
                if slots and isinstance(slots[0], Subscribe):
                    slots.popleft()
            case b"unsubscribe", _:
                raise connection_error("the server ended the subscription")
            case b"sunsubscribe", [bytes() as channel, *_]:
                self._unsubscribed(name := subscriptions.name_of(channel))
                first = slots[0] if slots else None
                if isinstance(first, Unsubscribe) and first.name == name:
                    slots.popleft()
            case _:
                logger.debug("ignored a push message of a kind that is not known")

    def _unsubscribed(self, name: str) -> None:
        """Called after our own SUNSUBSCRIBE, and when the slot went to another node."""
        address = self._subscriptions.ended(name)
        if address is not None:
            self._listener.unsubscribed(address)

    def _reply_received(self, reply: Any) -> None:
        slot = self._slots.popleft() if self._slots else None
        if isinstance(slot, _Asking):
            return  # the reply to the command behind it says all there is to say
        if isinstance(slot, Unsubscribe) and isinstance(reply, Exception):
            return  # busy or denied, so messages of that channel are ignored
        if isinstance(slot, Subscribe) and isinstance(reply, Exception):
            self._not_subscribed(slot.name, reply)
            return
        if not isinstance(slot, Operation):
            raise invalid_reply("the server replied although no command was in flight")
        self.fresh_at = slot.sent_at
        if not isinstance(reply, Exception):
            decoded = self._codecs[slot.semaphore].reply_to(slot, reply)
            self._listener.reply_received(slot, decoded)
        else:
            self._error_received(slot, reply)

    def _error_received(self, command: AnyOperation, reply: Exception) -> None:
        if isinstance(reply, NoScriptError):
            self._texts_sent = set()
        error = command_error(reply)
        self._listener.reply_received(command, error)
        if error.kind is ErrorKind.READ_ONLY:
            self._fail(reply)

    def _not_subscribed(self, name: str, error: Exception) -> None:
        match command_error(error).kind:
            case ErrorKind.REFUSED:
                self._push = False
                self._listener.push_unavailable(error)
            case ErrorKind.MOVED | ErrorKind.ASK | ErrorKind.RETRY_LATER:
                self._unsubscribed(name)
            case _:
                self._fail(error)  # busy or loading, which does not deny the subscription

    # -- ending

    def eof_received(self) -> None:
        self._fail(connection_error("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._fail(exc or connection_error("the connection was closed"))

    def _fail(self, error: Exception) -> None:
        if not self._ending:
            self._end()
            self._transport.abort()
            self._listener.connection_lost(error)

    def _end(self) -> None:
        self._ending, self.writable = True, False

    def abort(self) -> None:
        self._end()
        self._transport.abort()

    async def close(self) -> None:
        self._end()
        self._transport.close()
        await asyncio.wait([self._closed], timeout=CLOSING_TIME)
        if not self._closed.done():
            self._transport.abort()
