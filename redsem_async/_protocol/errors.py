"""Why a store of semaphores did not carry out a command."""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class ErrorKind(enum.Enum):
    """What an error reply means for the command that got it.

    All but the last say that the command changed nothing.
    """

    RETRY_NOW = enum.auto()  # the same command may succeed at once
    BUSY = enum.auto()  # the server may carry it out later
    READ_ONLY = enum.auto()  # the server is not a primary any more
    MOVED = enum.auto()  # another node keeps the semaphore
    ASK = enum.auto()  # another node may have it already, and this command is to be sent there
    RETRY_LATER = enum.auto()  # the semaphore is between two nodes, or no node keeps it now
    MODE_MISMATCH = enum.auto()  # the name is in use in another mode or by another clock
    LAYOUT_MISMATCH = enum.auto()  # the name is in use in another layout of the keys
    SLOTS_MISMATCH = enum.auto()  # the name is in use with other slots
    NO_MEMORY = enum.auto()  # of an acquire, which begins with a write
    REFUSED = enum.auto()  # it may be carried out in part, and sending it again is no help


class NameUse(NamedTuple):
    """How a name that is in use in another mode or by another clock is used.

    Attributes:
        kind: mode and clock in use.
        held: whether permits are held.
        unused: whether no permit is held and no process waits or has asked recently.
        free_in: seconds until the name is free unless it is used again. None when unknown.
    """

    kind: str
    held: bool
    unused: bool
    free_in: float | None


class LayoutUse(NamedTuple):
    """A name that is in use in another layout of the keys.

    Attributes:
        found: the number of that layout. 0 for one that has none.
        own: the number of the caller's layout.
        versions: what the processes that use the name report.
        free_in: as in `NameUse`.
    """

    found: int
    own: int
    versions: tuple[str, ...]
    free_in: float | None


class CommandError(NamedTuple):
    """An error reply.

    Attributes:
        kind: what it means.
        error: the error itself.
        endpoint: host and port of the node that MOVED or ASK names. An empty host means the
            host that replied.
        use: how the name is used, where the kind is MODE_MISMATCH.
        layout: how the name is used, where the kind is LAYOUT_MISMATCH.
        slots: that are in use, where the kind is SLOTS_MISMATCH.
    """

    kind: ErrorKind
    error: Exception
    endpoint: tuple[str, int] | None = None
    use: NameUse | None = None
    layout: LayoutUse | None = None
    slots: Sequence[str] = ()
