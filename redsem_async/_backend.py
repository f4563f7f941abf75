"""What a hub needs of the place where semaphores are kept: a link to say things over."""

from collections.abc import Sequence
from typing import Protocol, Self

from ._keys import Address
from ._protocol import Answered, Call, Fault, Message
from ._wire import Wire


class Letter:
    """A call on its way: on which semaphore's wire, under which tag, and when last sent."""

    __slots__ = ("call", "sent_at", "tag", "wire")

    def __init__(self, wire: Wire, call: Call, tag: int) -> None:
        self.wire: Wire = wire
        self.call: Call = call
        self.tag: int = tag
        self.sent_at: float = 0.0


class Listener(Protocol):
    """Whoever uses a link. Called from the event loop, in the order of the wire."""

    listens: bool
    """Whether messages are for it.

    Not where it is a second one of the same hub, in an event loop of its own: its link shares
    nothing that belongs to the client's loop.
    """

    @property
    def hub_id(self) -> str:
        """Who the server knows the listener as."""
        ...

    def answered(self, letter: Letter, answer: Answered | Fault) -> None:
        """The oldest unanswered letter was answered."""
        ...

    def told(self, prefix: str, message: Message) -> None:
        """A message came."""
        ...

    def unsubscribed(self, address: Address) -> None:
        """No messages will come of that semaphore: another server keeps it."""
        ...

    def deafened(self, error: Exception) -> None:
        """No messages will come over this link; letters pass all the same."""
        ...

    def writable_again(self) -> None:
        """The link takes letters again."""
        ...

    def link_lost(self, error: Exception) -> None:
        """The link broke. Unanswered letters may or may not have arrived, and may still."""
        ...


class Link(Protocol):
    """Letters are answered one by one, in the order in which they were sent."""

    fresh_at: float | None
    """When the newest answered letter was sent; None before the first answer."""

    @property
    def writable(self) -> bool:
        """Whether more may be sent now: what was sent before does not pile up here."""
        ...

    def send(self, letters: Sequence[Letter], now: float) -> None:
        """Send *letters* in one write. Returns at once."""
        ...

    def abort(self) -> None:
        """Close the link at once, without a word to the listener."""
        ...

    async def close(self) -> None:
        """Close the link in order, without a word to the listener."""
        ...


class Node(Protocol):
    """One server, or memory."""

    @property
    def place(self) -> str:
        """What to call it in an error: host and port, never credentials."""
        ...

    async def connect(self, listener: Listener) -> Link:
        """Open a link for *listener*. Raises :class:`Refused` where trying again will not help."""
        ...


class Backend(Protocol):
    """Where semaphores are kept: one node, or several that share them out."""

    def node_for(self, address: Address) -> Node:
        """The node that keeps a semaphore, as far as is known."""
        ...

    def redirected(self, address: Address, fault: Fault, *, here: Node) -> Node | None:
        """The node that *fault*, of *here*, names; ``None`` where there is but one node."""
        ...

    async def explore(self, *, but: Node) -> None:
        """Find out, within a bounded time, which node keeps what; *but* cannot be asked."""
        ...


class OneNode:
    """A backend that is its own and only node."""

    def node_for(self, address: Address) -> Self:
        """Itself."""
        return self

    def redirected(self, address: Address, fault: Fault, *, here: Node) -> None:
        """Nowhere."""

    async def explore(self, *, but: Node) -> None:
        """Nothing to find out."""


class Refused(Exception):
    """The backend turned us away; ``__cause__`` says why."""
