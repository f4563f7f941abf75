"""What a store of semaphores replies to an operation."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# Answers to an acquire or a heartbeat that are not a token or a Holding.
WAITING = 0
GONE = -1  # the number was used before, and what it stood for has ended
FULL = -2
QUEUE_FULL = -3
WAITING_FOR_KEY = -4  # held up by the limit of its key
FULL_FOR_KEY = -5
QUEUE_FULL_FOR_KEY = -6


class Holding(NamedTuple):
    """The reply to a request that holds a permit already, because it was sent before."""

    token: int
    left_ms: int
    slots: Sequence[int] = ()


Answer = int | Holding


class Ramp(NamedTuple):
    """A back-off. For *lasts_ms* more *permits* may be in use, 0 while it pauses."""

    lasts_ms: int
    permits: int


class KeyQueue(NamedTuple):
    """The requests of one key that wait, the limit that is set for the key, and its back-off."""

    waiting: int
    set_limit: int | None
    ramp: Ramp | None = None


class Reply(NamedTuple):
    """The reply to most operations.

    Attributes:
        answers: one for each request or number of the call.
        next_ms: in how many milliseconds something may change by itself. ``None`` for never.
        waiting: how many requests are in the queue.
        set_limit: what replaces the limits of the callers, if it is set (acquire, heartbeat).
        hold_ms: for how long requests of all processes recently held their permits, times permits,
            if that is known and one of the caller has to wait (acquire, heartbeat).
        granted: number and token of waiters of the caller's hub that were served.
        slots: of each number of the caller's hub that the call granted, where permits have slots.
        key_queues: of each key whose request was not served (acquire, heartbeat).
        competing_keys: if there are any, how many keys wait for the overall limit.
        ramp: of the back-off that runs, if one does (acquire, heartbeat).
        forgotten: no limit is set, and nothing was known of the caller's hub (acquire, heartbeat).
    """

    answers: Sequence[Answer] = ()
    next_ms: int | None = None
    waiting: int = 0
    set_limit: int | None = None
    hold_ms: int | None = None
    granted: Sequence[tuple[int, int]] = ()
    slots: Mapping[int, Sequence[int]] = MappingProxyType({})
    key_queues: Mapping[str, KeyQueue] = MappingProxyType({})
    competing_keys: int = 0
    ramp: Ramp | None = None
    forgotten: bool = False


class AdoptReply(NamedTuple):
    """The reply to an adopt, with the permit, or nothing when the old id holds none.

    *held_ms* says how long ago it was granted, where the call has a ``max_hold_ms``. *key* is the
    key that it counts against, if it has one.
    """

    holding: Holding | None
    permits: int = 1
    held_ms: int = 0
    key: str | None = None


class HeldEntry(NamedTuple):
    """One holder."""

    id: str
    left_ms: int
    token: int
    permits: int
    key: str | None = None
    slots: Sequence[int] = ()


class QueueEntry(NamedTuple):
    """One request in the queue."""

    id: str
    ticket: int
    permits: int
    key: str | None = None


class KeyEntry(NamedTuple):
    """A key that holds, waits or backs off."""

    key: str
    held: int
    waiting: int
    set_limit: int | None
    ramp: Ramp | None = None


class StatusReply(NamedTuple):
    """The reply to a status. Tokens and tickets follow the clock, so they give ages.

    Attributes:
        hubs: what each hub that occurs reports of itself.
        keys: those that hold, wait or back off, in the order of their encoded texts.
        slots: the longest list that a client declared.
        blocked: whether a new request without a key waits behind others (fair).
        key_limits: of how many keys the limit is set.
        hold_ms, ramp: as in `Reply`.
    """

    set_limit: int | None
    held: int
    waiting: int
    now_us: int
    holders: Sequence[HeldEntry] = ()
    queue: Sequence[QueueEntry] = ()
    hubs: Mapping[str, str] = MappingProxyType({})
    keys: Sequence[KeyEntry] = ()
    slots: Sequence[str] = ()
    blocked: bool = False
    key_limits: int = 0
    hold_ms: int | None = None
    ramp: Ramp | None = None


AnyReply = Reply | AdoptReply | StatusReply
