"""Options and other arguments, validated. Durations are in seconds.

A new option of semaphores has its type in `Options`, and its default and check in `Terms`. Its
meaning for users is in the constructor of `AnySemaphore`.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, TypedDict, cast

from .lease import clock_margin
from .rates import Cost, Rate, costs_of, in_queue, rates_of

Clock = Literal["server", "local"]
"""Whose clock measures leases. The server's, or the clients' own."""
Slot = str | int
"""What one of the ``slots`` is."""

KeyLimit = int | Callable[[str], int | None] | None
"""A limit for every key, or a function of the key. None is no limit."""
Weight = float | Callable[[str], float]
"""A weight for every key, or a function of the key."""

SHORTEST_LEASE = 0.05
LONGEST_LEASE = 1e9  # three decades, far below what an expiry in Redis can hold
MOST_BYTES = 512
MOST_PERMITS = 10**15  # exact where Redis counts them, in doubles
MOST_AHEAD = 3600  # seconds
MOST_SLOTS = 500  # because a script reads them all
LONGEST_BACK_OFF = 86_400.0  # seconds
LONGEST_LABEL = 100  # characters of one that nobody chose
LEAST_WEIGHT = 1e-6  # of a key, because a script writes six decimals
TOLERANCE = 1e-9  # how far arithmetic may put a duration beyond a bound (relative, and seconds)


class Options(TypedDict, total=False):
    """The keyword options of every semaphore class. `AnySemaphore` says what they mean."""

    lease: float
    refresh_interval: float | None
    timeout: float | None
    max_waiters: int | None
    clock: Clock
    prefix: str
    label: str | None
    cancel_on_loss: bool
    slots: Sequence[Slot] | None
    max_hold: float | None
    max_back_off: float


class GroupOptions(Options, total=False):
    """The keyword options of a group of semaphores."""

    rate: Rate | Mapping[str, Rate] | None


class FairOptions(GroupOptions, total=False):
    """The keyword options of `FairSemaphore`."""

    key_limit: KeyLimit
    share: bool
    weight: Weight
    patience: float | None
    max_waiters_per_key: int | None


class Terms:
    """The options of a semaphore, each validated and with its default.

    Requests with equal terms travel in one batch, so *timeout* and the like don't count there.

    Attributes:
        keyed: whether requests may have a key.
        lease_ms: the lease in milliseconds, for the server (max_hold_ms likewise).
        margin: seconds by which trust ends earlier than the lease.
        patience_ms: the patience of a request with a key, for the server. 0 without *share*.
    """

    def __init__(
        self,
        limit: int | None,
        *,
        lease: float = 10.0,
        refresh_interval: float | None = None,
        timeout: float | None = None,
        max_waiters: int | None = None,
        clock: Clock = "server",
        prefix: str = "redsem",
        label: str | None = None,
        cancel_on_loss: bool = True,
        slots: Sequence[Slot] | None = None,
        max_hold: float | None = None,
        max_back_off: float = 60.0,
        key_limit: KeyLimit = None,
        share: bool = False,
        weight: Weight = 1.0,
        patience: float | None = None,
        max_waiters_per_key: int | None = None,
        rate: Rate | Mapping[str, Rate] | None = None,
    ) -> None:
        self.slots: tuple[Slot, ...] | None = None if slots is None else slots_of(slots)
        if self.slots is not None and limit is not None:
            raise TypeError("give limit or slots, not both: the limit is the number of slots")
        self.limit: int = whole(limit if self.slots is None else len(self.slots), "limit", 0)
        bounds = f"finite, at least {SHORTEST_LEASE} and at most {LONGEST_LEASE:.0f} s"
        self.lease: float = bounded(lease, "lease", SHORTEST_LEASE, LONGEST_LEASE, bounds)
        self.lease_ms: int = math.ceil(1000 * self.lease)
        self.margin: float = clock_margin(self.lease)
        self.refresh_interval: float = refresh_interval_of(refresh_interval, self.lease)
        self.timeout: float | None = timeout_of(timeout)
        self.max_waiters: int | None = limit_or_none(max_waiters, "max_waiters")
        if clock not in ("server", "local"):
            raise ValueError(f"clock must be 'server' or 'local', not {clock!r}")
        self.clock: Clock = clock
        self.prefix: str = text(prefix, "prefix")
        self.label: str | None = None if label is None else text(label, "label")
        self.cancel_on_loss: bool = flag(cancel_on_loss, "cancel_on_loss")
        self.max_hold: float | None = max_hold_of(max_hold, self.lease)
        self.max_hold_ms: int | None = None
        if self.max_hold is not None:
            self.max_hold_ms = math.ceil(1000 * self.max_hold)
        self.max_back_off: float = duration_of(max_back_off, "max_back_off", LONGEST_LEASE)
        self._take_keys(key_limit, share, weight, patience, max_waiters_per_key)
        self.rates: Mapping[str, Rate] = rates_of(rate)
        if self.rates and clock == "local":
            raise ValueError("rate needs clock='server': the clocks of clients differ")

    def _take_keys(
        self,
        key_limit: KeyLimit,
        share: bool,  # noqa: FBT001 - options, in their order
        weight: Weight,
        patience: float | None,
        max_waiters_per_key: int | None,
    ) -> None:
        """The options of requests with keys."""
        self.share: bool = flag(share, "share")
        self.keyed: bool = self.share or key_limit is not None
        self.key_limit: KeyLimit = key_limit
        if callable(key_limit):
            check_function(key_limit, "key_limit")
        else:
            limit_or_none(key_limit, "key_limit")
        if callable(weight):
            check_function(weight, "weight")
        self.weight: Weight = weight if callable(weight) else weight_of(weight)
        if (weight != 1.0 or patience is not None) and not self.share:
            raise ValueError("weight and patience need share=True")
        if patience is None:  # longer than a queue usually is old, because it switches share off
            patience = min(self.timeout or 6 * self.lease, LONGEST_LEASE)
        patience = bounded(patience, "patience", 0.0, LONGEST_LEASE, "at least 0 and finite")
        self.patience_ms: int = math.ceil(1000 * patience) if self.share else 0
        most = limit_or_none(max_waiters_per_key, "max_waiters_per_key")
        if most is not None and not self.keyed:
            raise ValueError("max_waiters_per_key needs key_limit or share=True")
        self.max_waiters_per_key: int | None = most

    def costs(self, cost: Cost | None) -> str:
        """What a request costs, as the queue has it. '' where there are no rates."""
        if not self.rates and cost is None:
            return ""
        return in_queue(self.rates, costs_of(self.rates, cost))

    def checked_key(self, key: str) -> str:
        """*key*, where requests may have it."""
        if not self.keyed:
            raise ValueError("key= needs a FairSemaphore with key_limit= or share=True")
        return key_of(key)

    def declared_limit(self, key: str) -> int | None:
        """The limit that this client declares for *key*."""
        limit = self.key_limit
        try:
            return limit(key) if callable(limit) else limit
        except LookupError:  # of a key that others use, and this client does not know
            return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Terms) and _of_batch(self) == _of_batch(other)

    __hash__ = None  # type: ignore[assignment]


_of_batch = attrgetter(
    "limit", "lease", "refresh_interval", "max_waiters", "max_waiters_per_key", "max_hold", "slots"
)


def whole(value: object, what: str, least: int) -> int:
    """Return *value*, an int of at least *least* that Redis can count. A bool is rejected."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")
    if value > MOST_PERMITS:
        raise ValueError(f"{what} must be at most {MOST_PERMITS}")
    return value


