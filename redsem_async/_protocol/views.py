"""The dataclasses that ``status()`` returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from redsem_async._core.config import Slot
from redsem_async._core.lease import refresh_is_overdue
from redsem_async._core.rates import Rate


@dataclass(frozen=True, slots=True)
class Client:
    """A process that holds or waits, as it described itself.

    Attributes:
        id: an id of the process, which changes when the process was idle.
        label: the ``label`` of its semaphore, if it has one.
        host: its host name.
        pid: its process id there.
        limit: the limit that it declares.
        key_limit: the limit that it declares for each key. None without one, or for a function.
        version: the version of this library there. None if unknown.
        lease: seconds after which its permits expire unless it refreshes them.
        refresh_interval: seconds between two of its refreshes.
        rates: the rates that it declares, by name.
    """

    id: str
    label: str | None = None
    host: str | None = None
    pid: int | None = None
    limit: int | None = None
    key_limit: int | None = None
    version: str | None = None
    lease: float | None = None
    refresh_interval: float | None = None
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate], hash=False)


@dataclass(frozen=True, slots=True)
class Holder:
    """A held permit.

    Attributes:
        id: the permit's id.
        client: the process that holds it.
        age: seconds since it was granted, measured with the semaphore's clock.
        expires_in: seconds after which it expires unless it is refreshed.
        fencing_token: the permit's fencing token.
        permits: how many permits it stands for.
        key: the key that it counts against, if it has one.
        slots: its slots, if the semaphore has slots, from this client's list or else as text.
    """

    id: str
    client: Client
    age: float
    expires_in: float
    fencing_token: int
    permits: int
    key: str | None = None
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiting request.

    Attributes:
        id: the request's id, which becomes its permit's.
        client: the process that waits.
        position: its place in the queue. 0 is the head.
        age: seconds since it joined the queue, measured with the semaphore's clock.
        permits: how many permits it requests.
        key: the request's key, if it has one.
    """

    id: str
    client: Client
    position: int
    age: float
    permits: int
    key: str | None = None


class BackOff(NamedTuple):
    """A back-off that keeps the limit in force below the limit.

    Attributes:
        seconds_left: seconds of its pause that are left. 0 without a pause.
        limit: the limit in force now. 0 in a pause.
        age: seconds since it began, measured with the semaphore's clock. None if unknown. Each
            overload that cuts the limit in force restarts it.
        by: who began it, as ``"label@host:pid"`` or ``"host:pid"``. None if unknown.
    """

    seconds_left: float
    limit: int
    age: float | None = None
    by: str | None = None


class RateStatus(NamedTuple):
    """A rate, and how much of it is left.

    Attributes:
        amount, per, burst: as this client declares them.
        available: how much can be granted now. Negative for a debt.
        full_in: seconds until *burst* is available.
    """

    amount: float
    per: float
    burst: float
    available: float
    full_in: float


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """A key that holds permits, whose requests wait, or that has a back-off.

    Attributes:
        key: as it was given to ``acquire``.
        limit: the set limit of the key, or else this client's declared limit, or None.
        held: permits of the key in use.
        waiting: number of its waiting requests.
        set_limit: the limit that was set with ``set_limit(key=)``, if any.
        back_off: the key's back-off. None unless it keeps the limit in force below the limit.
        set_limit_age: seconds since that limit was set. None without one, or if unknown.
        set_limit_by: who set it, as in `SemaphoreStatus`. None without a set limit, or if unknown.
    """

    key: str
    limit: int | None
    held: int
    waiting: int
    set_limit: int | None
    back_off: BackOff | None = None
    set_limit_age: float | None = None
    set_limit_by: str | None = None


@dataclass(frozen=True, slots=True)
class SemaphoreStatus:
    """A semaphore at one moment.

    Attributes:
        name: the semaphore's name.
        limit: the set limit, or else this client's declared limit.
        held: permits in use.
        available: permits free under that limit, and under the limit in force of a back-off.
            Never negative.
        waiting: number of waiting requests.
        holders: held permits, the first to expire first.
        waiters: waiting requests, in the order of the queue.
        set_limit: the limit that was set with ``set_limit``, if any.
        retry_after: an estimate of the seconds until a new request would be granted. 0 when a
            permit is free and no rate is in debt. It is computed from the queue and from this
            process's recent hold times, or else those of other processes. With no hold times, a
            second is assumed. A back-off's pause is included, and a lower limit in force replaces
            the limit. While no process refreshes a permit, it is at least the time until the first
            one expires. A rate is included, as if the request cost what the listed waiters do on
            average, or nothing.
        keys: those with permits, waiting requests or a back-off. The ones with the most permits
            come first.
        back_off: the semaphore's back-off. None unless it keeps the limit in force below *limit*.
        set_limit_age: seconds since the limit was set, measured with the semaphore's clock. None
            without a set limit, or if unknown.
        set_limit_by: who set it, as ``"label@host:pid"`` or ``"host:pid"``. None without a set
            limit, or if unknown.
        usual_hold: seconds for which a permit is usually held, times permits. None if unknown.
        rates: the rates by name, sorted by name.
    """

    name: str
    limit: int
    held: int
    available: int
    waiting: int
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    set_limit: int | None = None
    retry_after: float = 0.0
    keys: tuple[KeyStatus, ...] = ()
    back_off: BackOff | None = None
    set_limit_age: float | None = None
    set_limit_by: str | None = None
    usual_hold: float | None = None
    rates: Mapping[str, RateStatus] = field(default_factory=dict[str, RateStatus])

    @property
    def oldest_wait(self) -> float | None:
        """The longest wait of the listed waiters. None without waiters.

        Requests of processes that have died are not among them.
        """
        return max((waiter.age for waiter in self.waiters), default=None)


def is_unrefreshed(holder: Holder) -> bool:
    """Whether the permit expires soon, because its process does not refresh it."""
    lease, interval = holder.client.lease, holder.client.refresh_interval
    if lease is None or interval is None:
        return False
    return refresh_is_overdue(holder.expires_in, lease, interval)


def in_force(limit: int, back_off: BackOff | None) -> int:
    """The limit in force."""
    return limit if back_off is None else min(limit, back_off.limit)
