"""The options of a semaphore: validated once, by its constructor. Durations are in seconds."""

import math
from typing import Literal, NamedTuple

Clock = Literal["server", "local"]
Recovery = Literal["grace"]
HeartbeatBy = Literal["task", "thread"]

SHORTEST_LEASE = 0.05
LONGEST_LEASE = 1e9  # three decades: far below what an expiry in Redis can hold
MOST_BYTES = 512
MOST_PERMITS = 10**15  # exact where Redis counts them, in doubles
STALL_LEASES = 6  # the default of `longest_stall`


class Terms(NamedTuple):
    """The options that requests of one batch share.

    Attributes:
        lease: seconds for which a permit is held without a refresh.
        limit: the limit that this client declares.
        max_waiters: the longest queue that a request joins; ``None`` for any length.
        refresh_interval: seconds between two refreshes.
        lease_ms: the lease in milliseconds, for the server.
        min_replicas: how many replicas confirm a grant before the caller gets it.
        longest_stall: seconds for which a thread refreshes permits while the event loop is
            blocked; ``None`` for no thread.
        linger: seconds for which a lease that is not used is kept for the next caller.
    """

    lease: float
    limit: int
    max_waiters: int | None
    refresh_interval: float
    lease_ms: int
    min_replicas: int = 0
    longest_stall: float | None = None
    linger: float = 0.0


def whole(value: object, what: str, least: int) -> int:
    """Return *value*, an int of at least *least* that Redis can count. A bool is rejected."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    if value > MOST_PERMITS:
        raise ValueError(f"{what} must be at most {MOST_PERMITS}")
    return value


def seconds(value: object, what: str) -> float:
    """Return *value* as a float. NaN and bools are rejected."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value):
        raise ValueError(f"{what} must be a number of seconds, not NaN")
    return float(value)


def timeout_of(value: object) -> float | None:
    """Return a timeout in seconds; ``None`` waits for ever, and so does infinity."""
    if value is None:
        return None
    timeout = seconds(value, "timeout")
    if timeout < 0:
        raise ValueError(f"timeout must not be negative, and is {value}: use 0 to return at once")
    return None if math.isinf(timeout) else timeout


def permits_of(value: object, limit: int) -> int:
    """Return how many permits a request is for."""
    if value == 1 and type(value) is int:
        return value
    permits = whole(value, "permits", 1)
    if permits > limit > 0:
        raise ValueError(f"permits must be at most the limit of {limit}, not {permits}")
    return permits


def flag(value: object, what: str) -> bool:
    """Return *value*, a bool. Other values that are true or false are rejected."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


def text(value: object, what: str, most: int = MOST_BYTES) -> str:
    """Return *value*, text that may be a part of a key beside its hash tag."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that can be encoded as UTF-8") from None
    if not 0 < length <= most:
        raise ValueError(f"{what} must have 1 to {most} bytes, not {length}")
    if "{" in value or "}" in value:
        raise ValueError(f"{what} must not contain a brace: Redis Cluster reads it as a hash tag")
    return value


def terms_of(
    limit: object,
    lease: object,
    refresh_interval: object,
    max_waiters: object,
    min_replicas: object,
    linger: object,
) -> Terms:
    """Validate the options that requests depend on."""
    lease = seconds(lease, "lease")
    if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise ValueError(
            f"lease must be finite, at least {SHORTEST_LEASE} and at most {LONGEST_LEASE:.0f} s,"
            f" not {lease}"
        )
    interval = lease / 3
    if refresh_interval is not None:
        interval = seconds(refresh_interval, "refresh_interval")
        if not 0 < interval < lease:
            raise ValueError(
                f"refresh_interval must be above 0 and below the lease of {lease} s,"
                f" not {interval}"
            )
    kept = seconds(linger, "linger")
    if not 0 <= kept <= interval:
        raise ValueError(
            f"linger must be at least 0 and at most the refresh interval of {interval} s,"
            f" not {kept}"
        )
    return Terms(
        lease=lease,
        limit=whole(limit, "limit", 0),
        max_waiters=None if max_waiters is None else whole(max_waiters, "max_waiters", 0),
        refresh_interval=interval,
        lease_ms=math.ceil(1000 * lease),
        min_replicas=whole(min_replicas, "min_replicas", 0),
        linger=kept,
    )


def recovery_of(value: object) -> Recovery | None:
    """Return what to do after Redis lost state."""
    if value is None:
        return None
    if value == "grace":
        return "grace"
    raise ValueError(f"recovery must be None or 'grace', not {value!r}")


def longest_stall_of(heartbeat: object, longest_stall: object, lease: float) -> float | None:
    """Return for how long a thread refreshes for a blocked event loop; None for no thread."""
    if heartbeat not in ("task", "thread"):
        raise ValueError(f"heartbeat must be 'task' or 'thread', not {heartbeat!r}")
    if longest_stall is None:
        return STALL_LEASES * lease if heartbeat == "thread" else None
    most = seconds(longest_stall, "longest_stall")
    if heartbeat != "thread":
        raise ValueError("longest_stall requires heartbeat='thread'")
    if not lease <= most < math.inf:
        raise ValueError(
            f"longest_stall must be finite and at least the lease of {lease} s, not {most}"
        )
    return most


def clock_of(value: object) -> Clock:
    """Return the clock that leases are measured with."""
    match value:
        case "server":
            return "server"
        case "local":
            return "local"
        case _:
            raise ValueError(f"clock must be 'server' or 'local', not {value!r}")
