"""What a semaphore is told when it is made: validated once, and in seconds ever after."""

import math
from typing import Literal, NamedTuple

Clock = Literal["server", "local"]
Recovery = Literal["grace"]
HeartbeatBy = Literal["task", "thread"]

SHORTEST_LEASE = 0.05
LONGEST_LEASE = 1e9  # three decades: far below what an expiry in Redis can hold
MOST_BYTES = 512
MOST_PERMITS = 10**15  # exact where Redis counts them, in doubles
STALL_LEASES = 6  # the longest stall, unless it is said


class Terms(NamedTuple):
    """What requests share that may travel in one batch.

    Attributes:
        lease: seconds for which a permit is held without a refresh.
        limit: the limit that this client declares.
        max_waiters: the longest line to join, or ``None`` for any.
        refresh_interval: seconds between two refreshes.
        lease_ms: the lease as the server counts it.
        min_replicas: that have to confirm a grant before it is handed out.
        longest_stall: seconds for which a thread keeps permits refreshed while the event loop is
            blocked; ``None`` for no thread.
    """

    lease: float
    limit: int
    max_waiters: int | None
    refresh_interval: float
    lease_ms: int
    min_replicas: int = 0
    longest_stall: float | None = None


def whole(value: object, what: str, least: int) -> int:
    """Return *value*, an int of at least *least* that Redis can count; a bool is no int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    if value > MOST_PERMITS:
        raise ValueError(f"{what} must be at most {MOST_PERMITS}")
    return value


def seconds(value: object, what: str) -> float:
    """Return *value* as a float that is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value):
        raise ValueError(f"{what} must be a number of seconds, not NaN")
    return float(value)


def timeout_of(value: object) -> float | None:
    """Return a timeout in seconds; ``None``, and infinity too, for waiting for ever."""
    if value is None:
        return None
    timeout = seconds(value, "timeout")
    if timeout < 0:
        raise ValueError(f"timeout must not be negative, not {value}: use 0 to not wait")
    return None if math.isinf(timeout) else timeout


def permits_of(value: object, limit: int) -> int:
    """Return how many permits a request is for."""
    if value == 1 and type(value) is int:
        return value
    permits = whole(value, "permits", 1)
    if permits > limit > 0:
        raise ValueError(f"permits must not be above the limit of {limit}, not {permits}")
    return permits


def flag(value: object, what: str) -> bool:
    """Return *value*, a bool and nothing that would count as one."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


def text(value: object, what: str, most: int = MOST_BYTES) -> str:
    """Return *value*, text that can stand in a key beside a hash tag."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can encode") from None
    if not 0 < length <= most:
        raise ValueError(f"{what} must have 1 to {most} bytes, not {length}")
    if "{" in value or "}" in value:
        raise ValueError(f"{what} must not have a brace: Redis Cluster reads it as a hash tag")
    return value


def terms_of(
    limit: object,
    lease: object,
    refresh_interval: object,
    max_waiters: object,
    min_replicas: object,
) -> Terms:
    """Validate what rules a semaphore's requests."""
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
    return Terms(
        lease=lease,
        limit=whole(limit, "limit", 0),
        max_waiters=None if max_waiters is None else whole(max_waiters, "max_waiters", 0),
        refresh_interval=interval,
        lease_ms=math.ceil(1000 * lease),
        min_replicas=whole(min_replicas, "min_replicas", 0),
    )


def recovery_of(value: object) -> Recovery | None:
    """Return what to do after a loss of state."""
    if value is None:
        return None
    if value == "grace":
        return "grace"
    raise ValueError(f"recovery must be None or 'grace', not {value!r}")


def longest_stall_of(heartbeat: object, longest_stall: object, lease: float) -> float | None:
    """Return for how long a thread stands in for a blocked event loop; None for no thread."""
    if heartbeat not in ("task", "thread"):
        raise ValueError(f"heartbeat must be 'task' or 'thread', not {heartbeat!r}")
    if longest_stall is None:
        return STALL_LEASES * lease if heartbeat == "thread" else None
    most = seconds(longest_stall, "longest_stall")
    if heartbeat != "thread":
        raise ValueError("longest_stall is of no use without heartbeat='thread'")
    if not lease <= most < math.inf:
        raise ValueError(
            f"longest_stall must be finite and at least the lease of {lease} s, not {most}"
        )
    return most


def clock_of(value: object) -> Clock:
    """Return which clock rules the leases."""
    match value:
        case "server":
            return "server"
        case "local":
            return "local"
        case _:
            raise ValueError(f"clock must be 'server' or 'local', not {value!r}")
