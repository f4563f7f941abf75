"""The operations that a hub asks of a store of semaphores, which is Redis or memory.

An operation is declared once, by its script, its arguments and its reply. The contract in the
script says what each argument means, in the same order. An operation is also the command that is
sent, so it has its semaphore, and when it was sent.

Durations are in milliseconds. No operation carries an instant, because an instant means nothing
on another machine's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from redsem_async._core.keys import Address

from .hub_info import UNCHANGED, HubInfo
from .replies import (
    AdoptReply,
    Holding,
    Reply,
    answers_of,
    common_reply,
    key_of,
    number_of,
    slots_of,
)

Argument = str | int
R = TypeVar("R")


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
        ahead_ms: how much longer than in truth it counts as waiting.
        asked_us: when it was made, by the caller's clock, if it has waited before. `max_waiters`
            does not refuse it then.
        costs: for each rate, and its burst, as the queue has them.
    """

    permits: int = 1
    waits: bool = True
    ahead_ms: int = 0
    key: KeyTerms | None = None
    asked_us: int | None = None
    costs: str = ""

    def as_asked(self, number: int, address: Address) -> str:
        """The request as an acquire names it."""
        if self.asked_us is not None:
            text = f"{number}:{self.permits}:2:{self.asked_us}"
        else:
            text = f"{number}:{self.permits}:{self.waits:d}:{self.ahead_ms or ''}"
        has_tail = self.key is not None or (self.costs and address.keyed)
        return f"{text}{self.costs}{_tail(self.key) if has_tail else ''}"


DEFAULT_OPTIONS = RequestOptions()


class QueuedRequest(NamedTuple):
    """A request as the queue has it, by its number within the hub."""

    number: int
    lease_ms: int
    limit: int
    permits: int = 1
    key: KeyTerms | None = None
    costs: str = ""

    def as_queued(self, address: Address) -> str:
        text = f"{self.number}:{self.lease_ms}:{self.limit}:{self.permits}{self.costs}"
        return text + _tail(self.key) if address.keyed else text


class SemaphoreRef:
    """The semaphore that an operation is for.

    A link may cache what it derives from the address, by weak reference, because a hub keeps one
    reference for each semaphore that it uses, for as long as it uses it.

    Attributes:
        address: of the semaphore.
        asking: whether commands go to a node that the semaphore is being moved to.
    """

    def __init__(self, address: Address) -> None:
        self.address: Address = address
        self.asking: bool = False


@dataclass(slots=True)
class Operation(Generic[R]):
    """Base of the operations.

    Attributes:
        script: that carries it out.
        semaphore: that it is for, once it is a command of a hub.
        tag: given by the link that sends it. The reply repeats it.
        sent_at: when it was last sent.
    """

    script: ClassVar[str]
    semaphore: SemaphoreRef = field(init=False, repr=False, compare=False)
    tag: int = field(init=False, repr=False, compare=False)
    sent_at: float = field(init=False, repr=False, compare=False)

    def arguments(self, address: Address) -> Sequence[Argument]:
        """The arguments of the script, after those that all scripts have."""
        raise NotImplementedError

    def reply(self, raw: Sequence[Any], address: Address) -> R:
        """Decode the reply. *raw* begins with the tag."""
        raise NotImplementedError


AnyOperation = Operation[Any]


def _introduced(hub: HubInfo) -> tuple[str, Argument]:
    return hub.description, f"{hub.messages}:{hub.used}" if hub.used else hub.messages


@dataclass(slots=True)
class Acquire(Operation[Reply]):
    """Ask for permits, with one answer for each number.

    Attributes:
        numbers: of the requests, in order. Each is for one permit and waits, as far as *options*
            does not say what else it asks for.
        max_waiters: the longest queue to join. ``None`` for any.
        max_waiters_per_key: the longest queue of its key that a request joins.
        after: the highest number of the batch before this one, when that is unanswered. It must
            have run, or this one does nothing.
        slots: what permits stand for. None for nothing.
        now_us: the caller's clock, if a request has waited before.
    """

    script = "acquire"
    numbers: Sequence[int]
    lease_ms: int
    limit: int
    options: Mapping[int, RequestOptions] = field(default_factory=dict[int, RequestOptions])
    max_waiters: int | None = None
    max_waiters_per_key: int | None = None
    after: int = 0
    hub_info: HubInfo = UNCHANGED
    slots: Sequence[str | int] | None = None
    now_us: int = 0

    def arguments(self, address: Address) -> Sequence[Argument]:
        limit: Argument = self.limit if self.slots is None else _listed(self.slots)
        most: Argument = -1 if self.max_waiters is None else self.max_waiters
        if self.max_waiters_per_key is not None:
            most = f"{most}:{self.max_waiters_per_key}"
        after: Argument = f"{self.after}:{self.now_us}" if self.now_us else self.after
        requests: Sequence[Argument] = self.numbers
        if options := self.options:
            requests = [
                options[n].as_asked(n, address) if n in options else n for n in self.numbers
            ]
        return (self.lease_ms, limit, most, after, *_introduced(self.hub_info), *requests)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        count = len(self.numbers)
        if len(raw) == 2:  # all granted, with tokens in a row
            return Reply(range(raw[1], raw[1] + count))
        return common_reply(raw, address, count, of_waiters=True)


