"""The one connection of a hub: replies in order, messages between them.

The protocol object is called by the event loop with what arrived and applies it at once, so
there is no reading task that could be late, cancelled or forgotten.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._backend import Letter, Listener
from ._dial import Opened
from ._keys import Address, channel
from ._protocol import Confirm, Fault, Reply, Trouble
from ._resp import Push, Reader, WireError, broken, misfit, pack, scripts_forgotten
from ._wire import Wire, fault_of, message

logger = logging.getLogger("redsem_async")

CLOSING_TIME = 1.0  # seconds that closing may take


_ASKING = pack(("ASKING",))


class _Ear(NamedTuple):
    """A subscription: for all semaphores of a prefix, or for one, for as long as it is in use."""

    address: Address
    in_use: object = None


class _Subscribe(NamedTuple):
    """The slot of a SUBSCRIBE or SSUBSCRIBE, whose confirmation is a push."""

    ear: str


class _Unsubscribe(NamedTuple):
    """The slot of a SUNSUBSCRIBE, whose confirmation is a push as well; or an error, as ever."""

    ear: str


class _Asking:
    """The slot of an ASKING, which lets the next letter in before its semaphore has arrived."""


class Connection(asyncio.Protocol):
    """A link to Redis. One reply for each slot, in order; pushes take no slot."""

    def __init__(self, opened: Opened, listener: Listener) -> None:
        self.fresh_at: float | None = None
        self._listener = listener
        self._transport = opened.transport
        self._keep = opened.keep
        self._hears = opened.deaf is None and listener.listens
        self._reader = Reader()
        self._hub = listener.hub_id
        self._sharded = opened.sharded
        self._slots: deque[Letter | _Subscribe | _Unsubscribe | _Asking] = deque()
        # Of what we hear: by prefix, or by semaphore where messages stay within a shard.
        self._ears: dict[str, _Ear] = {}
        self._deserted: deque[str] = deque()  # semaphores that nobody here uses any more
        self._loaded: set[str] = set()
        self._paused = False
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._transport.set_protocol(self)
        if listener.listens and opened.deaf is not None:
            listener.deafened(broken(opened.deaf))
        if opened.received:
            self.data_received(opened.received)

    # -- writing

    @property
    def writable(self) -> bool:
        return not (self._paused or self._ending)

    def send(self, letters: Sequence[Letter], now: float) -> None:
        parts: list[bytes] = []
        hub, loaded, sharded = self._hub, self._loaded, self._sharded
        while self._deserted:
            parts.append(self._unsubscribe(self._deserted.popleft()))
        for letter in letters:
            wire = letter.wire
            if wire.asking:
                parts.append(_ASKING)
                self._slots.append(_Asking())
            elif (
                self._hears and (wire.shard if sharded else wire.address.prefix) not in self._ears
            ):
                parts.append(self._subscribe(wire))
            letter.sent_at = now
            if isinstance(letter.call, Confirm):
                parts.append(pack(("WAIT", *letter.call)))
                self._slots.append(letter)
                continue
            script, arguments = wire.command(letter.call, letter.tag, hub, sharded)
            if script.sha in loaded:
                parts.append(pack(("EVALSHA", script.sha, *arguments)))
            else:
                # What this connection has not sent yet goes as text: that costs no extra trip,
                # and a server that lost its scripts says NOSCRIPT.
                loaded.add(script.sha)
                parts.append(pack(("EVAL", script.text, *arguments)))
            self._slots.append(letter)
        self._transport.write(b"".join(parts))

    def _subscribe(self, wire: Wire) -> bytes:
        if not self._sharded:
            prefix = wire.address.prefix
            self._ears[prefix] = _Ear(wire.address)
            self._slots.append(_Subscribe(prefix))
            return pack(("SUBSCRIBE", channel(prefix, self._hub)))
        shard, deserted = wire.shard, self._deserted
        in_use = weakref.ref(wire, lambda _: deserted.append(shard))
        self._ears[shard] = _Ear(wire.address, in_use)
        self._slots.append(_Subscribe(shard))
        return pack(("SSUBSCRIBE", channel(shard, self._hub)))

    def _unsubscribe(self, shard: str) -> bytes:
        self._ears.pop(shard, None)
        self._slots.append(_Unsubscribe(shard))
        return pack(("SUNSUBSCRIBE", channel(shard, self._hub)))

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
        match push.kind:
            case b"message" | b"smessage":
                heard_on, said = push.parts
                ear = self._ears.get(self._name_of(heard_on))
                told = message(said) if isinstance(said, bytes) else None
                if ear is not None and told is not None:
                    self._listener.told(ear.address.prefix, told)
                else:
                    logger.debug("ignored a message that says nothing known")
            case b"subscribe" | b"ssubscribe":
                if self._slots and isinstance(self._slots[0], _Subscribe):
                    self._slots.popleft()
            case b"unsubscribe":
                raise broken("the server ended the subscription")
            case b"sunsubscribe":
                self._unsubscribed(name := self._name_of(push.parts[0]))
                first = self._slots[0] if self._slots else None
                if isinstance(first, _Unsubscribe) and first.ear == name:
                    self._slots.popleft()
            case _:
                pass

    def _unsubscribed(self, name: str) -> None:
        """By our own wish, or because the slot went to another node, or is on its way."""
        ear = self._ears.pop(name, None)
        if ear is not None:
            self._listener.unsubscribed(ear.address)

    def _name_of(self, heard_on: Any) -> str:
        """Of the ear, whose channel is *heard_on*."""
        name = heard_on.decode(errors="replace") if isinstance(heard_on, bytes) else ""
        return name.removesuffix(channel("", self._hub))

    def _replied(self, reply: Any) -> None:
        slot = self._slots.popleft() if self._slots else None
        if isinstance(slot, _Asking):
            return  # what it was for is answered next, and says all there is to say
        if isinstance(slot, _Unsubscribe) and isinstance(reply, Exception):
            return  # busy, or denied: what is heard there is ignored
        if isinstance(slot, _Subscribe) and isinstance(reply, Exception):
            self._not_subscribed(slot.ear, reply)
            return
        if not isinstance(slot, Letter):
            raise misfit("the server replied to nothing that was asked")
        self.fresh_at = slot.sent_at
        if isinstance(reply, Exception):
            fault = fault_of(reply)
            if scripts_forgotten(reply):
                self._loaded.clear()
            self._listener.answered(slot, fault)
            if fault.trouble is Trouble.DEMOTED:
                self._fail(reply)
            return
        if isinstance(slot.call, Confirm):
            self._listener.answered(slot, _confirmed(slot.call, reply))
            return
        try:
            fits = reply[0] == b"%d" % slot.tag
            answer = slot.wire.reply(slot.call, reply) if fits else None
        except (TypeError, ValueError, IndexError) as error:
            raise misfit("the server's reply is none to that command") from error
        if answer is None:
            raise misfit("the server's reply belongs to another command")
        self._listener.answered(slot, answer)

    def _not_subscribed(self, ear: str, error: Exception) -> None:
        match fault_of(error).trouble:
            case Trouble.REFUSED:
                self._hears = False
                self._listener.deafened(error)
            case Trouble.MOVED | Trouble.ASK | Trouble.UNSETTLED:
                self._unsubscribed(ear)
            case _:
                self._fail(error)  # busy, or loading: nothing that says we may not hear

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


def _confirmed(call: Confirm, replicas: Any) -> Reply | Fault:
    if not isinstance(replicas, int):
        raise misfit("the server's reply is no number of replicas")
    if replicas >= call.replicas:
        return Reply([replicas])
    reason = f"{replicas} of {call.replicas} replicas confirmed it in {call.timeout_ms} ms"
    return Fault(Trouble.UNSETTLED, broken(reason))
