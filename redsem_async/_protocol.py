"""What is said between a hub and where the semaphores are kept: calls, replies, messages.

The same for Redis and for memory. Durations in milliseconds cross this border; instants do not,
for they mean nothing on another machine's clock.
"""

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# Answers to an acquire or a heartbeat that are not a token or a Holding.
WAITING = 0
GONE = -1  # the number was used before, and what it stood for has ended
FULL = -2
QUEUE_FULL = -3

# Answers to an abandon.
NOTHING = 0
LEFT_LINE = 1
GAVE_BACK = 2


class Holding(NamedTuple):
    """A number that holds a permit already: what a repeated acquire is told."""

    token: int
    left_ms: int


Answer = int | Holding


class Request(NamedTuple):
    """One request for permits, by its number within the hub."""

    number: int
    lease_ms: int
    limit: int
    permits: int = 1
    waits: bool = True


class Introduction(NamedTuple):
    """Who a hub is, for people to read, and whether it can be told anything.

    *recovers*: it wants a grace period after a loss of state.
    """

    who: str
    deaf: bool = False
    recovers: bool = False


class Acquire(NamedTuple):
    """Ask for permits, with one answer for each number.

    Attributes:
        numbers: of the requests, in order; each is for one permit and waits, unless
        unusual: has it, with how many permits it is for and whether it waits.
        max_waiters: the longest line to join (fair); ``None`` for any.
        after: the highest number of the batch before this one, when that is unanswered: it must
            have run, or this one does nothing (fair).
        waits: how many requests of the hub wait beside these (zset).
        highest: the highest limit that the hub declares for them (zset).
        hinted: how many permits a hint told of (zset).
    """

    numbers: Sequence[int]
    lease_ms: int
    limit: int
    unusual: Mapping[int, tuple[int, bool]] = MappingProxyType({})
    max_waiters: int | None = None
    after: int = 0
    waits: int = 0
    highest: int = 0
    hinted: int = 0
    introduction: Introduction | None = None


class Release(NamedTuple):
    """Give permits back, by their numbers within the hub *owner*.

    *keep* of them are taken again by the caller, in the same write (zset).
    """

    owner: str
    numbers: Sequence[int]
    keep: int = 0


class Refresh(NamedTuple):
    """Renew permits of the caller's hub. *heavy*: how many, of those that are for several."""

    numbers: Sequence[int]
    lease_ms: int
    heavy: Mapping[int, int] = MappingProxyType({})


class Restore(NamedTuple):
    """Put permits back that the holder trusts and a refresh did not find: state was lost.

    *permits* are number, token and weight of each.
    """

    permits: Sequence[tuple[int, int, int]]
    lease_ms: int
    introduction: Introduction | None = None


class Confirm(NamedTuple):
    """Wait, for so long, until so many replicas have what was written on this link."""

    replicas: int
    timeout_ms: int


class Abandon(NamedTuple):
    """Leave the line, or give back what was granted unheard.

    *void*: calls with numbers up to this one may not act any more (see :class:`Adopt`).
    """

    requests: Sequence[Request]
    void: int = 0


class Heartbeat(NamedTuple):
    """Keep the hub alive and ask what became of its waiters.

    Attributes:
        lease_ms: the longest lease among the waiters.
        requests: the waiters to ask about (fair).
        limit: the highest that the caller declares (zset).
        waits: how many wait (zset).
        hinted: permits of a hint that nobody here wants (zset).
        number: of this call, in one order with those of requests: the latest counts (zset).
    """

    lease_ms: int
    requests: Sequence[Request] = ()
    limit: int = 0
    waits: int = 0
    hinted: int = 0
    introduction: Introduction | None = None
    number: int = 0


class Adopt(NamedTuple):
    """Exchange the id of a held permit for one of the caller's hub.

    This call, and the others with a field *call*, act once at most. The hub numbers them, in an
    order of their own, when it writes them. The server keeps the highest number that it carried
    out: a call that is not above it does nothing.
    """

    owner: str
    old: int
    new: int
    lease_ms: int
    introduction: Introduction | None = None
    call: int = 0


