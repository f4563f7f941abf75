"""Until when a permit may be trusted, and what a refresh outcome means.

These are rules only. Every one takes its instants as arguments, read from one monotonic clock of
this machine. They are never compared with an instant of the server's clock.
"""

import enum
from typing import NamedTuple

MAX_REPLY_TIMEOUT = 3.0  # seconds without a reply, before a connection counts as broken
CONNECT_TIMEOUT = 5.0  # seconds for one attempt to connect
UNKNOWN_HOLD = 1.0  # seconds to wait where no process has measured how long permits are held


def heartbeat_interval(lease: float) -> float:
    """How often a process with waiters sends a heartbeat, in seconds."""
    return min(max(lease / 3, 1.0), 10.0)


def liveness_timeout(lease: float) -> float:
    """For how long a silent process still counts as alive, in seconds."""
    interval = heartbeat_interval(lease)
    return max(3 * interval, lease + interval)


def refresh_is_overdue(left: float, lease: float, refresh_interval: float) -> bool:
    """Whether a permit with *left* seconds of its *lease* should have been refreshed long ago."""
    return left < 0.75 * (lease - refresh_interval)


def heartbeat_is_overdue(dead_in: float, lease: float) -> bool:
    """Whether a process with waiters that counts as alive for *dead_in* has missed two."""
    return dead_in < liveness_timeout(lease) - 2 * heartbeat_interval(lease)


def reply_timeout(lease: float) -> float:
    """For how long an answer may be missing before its connection counts as dead, in seconds.

    Bounded for long leases, because some callers wait without any other bound.
    """
    return min(max(1.0, lease / 3), 5.0)


def clock_margin(lease: float) -> float:
    """How much earlier trust ends than the lease, as clock rates differ and timers are late."""
    return 0.01 * lease + 0.005


class Outcome(enum.Enum):
    """How a refresh ended. A missing answer is not a no, so there are three outcomes."""

    RENEWED = enum.auto()
    GONE = enum.auto()
    UNKNOWN = enum.auto()


class Lost(NamedTuple):
    """The permit is not ours any more, or may not be."""

    reason: str


def trusted_until(lease: float, *, sent_at: float, left: float) -> float:
    """Until when to trust a permit with *left* seconds of its *lease* left, as the server said.

    It said so to what was sent at *sent_at*. Counted from sending, because the server started
    its own count no earlier.
    """
    return sent_at + left - clock_margin(lease)


def after_refresh(
    trusted: float, lease: float, outcome: Outcome, *, sent_at: float, now: float
) -> float | Lost:
    """Until when to trust a permit, trusted until *trusted*, after a refresh sent at *sent_at*."""
    if outcome is Outcome.GONE:
        return Lost("the server no longer holds it")
    if outcome is Outcome.RENEWED:
        trusted = max(trusted, trusted_until(lease, sent_at=sent_at, left=lease))
    return trusted if now < trusted else Lost("it could not be refreshed in time")


def ahead_in_turns(of_key: int, keys: int, limit: int) -> int:
    """How many requests are served before one with *of_key* of its key before it, by turns.

    *keys* share *limit*, so each request of its own key costs a round of all of them. In the last
    round, the keys that find no room next to each other come first.
    """
    return of_key * keys + max(0, keys - limit)


def retry_after(
    ahead: float, limit: int, usual_hold: float | None, next_change: float | None, lease: float
) -> float:
    """An estimate of when a request with *ahead* requests before it is served, in seconds.

    By Little's law, where the usual hold is known (*usual_hold*, in seconds times permits).
    Otherwise the next moment at which something changes by itself, if there is one, and
    `UNKNOWN_HOLD` at most. While no permit is given, a lease.
    """
    longest = lease
    if limit > 0:
        if usual_hold is not None:
            return (ahead + 1) * usual_hold / limit
        longest = min(lease, UNKNOWN_HOLD)
    return longest if next_change is None else min(max(next_change, 0.0), longest)