@dataclass(slots=True)
class Heartbeat(Operation[Reply]):
    """Keep the hub alive and ask about the state of its waiters.

    Attributes:
        lease_ms: the longest lease among the waiters.
        requests: the waiters to ask about.
    """

    script = "heartbeat"
    lease_ms: int
    requests: Sequence[QueuedRequest] = ()
    hub_info: HubInfo = UNCHANGED

    def arguments(self, address: Address) -> Sequence[Argument]:
        asked = [request.as_queued(address) for request in self.requests]
        return (self.lease_ms, *_introduced(self.hub_info), *asked)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return common_reply(raw, address, len(self.requests), of_waiters=True)


@dataclass(slots=True)
class Release(Operation[Reply]):
    """Release permits.

    Attributes:
        owner: the hub that drew the ids.
        numbers: of the ids.
        hold_ms: how long requests of the caller's process recently held their permits, times
            permits. Most do not say it.
        waits: a request of the caller's hub waits, or may, so the reply describes the queue.
        own: the oldest of those, as many as numbers at most. They may come before older ones of
            other hubs, if those have not waited for long (`Semaphore` only).
        settled: how much more the permits of some numbers cost than their requests said, or less:
            ``us+us``, for each rate.
    """

    script = "release"
    owner: str
    numbers: Sequence[int]
    hold_ms: int | None = None
    waits: bool = False
    own: Sequence[QueuedRequest] = ()
    settled: Mapping[int, str] = field(default_factory=dict[int, str])

    def arguments(self, address: Address) -> Sequence[Argument]:
        numbers: Sequence[Argument] = self.numbers
        if settled := self.settled:
            numbers = [f"{n}:{settled[n]}" if n in settled else n for n in self.numbers]
        own = "1" * self.waits
        if self.own:
            own = ",".join([request.as_queued(address) for request in self.own])
        return (self.owner, "" if self.hold_ms is None else self.hold_ms, own, *numbers)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        count = len(self.numbers)
        if len(raw) == 1:  # all were held
            return Reply([1] * count)
        return common_reply(raw, address, count)


@dataclass(slots=True)
class Abandon(Operation[Reply]):
    """Leave the queue, or release what was granted unheard.

    No adoption or detach with a number up to *void* acts any more, and no change with one up to
    *void_change* (see `Once`).
    """

    script = "abandon"
    requests: Sequence[QueuedRequest]
    void: int = 0
    void_change: int = 0

    def arguments(self, address: Address) -> Sequence[Argument]:
        left = [request.as_queued(address) for request in self.requests]
        return (self.void, self.void_change, *left)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return common_reply(raw, address, len(self.requests))


@dataclass(slots=True)
class Refresh(Operation[Reply]):
    """Refresh permits of the caller's hub.

    Attributes:
        max_hold_ms: how long they may be held, since their grants. ``None`` for any time. Each
            answer is then how much of it is left.
    """

    script = "refresh"
    numbers: Sequence[int]
    lease_ms: int
    max_hold_ms: int | None = None

    def arguments(self, address: Address) -> Sequence[Argument]:
        return (_bounded(self.lease_ms, self.max_hold_ms), *self.numbers)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return Reply(answers_of(raw[1:], len(self.numbers)))


