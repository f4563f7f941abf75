"""The operations that a hub asks of a store of semaphores, which is Redis or memory.

Durations are in milliseconds. No operation carries an instant, because an instant means nothing
on another machine's clock.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from .hub_info import HubInfo


class KeyTerms(NamedTuple):
    """The key of a request, and what its client declares for that key.

    Attributes:
        limit: of the key. ``None`` for none.
        weight: of the key, where keys share the overall limit.
        patience_ms: after how long the request goes by its ticket there.
    """

    key: str
    limit: int | None = None
    weight: float = 1.0
    patience_ms: int = 0


class RequestOptions(NamedTuple):
    """Options of a request that differ from the defaults.

    Attributes:
        permits: more than one.
        waits: False for one that is refused where it would have to wait.
        ahead_ms: for how much longer than in truth it counts as waiting.
        again: it has waited before, so that `max_waiters` does not refuse it.
    """

    permits: int = 1
    waits: bool = True
    ahead_ms: int = 0
    key: KeyTerms | None = None
    again: bool = False


DEFAULT_OPTIONS = RequestOptions()


class Request(NamedTuple):
    """One request for permits, by its number within the hub."""

    number: int
    lease_ms: int
    limit: int
    permits: int = 1
    waits: bool = True
    ahead_ms: int = 0
    key: KeyTerms | None = None
    again: bool = False


class Acquire(NamedTuple):
    """Ask for permits, with one answer for each number.

    Attributes:
        numbers: of the requests, in order. Each is for one permit and waits, as far as *options*
            does not say what else it asks for.
        max_waiters: the longest queue to join. ``None`` for any.
        max_waiters_per_key: the longest queue of its key that a request joins.
        after: the highest number of the batch before this one, when that is unanswered. It must
            have run, or this one does nothing.
        slots: what permits stand for. None for nothing.
    """

    numbers: Sequence[int]
    lease_ms: int
    limit: int
    options: Mapping[int, RequestOptions] = MappingProxyType({})
    max_waiters: int | None = None
    max_waiters_per_key: int | None = None
    after: int = 0
    hub_info: HubInfo | None = None
    slots: Sequence[str | int] | None = None


class Release(NamedTuple):
    """Release permits.

    Attributes:
        owner: the hub that drew the ids.
        numbers: of the ids.
        hold_ms: for how long requests of the caller's process recently held their permits, times
            permits. Most do not say it.
        waits: a request of the caller's hub waits, or may, so the reply describes the queue.
        own: the oldest of those, as many as numbers at most. They may come before older ones of
            other hubs, if those have not waited for long (zset).
    """

    owner: str
    numbers: Sequence[int]
    hold_ms: int | None = None
    waits: bool = False
    own: Sequence[Request] = ()


class Refresh(NamedTuple):
    """Refresh permits of the caller's hub.

    Attributes:
        heavy: how many permits, of those that are for several.
        max_hold_ms: for how long they may be held, since their grants. ``None`` for any time. Each
            answer is then how much of it is left.
    """

    numbers: Sequence[int]
    lease_ms: int
    heavy: Mapping[int, int] = MappingProxyType({})
    max_hold_ms: int | None = None


class Abandon(NamedTuple):
    """Leave the queue, or release what was granted unheard.

    No adoption or detach with a number up to *void* acts any more, and no change with one up to
    *void_change* (see ``SetLimit``).
    """

    requests: Sequence[Request]
    void: int = 0
    void_change: int = 0


class Heartbeat(NamedTuple):
    """Keep the hub alive and ask about the state of its waiters.

    Attributes:
        lease_ms: the longest lease among the waiters.
        requests: the waiters to ask about.
    """

    lease_ms: int
    requests: Sequence[Request] = ()
    hub_info: HubInfo | None = None


class Adopt(NamedTuple):
    """Exchange the id of a held permit for one of the caller's hub.

    *max_hold_ms* says for how long it may be held, since its grant (``None`` for any time).
    *slots* is what permits stand for, as in ``Acquire``.

    The hub numbers this call and ``Detach`` each time it writes them. The server keeps the highest
    number that it carried out, and a call whose number is not above it does nothing.
    """

    owner: str
    old: int
    new: int
    lease_ms: int
    hub_info: HubInfo | None = None
    call: int = 0
    max_hold_ms: int | None = None
    slots: Sequence[str | int] | None = None


class Detach(NamedTuple):
    """Set the expiry of a held permit once. *max_hold_ms* is as in ``Refresh``."""

    number: int
    expires_ms: int
    call: int = 0
    max_hold_ms: int | None = None


class Status(NamedTuple):
    """Read how things stand, with at most *max_entries* holders, waiters and keys each.

    *after* is the key after which keys are listed.
    """

    max_entries: int
    after: str | None = None


class SetLimit(NamedTuple):
    """Set the limit that overrides every client's own, or end it. For all, or for *key*.

    A pause sets 0, and resuming restores the set limit from before the pause.

    This call, ``BackOff`` and ``Delete`` act once at most. They are numbered as calls are
    for ``Adopt``, and the server keeps their highest number apart from that.
    """

    limit: int | Literal["pause", "resume"] | None
    call: int = 0
    key: str | None = None


class BackOff(NamedTuple):
    """Grant nothing for some time, and then up to a ramp. To all, or to requests of *key*.

    Attributes:
        pause_ms: from now on. 0 ends a back-off.
        token: of the permit that met the overload. None for an overload that is new in any case.
    """

    pause_ms: int
    token: int | None = None
    call: int = 0
    key: str | None = None


class Reap(NamedTuple):
    """Drop expired holders and dead waiters."""


class Delete(NamedTuple):
    """Delete the semaphore."""

    call: int = 0


Operation = (
    Acquire
    | Release
    | Refresh
    | Abandon
    | Heartbeat
    | Adopt
    | Detach
    | Status
    | SetLimit
    | BackOff
    | Reap
    | Delete
)
