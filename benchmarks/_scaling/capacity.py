"""The capacity of one server core, computed from measured costs. No clock and no server."""

import math
from typing import Literal, NamedTuple

from redsem_async._core.lease import heartbeat_interval
from redsem_async._hub.operations.refresh import MAX_REFRESHES

SECOND = 1e6  # microseconds of a core
BUSY = 0.7  # share of a core; above it, bursts of requests wait too long
PHASES = 4  # due times per refresh interval, to which a process assigns its permits
CONNECTIONS = 10_000  # default of maxclients

Limit = Literal["heartbeats", "refreshes", "pairs", "messages", "connections"]


class Line(NamedTuple):
    """A linear cost: *fixed* plus *each* times the size."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        return self.fixed + self.each * size


def line_through(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """The line through two measured points. Negative parts, due to noise, become 0."""
    (size, cost), (larger, higher) = small, large
    each = max(0.0, (higher - cost) / (larger - size))
    return Line(max(0.0, cost - each * size), each)


class Costs(NamedTuple):
    """Costs in microseconds of the server's CPU."""

    pair: float  # without its message
    message: float
    heartbeat: Line  # by number of waiters in it
    refresh: Line  # by number of permits in one call


class Process(NamedTuple):
    """The load of one process on one semaphore.

    Attributes:
        lease: lease in seconds.
        held: permits held for longer than a refresh interval.
        waiting: waiting requests; a heartbeat includes at most a hundred of them.
        pairs: permits acquired and handed over per second.
    """

    lease: float = 10.0
    held: int = 0
    waiting: int = 0
    pairs: float = 0.0


class Load(NamedTuple):
    """Microseconds of the server's CPU per second for one process, by cause."""

    heartbeats: float
    refreshes: float
    pairs: float
    messages: float

    @property
    def total(self) -> float:
        return sum(self)


class Fleet(NamedTuple):
    """The maximum number of processes on a shard, and the resource that limits it."""

    processes: float
    bound_by: Limit


def most_a_second(cost: float, share: float = BUSY) -> float:
    """Operations per second with a share of a core, if each costs *cost* microseconds."""
    return share * SECOND / cost


def load_of(process: Process, costs: Costs, most_asked: int = 100) -> Load:
    """The load of *process* on the server, per second."""
    beat = costs.heartbeat.at(min(process.waiting, most_asked)) if process.waiting else 0.0
    refreshed = 0.0
    if process.held:
        calls = refresh_calls(process.held)
        refreshed = costs.refresh.fixed * calls + costs.refresh.each * process.held
    return Load(
        heartbeats=beat / heartbeat_interval(process.lease),
        refreshes=refreshed / (process.lease / 3),
        pairs=process.pairs * costs.pair,
        messages=process.pairs * costs.message,
    )


def refresh_calls(held: int) -> int:
    """Script calls to refresh *held* permits once, if they were acquired at different times."""
    groups = min(held, PHASES)
    return groups * math.ceil(held / groups / MAX_REFRESHES)


def largest_fleet(load: Load, share: float = BUSY, connections: int = CONNECTIONS) -> Fleet:
    """The number of processes with that load that use up the share of a core, or connections."""
    processes = share * SECOND / load.total if load.total else math.inf
    if processes > connections:
        return Fleet(connections, "connections")
    parts: dict[Limit, float] = {
        "heartbeats": load.heartbeats,
        "refreshes": load.refreshes,
        "pairs": load.pairs,
        "messages": load.messages,
    }
    return Fleet(processes, max(parts, key=parts.__getitem__))


def bits_a_second(pairs: float, bytes_of_pair: float) -> float:
    """The network traffic of *pairs* per second, in both directions."""
    return 8 * pairs * bytes_of_pair


def fit_into(memory: float, each: float) -> float:
    """The number of items of *each* bytes that fit into *memory*."""
    return memory / each
