"""The dataclasses that ``status()`` returns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redsem_async._core.config import MOST_PERMITS, Slot, Terms
from redsem_async._core.lease import retry_after
from redsem_async._protocol.hub_info import facts_of
from redsem_async._protocol.replies import Ramp, StatusReply


@dataclass(frozen=True, slots=True)
class Client:
    """A process that holds or waits, as it described itself.

    Attributes:
        id: of the process's hub, which is new after the process was idle.
        label: the ``label`` of its semaphore, if it has one.
        host: its host name.
        pid: its process id there.
        limit: the limit that it declares.
        key_limit: the limit that it declares for each key. None without one, or for a function.
        version: the version of this library there. None if unknown.
        lease: seconds after which its permits expire unless it refreshes them.
        refresh_interval: seconds between two of its refreshes.
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
    """A back-off in progress.

    Attributes:
        seconds_left: seconds until permits are granted again. 0 once grants ramp up.
        ramp: how many permits may be in use now, first 0, then 1, 2, 4 and so on.
    """

    seconds_left: float
    ramp: int


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """A key that holds permits, whose requests wait, or to which a back-off grants nothing.

    Attributes:
        key: as it was given to ``acquire``.
        limit: the set limit of the key, or else this client's declared limit, or None.
        held: permits of the key in use.
        waiting: number of its waiting requests.
        set_limit: the limit that was set with ``set_limit(key=)``, if any.
        back_off: the key's back-off, if one is in progress.
    """

    key: str
    limit: int | None
    held: int
    waiting: int
    set_limit: int | None
    back_off: BackOff | None = None


@dataclass(frozen=True, slots=True)
class SemaphoreStatus:
    """A semaphore at one moment.

    Attributes:
        name: the semaphore's name.
        limit: the limit in force. It is the set limit, or else this client's declared limit.
        held: permits in use.
        available: permits free under that limit, and under the ramp of a back-off. Never
            negative.
        waiting: number of waiting requests.
        holders: held permits, the first to expire first.
        waiters: waiting requests, in the order of the queue.
        set_limit: the limit that was set with ``set_limit``, if any.
        retry_after: an estimate of the seconds until a new request would be granted. 0 when a
            permit is free. It is computed from the queue and from this process's recent hold
            times, or else those of other processes. With no hold times, a second is assumed.
        keys: those with permits or waiting requests, and those to which a back-off grants nothing,
            the ones with the most permits first.
        back_off: the semaphore's back-off, if one is in progress.
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

    @property
    def oldest_wait(self) -> float | None:
        """The longest wait of the listed waiters. None without waiters.

        Requests of processes that have died are not among them.
        """
        return max((waiter.age for waiter in self.waiters), default=None)


def status_of(
    name: str,
    terms: Terms,
    reply: StatusReply,
    usual_hold: float | None,
    key_limit: Callable[[str], int | None],
) -> SemaphoreStatus:
    """Return the public status for a reply."""
    clients = {hub: client_of(hub, description) for hub, description in reply.hubs.items()}
    limit = terms.limit if reply.set_limit is None else reply.set_limit
    slots: Sequence[Slot] = reply.slots
    if terms.slots is not None:
        limit = min(limit, terms.limit)
        slots = (*terms.slots, *reply.slots[len(terms.slots) :])
    most = limit if reply.ramp is None else min(limit, reply.ramp.permits)
    available = max(0, most - reply.held)
    back_off = back_off_of(reply.ramp, limit)

    def client(identity: str) -> Client:
        hub = identity.partition(".")[0]
        return clients.get(hub) or Client(hub)

    def age(drawn: int) -> float:
        # Tokens and tickets are times of the clock, in microseconds.
        return max(0.0, (reply.now_us - drawn) / 1e6)

    if usual_hold is None and reply.hold_ms is not None:
        usual_hold = reply.hold_ms / 1000
    soon = available > 0 and not reply.blocked
    estimate = retry_after(reply.waiting, limit, usual_hold, None, terms.lease)
    if back_off is not None:
        estimate += back_off.seconds_left
    return SemaphoreStatus(
        name=name,
        limit=limit,
        held=reply.held,
        available=available,
        waiting=reply.waiting,
        holders=tuple(
            Holder(
                id=entry.id,
                client=client(entry.id),
                age=age(entry.token),
                expires_in=entry.left_ms / 1000,
                fencing_token=entry.token,
                permits=entry.permits,
                key=entry.key,
                slots=tuple(slots[slot] for slot in entry.slots if 0 <= slot < len(slots)),
            )
            for entry in reply.holders
        ),
        waiters=tuple(
            Waiter(
                id=entry.id,
                client=client(entry.id),
                position=position,
                age=age(entry.ticket),
                permits=entry.permits,
                key=entry.key,
            )
            for position, entry in enumerate(reply.queue)
        ),
        set_limit=reply.set_limit,
        retry_after=0.0 if soon else estimate,
        keys=tuple(
            KeyStatus(entry.key, of_key, entry.held, entry.waiting, entry.set_limit, own)
            for entry in reply.keys
            for of_key in (key_limit(entry.key) if entry.set_limit is None else entry.set_limit,)
            for own in (back_off_of(entry.ramp, limit if of_key is None else of_key),)
        ),
        back_off=back_off,
    )


def back_off_of(ramp: Ramp | None, limit: int) -> BackOff | None:
    """The public form of a reply's back-off. It is over once the ramp is at *limit*."""
    if ramp is None or ramp.permits >= limit > 0:
        return None
    return BackOff(0.0 if ramp.permits else ramp.lasts_ms / 1000, ramp.permits)


def client_of(hub: str, description: str) -> Client:
    """The process of *hub*, as it described itself. A fact of a wrong type is unknown."""
    facts = facts_of(description)
    return Client(
        id=hub,
        label=_text(facts.get("label")),
        host=_text(facts.get("host")),
        pid=_count(facts.get("pid")),
        limit=_count(facts.get("limit")),
        key_limit=_count(facts.get("key_limit")),
        version=_text(facts.get("version")),
        lease=_seconds(facts.get("lease")),
        refresh_interval=_seconds(facts.get("refresh_interval")),
    )


def _text(fact: object) -> str | None:
    return fact if isinstance(fact, str) else None


def _seconds(fact: object) -> float | None:
    if isinstance(fact, bool) or not isinstance(fact, int | float):
        return None
    return fact if 0 < fact < math.inf else None


def _count(fact: object) -> int | None:
    if isinstance(fact, bool) or not isinstance(fact, int):
        return None
    return fact if 0 <= fact <= MOST_PERMITS else None
