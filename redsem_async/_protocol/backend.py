"""Where semaphores are kept, as a hub uses it. A backend has nodes, and a node opens links."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Self

from redsem_async._core.keys import Address

from .errors import CommandError
from .operations import AnyOperation
from .pushes import Push
from .replies import AdoptReply, Reply
from .status import StatusReply

AnyReply = Reply | AdoptReply | StatusReply


class Listener(Protocol):
    """The user of a link. Called from the event loop, in the order of the wire."""

    @property
    def hub_id(self) -> str:
        """The id of its hub."""
        ...

    @property
    def semaphores(self) -> Iterable[Address]:
        """The addresses of those that its hub uses. None where it does not say."""
        ...

    def reply_received(self, command: AnyOperation, reply: AnyReply | CommandError) -> None:
        """The server replied to *command*, the oldest one in flight."""
        ...

    def push_received(self, prefix: str, push: Push) -> None:
        """A push message came."""
        ...

    def unsubscribed(self, address: Address) -> None:
        """No push messages of that semaphore will come, because another server keeps it."""
        ...

    def push_unavailable(self, error: Exception) -> None:
        """No push messages will come over this link. Commands pass all the same."""
        ...

    def resume_writing(self) -> None:
        """The link takes commands again."""
        ...

    def connection_lost(self, error: Exception) -> None:
        """The link broke. Commands in flight may or may not have arrived, and may yet."""
        ...


class Link(Protocol):
    """A connection. Commands are replied to one by one, in the order in which they were sent."""

    fresh_at: float | None
    """When the newest command that has its reply was sent. None before the first reply."""

    uncounted: bool
    """Whether scripts are told that no process receives the push messages that come over it."""

    @property
    def writable(self) -> bool:
        """Whether to send more now, so that what was sent does not pile up in this process."""
        ...

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        """Send *commands* in one write. Returns at once."""
        ...

    def abort(self) -> None:
        """Close the link at once, without calling the listener."""
        ...

    async def close(self) -> None:
        """Close the link in order, without calling the listener."""
        ...


class Node(Protocol):
    """One server, or memory."""

    @property
    def place(self) -> str:
        """How errors and log records name it, by host and port but never with credentials."""
        ...

    async def connect(self, listener: Listener) -> Link:
        """Open a link, in a bounded time.

        Raises `ConnectionRejected` if another attempt is of no use, unless a former one succeeded.
        """
        ...


class Backend(Protocol):
    """One node, or several that share the semaphores out."""

    @property
    def owner(self) -> object:
        """What backends that share a hub have in common, such as a pool of connections."""
        ...

    def node_for(self, address: Address) -> Node:
        """The node that keeps a semaphore, as far as is known."""
        ...

    def redirected(self, address: Address, error: CommandError, *, here: Node) -> Node | None:
        """The node that *error*, a reply of *here*, names. None where there is but one node."""
        ...

    async def explore(self, *, but: Node) -> None:
        """Ask, within a bounded time, the nodes except *but* which of them keeps what."""
        ...

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call *callback*, in whichever thread, after the user has closed the owner.

        It is a method, whose object is held by weak reference.
        """
        ...


class OneNode:
    """A backend that is its own and only node."""

    @property
    def owner(self) -> object:
        """Itself."""
        return self

    def node_for(self, address: Address) -> Self:
        """Itself."""
        return self

    def redirected(self, address: Address, error: CommandError, *, here: Node) -> None:
        """Nowhere."""

    async def explore(self, *, but: Node) -> None:
        """Nothing to find out."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Nothing closes it."""


class ConnectionRejected(Exception):
    """Another attempt is of no use, say because the server rejects this client.

    Its text continues a sentence that begins with the server. ``__cause__`` is an error of that.
    """
