"""The channels that one connection is subscribed to.

A server on its own, and a cluster without sharded pub/sub, has one channel for each prefix. In a
cluster with sharded pub/sub each semaphore has its own, for as long as this process uses it.
"""

import weakref
from collections import deque
from typing import NamedTuple

from redsem_async._core.keys import Address, channel
from redsem_async._protocol.operations import SemaphoreRef

from .codec import Codec
from .resp import pack


class Subscribe(NamedTuple):
    """The slot of a SUBSCRIBE or SSUBSCRIBE, which a push message confirms."""

    name: str


class Unsubscribe(NamedTuple):
    """The slot of a SUNSUBSCRIBE. A push message confirms it as well, or an error reply."""

    name: str


class Subscriptions:
    """Subscriptions by name, which is the prefix, or the shard's part of a semaphore's keys.

    Attributes:
        known: by name.
        prefixes: that push messages are for, by channel.
        unused: those of semaphores that this process no longer uses, to be ended.
    """

    def __init__(self, hub: str, *, sharded: bool) -> None:
        self._hub, self._of_hub = hub, channel("", hub)
        self._sharded = sharded
        self.known: dict[str, tuple[Address, weakref.ref[SemaphoreRef] | None]] = {}
        self.prefixes: dict[bytes, str] = {}
        self.unused: deque[str] = deque()

    def subscribe(self, semaphore: SemaphoreRef, codec: Codec) -> tuple[Subscribe, bytes]:
        """Return the slot and the bytes of a command that subscribes."""
        name = codec.shard if self._sharded else semaphore.address.prefix
        own, in_use = channel(name, self._hub), None
        command = pack(("SUBSCRIBE", own))
        if self._sharded:
            command = pack(("SSUBSCRIBE", own))
            unused = self.unused
            in_use = weakref.ref(semaphore, lambda _: unused.append(name))
        self.known[name] = semaphore.address, in_use
        self.prefixes[own.encode()] = semaphore.address.prefix
        return Subscribe(name), command

    def unsubscribe(self) -> tuple[Unsubscribe, bytes]:
        """Return the slot and the bytes of a command that ends the first unused subscription."""
        name = self.unused.popleft()
        own = channel(name, self._hub)
        self.known.pop(name, None)
        self.prefixes.pop(own.encode(), None)
        return Unsubscribe(name), pack(("SUNSUBSCRIBE", own))

    def ended(self, name: str) -> Address | None:
        """Forget a subscription. Return the semaphore's address, if it was known."""
        self.prefixes.pop(channel(name, self._hub).encode(), None)
        address, _ = self.known.pop(name, (None, None))
        return address

    def name_of(self, channel_name: bytes) -> str:
        """The name that a channel stands for."""
        return channel_name.decode(errors="replace").removesuffix(self._of_hub)
