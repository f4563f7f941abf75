"""What the judge notes: looks at the server, tenures, and orders."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import redsem_async._protocol.operations as op
from redsem_async._core.keys import permit_id
from redsem_async.testing._spec.records import HolderRecord
from tests.worlds.turns import Room

from .world import Process


class Permit(NamedTuple):
    """A holder, as it was at some moment."""

    expiry_ms: int
    token: int
    permits: int
    key: str | None = None


def in_use(holders: Mapping[str, Permit | HolderRecord], now: int) -> int:
    return sum(held.permits for held in holders.values() if held.expiry_ms > now)


def own_ids(call: op.Operation, hub: str) -> set[str]:
    """The permits that *call* by *hub* may change, grant or end."""
    match call:
        case op.Acquire() | op.Refresh():
            return {permit_id(hub, number) for number in call.numbers}
        case op.Release():
            return {permit_id(call.owner, number) for number in call.numbers}
        case op.Restore():
            return {permit_id(hub, number) for number, *_ in call.permits}
        case op.Abandon():
            return {permit_id(hub, request.number) for request in call.requests}
        case op.Adopt():
            return {permit_id(call.owner, call.old)}
        case op.Detach():
            return {permit_id(hub, call.number)}
        case _:
            return set()


class InLine(NamedTuple):
    """A request in line, and until when its process counts as alive."""

    since: float
    alive_until: int


class Look(NamedTuple):
    """How a model stood at some moment."""

    now: int
    holders: dict[str, Permit]
    tickets: dict[str, int]
    set_limit: int | None
    grace_until: int
    room: Room | None = None  # where requests have keys
    keys: Mapping[str, str | None] = MappingProxyType({})  # of the requests in line
    held_up: bool = False  # the overall limit holds somebody up whose key has room

    @property
    def live(self) -> dict[str, Permit]:
        return {i: permit for i, permit in self.holders.items() if permit.expiry_ms > self.now}

    @property
    def idle(self) -> bool:
        return not (self.live or self.tickets) and self.set_limit is None

    def used(self, now: int) -> int:
        return in_use(self.holders, now)


@dataclass
class Tenure:
    """From when to when the server had an id as a holder, and how that ended."""

    id: str
    began: float
    since: float  # the last time that it began: later than at first, where it was put back
    token: int
    permits: int
    expiry_ms: int
    limit: int | None  # in force when it was granted; None for one that was taken over
    ended: float = math.inf
    cause: str = ""
    in_grace: bool = False  # nobody else is let in until it would have expired

    @property
    def taken(self) -> bool:
        """Whether somebody else than its holder ended it, before its lease did."""
        return self.cause in ("cleared", "flushed", "released by somebody else", "adopted")


@dataclass(eq=False)
class Order:
    """A `set_limit` or a `clear`: it takes effect once, while it is asked for.

    One that was given up may still come late, until its process was answered another.
    """

    by: Process
    limit: int | None
    clears: bool
    asked: float
    given_up: float = math.inf
    hubs: frozenset[str] = frozenset()  # that its process was known by when it was given up
    ended: float = math.inf  # from when on it must have no effect
    done: bool = False


class Around(NamedTuple):
    """What went on around a call.

    Attributes:
        notified: hubs that a message went to, as the server believes.
        reached: hubs that a message is sure to reach.
        late: its link was closed before.
    """

    notified: frozenset[str]
    reached: frozenset[str]
    late: bool