def limit_or_none(value: object, what: str) -> int | None:
    return None if value is None else whole(value, what, 0)


def seconds(value: object, what: str) -> float:
    """Return *value* as a float. NaN and bools are rejected."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value):
        raise ValueError(f"{what} must be a number of seconds, not NaN")
    return float(value)


def bounded(value: object, what: str, least: float, most: float, bounds: str) -> float:
    """Return a duration in seconds, from *least* to *most*.

    A value that only float rounding puts beyond a bound counts as the bound, so ``0.2`` is
    allowed where ``0.6 / 3`` is the most. *bounds* says in the error what is allowed.
    """
    given = seconds(value, what)
    nearest = min(max(given, least), most)
    if not math.isclose(given, nearest, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        raise ValueError(f"{what} must be {bounds}, not {shown(given)}")
    return nearest


def refresh_interval_of(value: object, lease: float) -> float:
    """Return how many seconds are between two refreshes: a third of the *lease* by default."""
    if value is None:
        return lease / 3
    given = seconds(value, "refresh_interval")
    if not 0 < given < lease:
        bounds = f"above 0 and below the lease of {shown(lease)} s"
        raise ValueError(f"refresh_interval must be {bounds}, not {shown(given)}")
    return given


def max_hold_of(value: object, lease: float) -> float | None:
    """Return for how many seconds a permit may be held. None for ever."""
    bounds = f"at least the lease of {shown(lease)} s and at most {LONGEST_LEASE:.0f} s"
    return None if value is None else bounded(value, "max_hold", lease, LONGEST_LEASE, bounds)


def shown(duration: float) -> str:
    """*duration* for a message. It is not rounded so far that it would be allowed."""
    return f"{duration:.10g}"


def timeout_of(value: object) -> float | None:
    """Return a timeout in seconds. ``None`` and infinity both wait forever."""
    if value is None:
        return None
    timeout = seconds(value, "timeout")
    if timeout < 0:
        raise ValueError(f"timeout must be 0 or more (0: don't wait), not {value}")
    return None if math.isinf(timeout) else timeout


def check_function(value: object, what: str) -> None:
    """Raise TypeError unless *value* can be called, and gives its result without ``await``."""
    if not callable(value):
        raise TypeError(f"{what} must be a function, not {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise TypeError(f"{what} must be a function, not a coroutine function")


def key_of(value: object) -> str:
    """Return a key, which may be any string that is not too long."""
    return encodable(value, "key")


def slots_of(value: object) -> tuple[Slot, ...]:
    """Return slots, each once. A set is refused, as its order differs between processes."""
    if isinstance(value, str | bytes | set | frozenset) or not isinstance(value, Iterable):
        raise TypeError(f"slots must be a list of strings or ints, not {value!r}")
    slots = tuple(cast("Iterable[object]", value))
    if not 0 < len(slots) <= MOST_SLOTS:
        raise ValueError(f"slots must be 1 to {MOST_SLOTS} strings or ints, not {len(slots)}")
    checked: dict[str, Slot] = {}
    for slot in slots:
        if isinstance(slot, bool) or not isinstance(slot, str | int):
            raise TypeError(f"a slot must be a str or an int, not {type(slot).__name__}")
        name = encodable(str(slot), "a slot")
        if name in checked:
            raise ValueError(f"duplicate slot {slot!r}")
        checked[name] = slot
    return tuple(checked.values())


def weight_of(value: object) -> float:
    """Return the weight of a key, within the bounds of what a script counts."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"weight must be a number, not {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"weight must be finite and above 0, not {value}")
    return float(min(max(value, LEAST_WEIGHT), 1 / LEAST_WEIGHT))


def duration_of(value: object, what: str, most: float) -> float:
    """Return a duration in seconds, from 0 to *most*."""
    return bounded(value, what, 0.0, most, f"at least 0 and at most {most:.0f} s")


def expires_in_of(value: object) -> float:
    """Return for how many seconds a detached permit is kept."""
    bounds = f"finite and at least {SHORTEST_LEASE} s"
    return bounded(value, "expires_in", SHORTEST_LEASE, LONGEST_LEASE, bounds)


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
    """Return *value*, a string that may be a part of a key next to its hash tag."""
    checked = encodable(value, what, most)
    if "{" in checked or "}" in checked:
        raise ValueError(f"{what} must not contain a brace: Redis Cluster reads it as a hash tag")
    return checked


def label_of(given: str) -> str:
    """What a label can have of *given*, which is any string. '' for nothing."""
    return "".join(c for c in given if c.isprintable() and c not in "{}")[:LONGEST_LABEL]


def encodable(value: object, what: str, most: int = MOST_BYTES) -> str:
    """Return *value*, a string that is not too long."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that can be encoded as UTF-8") from None
    if not 0 < length <= most:
        raise ValueError(f"{what} must have 1 to {most} bytes, not {length}")
    return value
