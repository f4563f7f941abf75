"""What is explored: who asks for what, on what terms, and how much may go wrong."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from redsem_async._keys import Mode
from redsem_async._lease import heartbeat_interval

Event = tuple[str, int, int]
"""What happens, to which client, and to which of its requests."""


class Budget(NamedTuple):
    """How often each thing may happen, in all clients together."""

    ticks: int = 0
    cancels: int = 0
    cuts: int = 0  # a connection breaks
    kills: int = 0
    stops: int = 0
    refreshes: int = 0  # beside those that the protocol itself demands
    drops: int = 0  # a message is lost although its connection lives
    half_open: int = 0  # of the cuts and kills, those that the server does not notice


class Terms(NamedTuple):
    """What a client declares. The lease and the heartbeat interval are in ticks."""

    mode: Mode
    limit: int
    lease: int
    interval: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A few clients of one semaphore.

    Attributes:
        programs: for each client, the weights of the acquires that it may make, one after
            another; the next may start while the last is still waiting or held.
        limits, leases: what each client declares; leases in ticks.
        twins: pairs of clients that differ in name only.
        opening: what has happened before the search begins.
        prompt: whether somebody must be about to serve a waiter that can be served, without
            waiting for the slow heartbeat. No tick passes then while something is on its way.
    """

    name: str
    mode: Mode
    programs: tuple[tuple[int, ...], ...]
    limits: tuple[int, ...]
    leases: tuple[int, ...]
    budget: Budget
    tick_ms: int = 1000
    twins: tuple[tuple[int, int], ...] = ()
    opening: tuple[Event, ...] = ()
    prompt: bool = True

    @property
    def clients(self) -> range:
        return range(len(self.programs))

    def terms(self, client: int) -> Terms:
        lease = self.leases[client]
        interval = heartbeat_interval(lease * self.tick_ms / 1000) * 1000 / self.tick_ms
        return Terms(self.mode, self.limits[client], lease, math.ceil(interval))
