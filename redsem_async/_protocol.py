"""What is said between a hub and where the semaphores are kept: calls, replies, messages.

The same for Redis and for memory. Durations in milliseconds cross this border; instants do not,
for they mean nothing on another machine's clock.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

# Answers to an acquire or a heartbeat that are not a token or a Holding.
WAITING = 0
GONE = -1  # the number was used before, and what it stood for has ended
FULL = -2
QUEUE_FULL = -3

# Answers to an abandon.
NOTHING = 0
LEFT_LINE = 1
GAVE_BACK = 2


@dataclass(frozen=True, slots=True)
class Holding:
    """A number that holds a permit already: what a repeated acquire is told."""

    token: int
    left_ms: int


Answer = int | Holding


@dataclass(frozen=True, slots=True)
class Request:
    """One request for permits, by its number within the hub."""

    number: int
    lease_ms: int
    limit: int
    permits: int = 1
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a hub is, for people to read, and whether it can be told anything."""

    who: str
    deaf: bool = False


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for permits, with one answer for each request.

    Attributes:
        requests: all with the same lease and limit.
        max_waiters: the longest line to join (fair); ``None`` for any.
        after: the highest number of the batch before this one, when that is unanswered: it must
            have run, or this one does nothing (fair).
        waits: how many requests of the hub wait beside these (zset).
        hinted: how many permits a hint told of (zset).
    """

    requests: Sequence[Request]
    max_waiters: int | None = None
    after: int = 0
    waits: int = 0
    hinted: int = 0
    introduction: Introduction | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give permits back, by their numbers within the hub *owner*.

    *keep* of them are taken again by the caller, in the same write (zset).
    """

    owner: str
    numbers: Sequence[int]
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Refresh:
    """Renew permits of the caller's hub. *heavy*: some are for more than one permit."""

    numbers: Sequence[int]
    lease_ms: int
    heavy: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """Leave the line, or give back what was granted unheard."""

    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Keep the hub alive and ask what became of its waiters.

    Attributes:
        lease_ms: the longest lease among the waiters.
        requests: the waiters to ask about (fair).
        limit: the caller's (zset).
        waits: how many wait (zset).
        hinted: permits of a hint that nobody here wants (zset).
    """

    lease_ms: int
    requests: Sequence[Request] = ()
    limit: int = 0
    waits: int = 0
    hinted: int = 0
    introduction: Introduction | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Exchange the id of a held permit for one of the caller's hub."""

    owner: str
    old: int
    new: int
    lease_ms: int
    introduction: Introduction | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    """Set the expiry of a held permit once."""

    number: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """Read how things stand, with at most *most* holders and as many waiters."""

    most: int


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set the limit that overrides every client's own, or take it away."""

    limit: int | None


@dataclass(frozen=True, slots=True)
class Reap:
    """Drop expired holders and dead waiters."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete the semaphore."""


Call = (
    Acquire
    | Release
    | Refresh
    | Abandon
    | Heartbeat
    | Adopt
    | Detach
    | Status
    | SetLimit
    | Reap
    | Clear
)


@dataclass(frozen=True, slots=True)
class Reply:
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


@dataclass(frozen=True, slots=True)
class Adopted:
    """What an adopt was answered: the permit, or nothing when the old id holds none."""

    holding: Holding | None
    permits: int = 1


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """One holder."""

    id: str
    left_ms: int
    token: int
    permits: int


@dataclass(frozen=True, slots=True)
class LineEntry:
    """One request in line (fair), or one process with *permits* requests waiting (zset)."""

    id: str
    ticket: int
    permits: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What a status was answered. Tokens and tickets tell ages: they follow the clock."""

    set_limit: int | None
    held: int
    waiting: int
    now_us: int
    holders: Sequence[HeldEntry] = ()
    line: Sequence[LineEntry] = ()
    hubs: dict[str, str] = field(default_factory=dict[str, str])


Answered = Reply | Adopted | Standing


class Trouble(enum.Enum):
    """Why a call was not carried out."""

    AGAIN = enum.auto()  # nothing happened; the same call, sent once more, may pass at once
    BUSY = enum.auto()  # nothing happened; it may pass later
    MOVED = enum.auto()  # nothing happened; this is no server to write to any more
    MISMATCH = enum.auto()  # the name is in use in another mode or with another clock
    REFUSED = enum.auto()  # it may have happened in part; sending it again will not help


@dataclass(frozen=True, slots=True)
class Fault:
    """A call that was not carried out, and the error that said so."""

    trouble: Trouble
    error: Exception


@dataclass(frozen=True, slots=True)
class Granted:
    """A message: waiters of this hub hold permits now."""

    name: str
    grants: Sequence[tuple[int, Holding]]


@dataclass(frozen=True, slots=True)
class Taken:
    """A message: somebody else released or adopted permits of this hub."""

    name: str
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Hint:
    """A message: so many permits are free to try for."""

    name: str
    permits: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """A message: the semaphore was deleted."""

    name: str


Message = Granted | Taken | Hint | Cleared