@dataclass(slots=True)
class Adopt(Operation[AdoptReply]):
    """Exchange the id of a held permit for one of the caller's hub.

    *max_hold_ms* says how long it may be held, since its grant (``None`` for any time). *slots* is
    what permits stand for, as in `Acquire`.

    The hub numbers this call and `Detach` each time it writes them. The server keeps the highest
    number that it carried out, and a call whose number is not above it does nothing.
    """

    script = "adopt"
    owner: str
    old: int
    new: int
    lease_ms: int
    hub_info: HubInfo = UNCHANGED
    call: int = 0
    max_hold_ms: int | None = None
    slots: Sequence[str | int] | None = None

    def arguments(self, address: Address) -> Sequence[Argument]:
        more: tuple[Argument, ...] = () if self.max_hold_ms is None else (self.max_hold_ms,)
        if self.slots is not None:
            more = ("" if self.max_hold_ms is None else self.max_hold_ms, _listed(self.slots))
        ids = (self.owner, self.old, self.new)
        return (self.lease_ms, *_introduced(self.hub_info), *ids, self.call, *more)

    def reply(self, raw: Sequence[Any], address: Address) -> AdoptReply:
        if len(raw) == 2:
            return AdoptReply(None)
        key, slots = None, b""
        if address.keyed:
            *raw, key = raw
        if address.slotted:
            *raw, slots = raw
        token, left_ms, permits, *held_ms = map(number_of, raw[1:])
        holding = Holding(token, left_ms, slots_of(slots))
        return AdoptReply(holding, permits, sum(held_ms), key_of(key))


@dataclass(slots=True)
class Detach(Operation[Reply]):
    """Set the expiry of a held permit once. *max_hold_ms* is as in `Refresh`."""

    script = "detach"
    number: int
    expires_ms: int
    call: int = 0
    max_hold_ms: int | None = None

    def arguments(self, address: Address) -> Sequence[Argument]:
        return self.number, _bounded(self.expires_ms, self.max_hold_ms), self.call

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return Reply(answers_of(raw[1:], 1))


@dataclass(slots=True)
class SetLimit(Operation[Reply]):
    """Set the limit that overrides every client's own, or end it. For all, or for *key*.

    *by* says who does it, for those who look at the status.

    The hub numbers a change, which this, `StartBackOff` and `Delete` are, when it writes it for
    the first time. The server keeps the highest number of a change that it carried out, and one
    whose number is not above it does nothing.
    """

    script = "set_limit"
    limit: int | Literal["pause", "resume"] | None
    call: int = 0
    key: str | None = None
    by: str = ""

    def arguments(self, address: Address) -> Sequence[Argument]:
        return ("" if self.limit is None else self.limit, self.call, self.by, *_key(self.key))

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return common_reply(raw, address, 0)


@dataclass(slots=True)
class StartBackOff(Operation[Reply]):
    """Cut the limit in force of all requests, or of those of *key*, and grant nothing for a time.

    The answer is the limit that is kept, if a back-off began, and else 0.

    Attributes:
        pause_ms: from now on. 0 with a token is an overload that tells no time, and without one
            the end of a back-off.
        token: of the permit that met the overload. None for an overload that is new in any case.
        by: who begins it, for those who look at the status.
    """

    script = "back_off"
    pause_ms: int
    token: int | None = None
    call: int = 0
    key: str | None = None
    by: str = ""

    def arguments(self, address: Address) -> Sequence[Argument]:
        granted = "" if self.token is None else self.token
        return (self.pause_ms, granted, self.call, self.by, *_key(self.key))

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return common_reply(raw, address, 1)


@dataclass(slots=True)
class Reap(Operation[Reply]):
    """Drop expired holders and dead waiters."""

    script = "reap"

    def arguments(self, address: Address) -> Sequence[Argument]:
        return ()

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return common_reply(raw, address, 1)


@dataclass(slots=True)
class Delete(Operation[Reply]):
    """Delete the semaphore."""

    script = "delete"
    call: int = 0

    def arguments(self, address: Address) -> Sequence[Argument]:
        return (self.call,)

    def reply(self, raw: Sequence[Any], address: Address) -> Reply:
        return Reply()


def encoded(key: str) -> str:
    """*key* without characters that mean something next to it."""
    return quote(key, safe="")


def _tail(terms: KeyTerms | None) -> str:
    """The end of a request where requests may have keys."""
    if terms is None:
        return "::1:0:"
    key, limit, weight, patience_ms = terms
    declared = "" if limit is None else limit
    return f":{declared}:{weight:.6f}:{patience_ms}:{encoded(key)}"


def _key(key: str | None) -> Sequence[str]:
    return () if key is None else (encoded(key),)


def _bounded(lease_ms: int, max_hold_ms: int | None) -> Argument:
    """The lease of a refresh, and how long a permit is held at most."""
    return lease_ms if max_hold_ms is None else f"{lease_ms}:{max_hold_ms}"


def _listed(slots: Sequence[str | int]) -> str:
    """The slots that a client declares, after their number."""
    return f"{len(slots)}:{','.join(encoded(str(slot)) for slot in slots)}"
