"""Who may be served, and who has precedence, where requests have keys or are passed over.

It goes by the line, the holders and the limits alone. What the specification keeps beside them, so
that it need not look at every request, is what it is checked for.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import redsem_async._protocol.operations as op
from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import Request
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import (
    YOUNG_US,
    HolderRecord,
    QueuedRequest,
    key_of,
    requests_of,
)

SERVING = (op.Acquire, op.Abandon, op.Release, op.Heartbeat, op.SetLimit, op.Reap)


def uses_of(holders: Iterable[HolderRecord], now: int) -> Counter[str | None]:
    """Permits in use, by key."""
    uses: Counter[str | None] = Counter()
    for held in holders:
        if held.expiry_ms > now:
            uses[held.key] += held.permits
    return uses


def limit_in_force(declared: int, set_to: int | None, *, slotted: bool) -> int:
    """Where permits have slots, no limit that is set makes more of them."""
    if set_to is None:
        return declared
    return min(declared, set_to) if slotted else set_to


class Room(NamedTuple):
    """What is in use at a moment, and what may be."""

    uses: Counter[str | None]
    set_limit: int | None
    slotted: bool
    key_limits: Mapping[str, int]

    def common_limit(self, request: Request) -> int:
        return limit_in_force(request.limit, self.set_limit, slotted=self.slotted)

    def key_limit(self, request: Request) -> float:
        if request.key is None:
            return math.inf
        declared = math.inf if request.key.limit is None else request.key.limit
        return self.key_limits.get(request.key.key, declared)

    def fits_key(self, request: Request) -> bool:
        key = key_of(request)
        return key is None or self.uses[key] + request.permits <= self.key_limit(request)

    def fits(self, request: Request) -> bool:
        return self.uses.total() + request.permits <= self.common_limit(request)

    def is_too_heavy(self, request: Request) -> bool:
        """For the overall limit: it is passed over, unless its key holds it up."""
        return request.permits > self.common_limit(request)

    def share(self, request: Request) -> float:
        key = key_of(request)
        weight = request.key.weight if request.key else 1.0
        return round(self.uses[key] / weight if key is not None else 0.0, 6)


def room_of(model: QueueSpecification, now: int, without: Collection[str] = ()) -> Room:
    holders = [held for i, held in model.state.holders.items() if i not in without]
    limits = model.key_limits if isinstance(model, KeyedSpecification) else {}
    return Room(uses_of(holders, now), model.state.set_limit, model.state.slotted, limits)


def eligible(model: QueueSpecification, room: Room, now: int) -> Iterator[QueuedRequest]:
    """The requests in line that are not passed over, in their order."""
    for waiter in model.line:
        hub = model.state.look_up(waiter.hub)
        alive = hub.alive_until > now and not hub.unreachable
        passed_over = room.is_too_heavy(waiter.request) and room.fits_key(waiter.request)
        if alive and not passed_over:
            yield waiter


def ready(waiting: Iterable[QueuedRequest], room: Room) -> list[QueuedRequest]:
    """The first of each key, where its key has room for it."""
    heads: dict[str | None, QueuedRequest] = {}
    for waiter in waiting:
        heads.setdefault(waiter.key, waiter)
    return [head for head in heads.values() if room.fits_key(head.request)]


def patience_ends(request: Request, ticket: float) -> float:
    return ticket + 1000 * (request.key.patience_ms if request.key else request.lease_ms)


def next_in_turn(
    model: QueueSpecification, room: Room, now: int, now_us: int
) -> list[QueuedRequest]:
    """Whose turn it may be; several where only their virtual times tell, which are not known."""
    if model.passes_over:
        fitting = (waiter for waiter in eligible(model, room, now) if room.fits(waiter.request))
        return [*islice(fitting, 1)]
    heads = ready(eligible(model, room, now), room)
    if not heads:
        return []
    if not _shares(model):
        return [min(heads, key=lambda waiter: waiter.place)]
    ends = min(patience_ends(head.request, head.ticket) for head in heads)
    if ends < model.state.counter.stamp(now_us):
        return [head for head in heads if patience_ends(head.request, head.ticket) == ends]
    least = min(room.share(head.request) for head in heads)
    return [head for head in heads if room.share(head.request) == least]


def forgotten(
    model: QueueSpecification, now_us: int, without: Collection[str] = ()
) -> QueuedRequest | None:
    """A request that waits although its limits have room, and nothing has precedence over it."""
    now = now_us // 1000
    if model.state.grace.until > now:
        return None
    room = room_of(model, now, without)
    turns = next_in_turn(model, room, now, now_us)
    return turns[0] if turns and all(room.fits(head.request) for head in turns) else None


class Grant(NamedTuple):
    """A grant of a call, in the order of tokens."""

    id: str
    request: Request
    ticket: float  # of one that was not in line, as if it had come last
    may_pass: bool = False  # older ones: the releasing process asked for it, and the head is young


def grants_of(
    model: QueueSpecification,
    line: Sequence[QueuedRequest],
    call: op.Operation,
    hub: str,
    ids: Iterable[str],
    now_us: int,
) -> list[Grant]:
    """What *call* of *hub* granted: *ids*, which were in *line* before or are asked for by it."""
    asked = {waiter.id: Grant(waiter.id, waiter.request, waiter.ticket) for waiter in line}
    by_server = (model.state.kind or "").endswith("server")
    if isinstance(call, op.Release) and call.own and by_server:
        oldest = min((waiter.ticket for waiter in line if not waiter.parked), default=math.inf)
        if 0 <= model.state.counter.stamp(now_us) - oldest <= YOUNG_US:
            named = {permit_id(hub, request.number) for request in call.own} & asked.keys()
            asked |= {identity: asked[identity]._replace(may_pass=True) for identity in named}
    if isinstance(call, op.Acquire):
        overtakes = _shares(model) or any(request.ahead_ms for request in requests_of(call))
        for request in requests_of(call):
            identity, ahead_us = permit_id(hub, request.number), 1000 * request.ahead_ms
            # Where one may come before older ones, they join the line before it is served.
            ticket = model.state.counter.stamp(now_us) - ahead_us if overtakes else math.inf
            asked.setdefault(identity, Grant(identity, request, ticket))
    return [asked[identity] for identity in ids]


def broken_turn(
    model: QueueSpecification,
    line: Iterable[QueuedRequest],
    grants: Sequence[Grant],
    now_us: int,
    say: Callable[[str], str] = str,
) -> str | None:
    """What is wrong with the grants of a call, in the order of their tokens.

    Of those who wait it goes by those who were in *line* before: a request that came with the
    call may have come too late for its first grants.
    """
    now, after, old = now_us // 1000, room_of(model, now_us // 1000), {w.id for w in line}
    standing = list(eligible(model, after, now))
    # Of those that are too heavy it is not known whether their key held them up before.
    waiting = [w for w in standing if w.id in old and not after.is_too_heavy(w.request)]
    heads = ready(standing, after)
    ends: dict[str, float] = {}
    of_keys: dict[str | None, float] = defaultdict(float)
    for grant in grants:
        key = key_of(grant.request)
        of_keys[key] = max(of_keys[key], patience_ends(grant.request, grant.ticket))
    for waiter in model.line:
        of_its_own = patience_ends(waiter.request, waiter.ticket)
        ends[waiter.id] = of_keys[waiter.key] = max(of_keys[waiter.key], of_its_own)
    uses = after.uses.copy()
    for grant in grants:
        uses[key_of(grant.request)] -= grant.request.permits
    step = after._replace(uses=uses)
    for grant in grants:
        key = key_of(grant.request)
        if not step.fits_key(grant.request):
            return f"{say(grant.id)} was granted above the limit of {key!r}"
        for waiter in waiting:
            if grant.may_pass:
                continue
            passed = waiter.ticket < grant.ticket and not model.passes_over
            if passed and waiter.key == key:
                return f"{say(waiter.id)} was in line before {say(grant.id)}, of the same key"
            other = model.passes_over or (waiter.key != key and waiter in heads)
            if other and _has_precedence(model, step, waiter, ends[waiter.id], grant, now_us):
                return f"{say(waiter.id)} was in line before those who were granted"
        step.uses[key] += grant.request.permits
    return None


def _has_precedence(
    model: QueueSpecification,
    room: Room,
    waiter: QueuedRequest,
    ends: float,
    grant: Grant,
    now_us: int,
) -> bool:
    """Whether *waiter*, which only the common limit held up, was to be served before.

    Its patience *ends* no sooner than that of those before it, of the same key: the call served
    them, or they are of processes that are gone, as nobody had seen.
    """
    passed = waiter.ticket < grant.ticket
    if model.passes_over:
        return passed and room.fits(waiter.request)
    if not _shares(model) or grant.ticket == math.inf:
        return passed
    its = patience_ends(grant.request, grant.ticket)
    if min(its, ends) < model.state.counter.stamp(now_us):
        return ends < its
    return room.share(waiter.request) < room.share(grant.request)


def _shares(model: QueueSpecification) -> bool:
    return isinstance(model, KeyedSpecification) and model.shares