class Detach(NamedTuple):
    """Set the expiry of a held permit once."""

    number: int
    expires_ms: int
    call: int = 0


class Status(NamedTuple):
    """Read how things stand, with at most *most* holders and as many waiters."""

    most: int


class SetLimit(NamedTuple):
    """Set the limit that overrides every client's own, or take it away."""

    limit: int | None
    call: int = 0


class Reap(NamedTuple):
    """Drop expired holders and dead waiters."""


class Clear(NamedTuple):
    """Delete the semaphore."""

    call: int = 0


Call = (
    Acquire
    | Release
    | Refresh
    | Restore
    | Confirm
    | Abandon
    | Heartbeat
    | Adopt
    | Detach
    | Status
    | SetLimit
    | Reap
    | Clear
)


class Reply(NamedTuple):
    """What a call was answered.

    Attributes:
        answers: one for each request or number of the call.
        next_ms: in how many milliseconds something may change by itself; ``None`` for never.
        waiting: how long the line is: requests (fair), processes (zset).
        granted: number and token of waiters of the caller's hub that were served (fair).
        hinted: permits that the caller's own waiters may try for (zset).
        room: permits left (zset).
    """

    answers: Sequence[Answer] = ()
    next_ms: int | None = None
    waiting: int = 0
    granted: Sequence[tuple[int, int]] = ()
    hinted: int = 0
    room: int = 0


class Adopted(NamedTuple):
    """What an adopt was answered: the permit, or nothing when the old id holds none."""

    holding: Holding | None
    permits: int = 1


class HeldEntry(NamedTuple):
    """One holder."""

    id: str
    left_ms: int
    token: int
    permits: int


class LineEntry(NamedTuple):
    """One request in line (fair), or one process with *permits* requests waiting (zset)."""

    id: str
    ticket: int
    permits: int


class Standing(NamedTuple):
    """What a status was answered. Tokens and tickets tell ages: they follow the clock."""

    set_limit: int | None
    held: int
    waiting: int
    now_us: int
    holders: Sequence[HeldEntry] = ()
    line: Sequence[LineEntry] = ()
    hubs: Mapping[str, str] = MappingProxyType({})


Answered = Reply | Adopted | Standing


class Trouble(enum.Enum):
    """Why a call was not carried out."""

    AGAIN = enum.auto()  # nothing happened; the same call, sent once more, may pass at once
    BUSY = enum.auto()  # nothing happened; it may pass later
    DEMOTED = enum.auto()  # nothing happened; this is no server to write to any more
    MOVED = enum.auto()  # nothing happened; another node keeps the semaphore
    ASK = enum.auto()  # nothing happened; another node may have it already: to be asked once
    UNSETTLED = enum.auto()  # nothing happened; the semaphore is between two nodes, or nowhere
    MISMATCH = enum.auto()  # nothing happened: the name is in use in another mode or clock
    NO_MEMORY = enum.auto()  # nothing happened to an acquire, which begins with a write
    REFUSED = enum.auto()  # it may have happened in part; sending it again will not help


class Fault(NamedTuple):
    """A call that was not carried out, and the error that said so.

    *where* is host and port of the node that it names; no host means the same one.
    """

    trouble: Trouble
    error: Exception
    where: tuple[str, int] | None = None


class Granted(NamedTuple):
    """A message: waiters of this hub hold permits now."""

    name: str
    grants: Sequence[tuple[int, Holding]]


class Taken(NamedTuple):
    """A message: somebody else released or adopted permits of this hub."""

    name: str
    numbers: Sequence[int]


class Hint(NamedTuple):
    """A message: so many permits are free to try for."""

    name: str
    permits: int


class Cleared(NamedTuple):
    """A message: the semaphore was deleted."""

    name: str


Message = Granted | Taken | Hint | Cleared
