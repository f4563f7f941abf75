"""A look at a semaphore: how it stood at some moment, read from the contents of its keys.

It knows their layout, and nothing of how scripts decide. The worlds read the keys of the small
Redis in memory, and the journal those that it rebuilt from what scripts wrote.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from redsem_async._core.keys import Address, permit_id
from redsem_async._hub.model import Lease
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import (
    DEFAULT_OPTIONS,
    Abandon,
    Acquire,
    Adopt,
    AnyOperation,
    Detach,
    KeyTerms,
    QueuedRequest,
    Refresh,
    Release,
)
from redsem_async._protocol.replies import Ramp

HUB = 32  # characters of its id
RISES = 12  # above what is kept, after which a back-off is over

Contents = Mapping[str, Mapping[str, Any]]
"""What each kind of key has: scores and fields by member. A text, as the set limit is one, is the
field "" of its kind."""


class BackOff(NamedTuple):
    """A back-off.

    Attributes:
        ends: when its pause ends, in milliseconds.
        began: the counter when it began.
        step: for how many milliseconds a limit of the slow start is in force.
        kept: the limit after that, in permits.
        rest: for how many milliseconds that is in force.
    """

    ends: int
    began: int
    step: int
    kept: int
    rest: int

    def ramp(self, now: int) -> Ramp | None:
        """How many permits may be in use *now*, and for how long so. None when it is over."""
        if now < self.ends:
            return Ramp(self.ends - now, 0)
        until = self.ends
        for limit, lasts in self._limits():
            until += lasts
            if now < until:
                return Ramp(until - now, limit)
        return None

    def _limits(self) -> Iterator[tuple[int, int]]:
        """The limits after its pause, and for how many milliseconds each is in force."""
        limit, more = 1, 0
        while limit < self.kept:
            yield limit, self.step
            limit *= 2
        yield self.kept, self.rest
        for _ in range(RISES):
            more = 2 * more + 1
            yield self.kept + more, -(-self.rest // 4)


def key_of(request: QueuedRequest) -> str | None:
    return request.key.key if request.key else None


def requests_of(call: Acquire) -> list[QueuedRequest]:
    """The requests of an acquire, one by one."""
    options = {number: call.options.get(number, DEFAULT_OPTIONS) for number in call.numbers}
    return [
        QueuedRequest(number, call.lease_ms, call.limit, asked.permits, asked.key, asked.costs)
        for number, asked in options.items()
    ]


class Permit(NamedTuple):
    """A holder, as it was at some moment. Or a permit as a client trusts it, until *expiry_ms*."""

    expiry_ms: int
    token: int
    permits: int
    key: str | None = None
    slots: tuple[int, ...] = ()

    @classmethod
    def trusted(cls, lease: Lease, until_us: int) -> "Permit":
        key = lease.key.key if lease.key else None
        return cls(until_us // 1000, lease.token, lease.permits, key, tuple(lease.slots))


class Waiter(NamedTuple):
    """A request in line, as it was at some moment."""

    id: str
    request: QueuedRequest
    ticket: float
    alive_until: int  # its process

    @property
    def key(self) -> str | None:
        return key_of(self.request)

    @property
    def patience_ends(self) -> float:
        return patience_ends(self.request, self.ticket)


class Room(NamedTuple):
    """What is in use at a moment, and what may be.

    *ramps*: how many permits back-offs allow, by key, or None for all requests. *full_in*: in how
    many microseconds the bucket of each rate is full.
    """

    uses: Counter[str | None]
    set_limit: int | None
    slotted: bool
    key_limits: Mapping[str, int]
    ramps: Mapping[str | None, int]
    full_in: Sequence[int] = ()

    def common_limit(self, request: QueuedRequest) -> int:
        return limit_in_force(request.limit, self.set_limit, slotted=self.slotted)

    def key_limit(self, request: QueuedRequest) -> float:
        if request.key is None:
            return math.inf
        declared = math.inf if request.key.limit is None else request.key.limit
        return self.key_limits.get(request.key.key, declared)

    def fits_key(self, request: QueuedRequest) -> bool:
        key = key_of(request)
        return key is None or (
            self.uses[key] + request.permits <= self.key_limit(request)
            and self._is_within_ramp(request, self.uses[key], key)
        )

    def fits(self, request: QueuedRequest) -> bool:
        ramp_allows = self._is_within_ramp(request, self.uses.total(), None)
        return self.fits_limit(request) and ramp_allows and lets_go(self.full_in, request)

    def fits_limit(self, request: QueuedRequest) -> bool:
        """Whatever a back-off allows. In a ramp, what fits the limit is not passed over."""
        return self.uses.total() + request.permits <= self.common_limit(request)

    def backs_off(self, request: QueuedRequest) -> bool:
        """Whether a back-off holds *request* up."""
        within = self._is_within_ramp(request, self.uses.total(), None)
        key = key_of(request)
        return not (within and self._is_within_ramp(request, self.uses[key], key))

    def _is_within_ramp(self, request: QueuedRequest, used: int, key: str | None) -> bool:
        """A back-off lets nothing start in its pause, and then up to its ramp, or one request."""
        ramp = self.ramps.get(key, math.inf)
        return used + request.permits <= ramp or (ramp > 0 and not used)

    def is_too_heavy(self, request: QueuedRequest) -> bool:
        """For the overall limit: it is passed over, unless its key holds it up."""
        return request.permits > self.common_limit(request)

    def share(self, request: QueuedRequest) -> float:
        key = key_of(request)
        weight = request.key.weight if request.key else 1.0
        return round(self.uses[key] / weight if key is not None else 0.0, 6)


@dataclass
class Look:
    """How a semaphore stood at some moment, by its own clock.

    Attributes:
        now_us: by its clock, and the next token unless one as high was issued.
        holders: the expired among them, until somebody removes them.
        line: in its order.
        passes_over: a request that does not fit is passed over.
        shares: the next permit goes to the key with the fewest.
        by_server: it is kept by the server's clock.
        back_offs: by key, or None for that of all requests. They may be over.
        silent: hubs that no message reaches, or of which nobody knows whether one does.
        marks: the highest number that each hub has used.
        changes: likewise of its changes, which run at most once.
        offsets: by how many us its clock is ahead of that of each hub that asked again.
        ends: when each kind of key expires, by the same clock; None where it does not.
        leaked: facts that are there without a holder.
        rates: when the bucket of each is full, in microseconds, and when it was last seen full.
    """

    now_us: int
    holders: Mapping[str, Permit] = field(compare=False)
    line: Sequence[Waiter]
    set_limit: int | None = None
    key_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    passes_over: bool = False
    shares: bool = False
    slotted: bool = field(default=False, compare=False)
    by_server: bool = field(default=True, compare=False)
    back_offs: Mapping[str | None, BackOff] = field(default_factory=dict[str | None, BackOff])
    silent: Collection[str] = field(default=(), compare=False)
    marks: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    changes: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    offsets: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    ends: Mapping[str, int | None] = field(default_factory=dict[str, int | None], compare=False)
    leaked: frozenset[str] = field(default=frozenset(), compare=False)
    rates: Sequence[tuple[int, int]] = ()
    live: dict[str, Permit] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.now_us // 1000
        self.live = {i: held for i, held in self.holders.items() if held.expiry_ms > self.now}

    @property
    def idle(self) -> bool:
        return not (self.live or self.line) and self.set_limit is None

    @property
    def has_lost_facts(self) -> bool:
        """Whether it is not known what some hold: nothing is granted until they have ended."""
        return any(not held.token for held in self.live.values())

    def room(self, now: int | None = None, without: Collection[str] = ()) -> Room:
        """Also at a later moment, when some of the permits have expired."""
        now, uses = self.now if now is None else now, Counter[str | None]()
        for identity, held in self.live.items():
            if held.expiry_ms > now and identity not in without:
                uses[held.key] += held.permits
        ramps = {key: ramp.permits for key, b in self.back_offs.items() if (ramp := b.ramp(now))}
        now_us = self.now_us if now == self.now else 1000 * now
        full_in = [tat - now_us for tat, _ in self.rates]
        return Room(uses, self.set_limit, self.slotted, self.key_limits, ramps, full_in)

    def eligible(self, room: Room) -> Iterator[Waiter]:
        """The requests in line that are not passed over."""
        for waiter in self.line:
            if waiter.alive_until > self.now and not room.is_too_heavy(waiter.request):
                yield waiter

    @property
    def is_held_up(self) -> bool:
        """Whether the overall limit holds somebody up whose key has room."""
        room = self.room()
        return not all(room.fits(head.request) for head in ready(self.eligible(room), room))


class Ran(NamedTuple):
    """A call of a hub that ran between two looks.

    Attributes:
        told: the permits whose grant a message tells of, if that is known.
    """

    before: Look
    call: AnyOperation
    hub: str
    answer: AnyReply | CommandError
    after: Look
    told: Collection[str] | None = None

    @property
    def done(self) -> bool:
        """Whether it was carried out, and not sent back."""
        return not isinstance(self.answer, CommandError)

    @property
    def new(self) -> list[str]:
        """The permits that are held since, by their tokens."""
        live = self.after.live
        return sorted(live.keys() - self.before.live.keys(), key=lambda i: live[i].token)

    @property
    def granted(self) -> list[str]:
        return [] if isinstance(self.call, Adopt) else self.new

    @property
    def own(self) -> set[str]:
        """The permits that it may change, grant or end."""
        match self.call:
            case Acquire() | Refresh():
                return {permit_id(self.hub, number) for number in self.call.numbers}
            case Release():
                return {permit_id(self.call.owner, number) for number in self.call.numbers}
            case Abandon():
                return {permit_id(self.hub, request.number) for request in self.call.requests}
            case Adopt():
                return {permit_id(self.call.owner, self.call.old)}
            case Detach():
                return {permit_id(self.hub, self.call.number)}
            case _:
                return set()


def costs_in(request: QueuedRequest) -> list[tuple[int, int]]:
    """What *request* costs of each rate, and the burst, in microseconds."""
    pairs = (part.split("/") for part in request.costs[1:].split("+") if part)
    return [(int(cost), int(burst)) for cost, burst in pairs]


def lets_go(full_in: Sequence[int], request: QueuedRequest) -> bool:
    """Whether each rate has what *request* costs, or is full."""
    costs = zip(
        full_in, costs_in(request), strict=False
    )  # one that nothing was taken from is full
    return all(left <= max(0, burst - cost) for left, (cost, burst) in costs)


def limit_in_force(declared: int, set_to: int | None, *, slotted: bool) -> int:
    """Where permits have slots, no limit that is set makes more of them."""
    if set_to is None:
        return declared
    return min(declared, set_to) if slotted else set_to


def patience_ends(request: QueuedRequest, ticket: float) -> float:
    return ticket + 1000 * (request.key.patience_ms if request.key else request.lease_ms)


def ready(waiting: Iterable[Waiter], room: Room) -> list[Waiter]:
    """The first of each key, where its key has room for it; in their order."""
    heads: dict[str | None, Waiter] = {}
    for waiter in waiting:
        heads.setdefault(waiter.key, waiter)
    return [head for head in heads.values() if room.fits_key(head.request)]


# -- from the keys


def look_of(kept: Contents, address: Address, now_us: int, ends: Mapping[str, int | None]) -> Look:
    """How the semaphore stands at *now_us* by its own clock."""
    contents = defaultdict[str, Mapping[str, Any]](dict, kept)
    meta, hubs, line = contents["meta"], contents["hubs"], list[Waiter]()
    for member, score in contents["queue"].items():
        identity, request = _request(member)
        hub = identity.partition(".")[0]
        line.append(Waiter(identity, request, int(score), int(hubs.get(hub, 0))))
    limit = contents["limit"].get("")
    return Look(
        now_us,
        holders_in(contents),
        sorted(line, key=lambda waiter: (waiter.ticket, waiter.id)),
        None if limit is None else _limit(limit),
        {unquote(key): _limit(most) for key, most in contents["key-limits"].items()},
        address.mode.startswith("zset"),
        "+share" in address.mode,
        address.slotted,
        address.clock == "server",
        _back_offs(contents),
        [name[:HUB] for name, said in meta.items() if said != "0" and name[HUB:] == ":no_push"],
        {name: int(mark) for name, mark in meta.items() if len(name) == HUB},
        {name[:HUB]: int(last) for name, last in meta.items() if name[HUB:] == ":changes"},
        {name[:HUB]: int(us) for name, us in meta.items() if name[HUB:] == ":offset"},
        ends,
        frozenset(
            contents["facts"].keys() - contents["holders"].keys() if kept.get("holders") else ()
        ),
        [_rate(*part.split(":")) for part in meta.get("rates", "").split("+") if part],
    )


def _rate(tat: str, full: str) -> tuple[int, int]:
    return int(tat), int(full)


def holders_in(contents: Contents) -> dict[str, Permit]:
    """Every holder, the expired among them. One whose facts were lost has no token."""
    found: dict[str, Permit] = {}
    for identity, expiry in contents["holders"].items():
        token, permits, slots, key = contents["facts"].get(identity, "0:1::").split(":")
        its_slots = tuple(map(int, slots.split("+"))) if slots else ()
        held = math.ceil(expiry), int(token), int(permits)
        found[identity] = Permit(*held, unquote(key) or None, its_slots)
    return found


def _limit(value: str) -> int:
    return int(value.partition(":")[0])


def _back_offs(contents: Contents) -> dict[str | None, BackOff]:
    found: dict[str | None, BackOff] = {}
    for name, value in contents["meta"].items():
        kind, _, key = name.partition(":")
        if kind == "back_off":
            found[unquote(key) or None] = BackOff(*map(int, value.split(":")[:5]))
    return found


@lru_cache(maxsize=10_000)
def _request(member: str) -> tuple[str, QueuedRequest]:
    """A request as the queue has it, and its id."""
    identity, lease_ms, limit, permits, *terms = member.split(":")
    number = int(identity.partition(".")[2])
    request = QueuedRequest(number, int(lease_ms), int(limit), int(permits))
    if terms and "/" in terms[0]:
        request = request._replace(costs=f":{terms.pop(0)}")
    if terms and terms[-1]:
        declared, weight, patience_ms, key = terms
        most = int(declared) if declared else None
        of_key = KeyTerms(unquote(key), most, float(weight), int(patience_ms))
        request = request._replace(key=of_key)
    return identity, request
