"""What one server core carries: arithmetic on measured costs, without a clock or a server."""

import math
from typing import Literal, NamedTuple

from redsem_async._core.lease import heartbeat_interval
from redsem_async._hub.operations.refresh import MAX_REFRESHES

SECOND = 1e6  # microseconds of a core
BUSY = 0.7  # of a core: above that, what arrives in bursts waits for long
PHASES = 4  # due times in a refresh interval, over which the permits of a process spread
CONNECTIONS = 10_000  # maxclients of a server that is not told otherwise

Limit = Literal["heartbeats", "refreshes", "pairs", "messages", "connections"]


class Line(NamedTuple):
    """A cost that grows with a size: *fixed*, and as much for *each*."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        return self.fixed + self.each * size


def line_through(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """The line through two measured points; neither part is below nothing, however noisy."""
    (size, cost), (larger, higher) = small, large
    each = max(0.0, (higher - cost) / (larger - size))
    return Line(max(0.0, cost - each * size), each)


class Costs(NamedTuple):
    """What the server spends, in microseconds of its CPU."""

    pair: float  # without its message
    message: float
    heartbeat: Line  # by waiters asked about
    refresh: Line  # by permits in one call


class Process(NamedTuple):
    """What a process of a fleet does with one semaphore.

    Attributes:
        lease: in seconds.
        held: permits that it holds for longer than a refresh interval.
        waiting: requests that wait, of which a heartbeat asks about a hundred at most.
        pairs: permits that it acquires and hands over, in a second.
    """

    lease: float = 10.0
    held: int = 0
    waiting: int = 0
    pairs: float = 0.0


class Load(NamedTuple):
    """Microseconds of the server's CPU that a process costs in a second, by cause."""

    heartbeats: float
    refreshes: float
    pairs: float
    messages: float

    @property
    def total(self) -> float:
        return sum(self)


class Fleet(NamedTuple):
    """The largest fleet that a shard carries, and what keeps it from growing."""

    processes: float
    bound_by: Limit


def most_a_second(cost: float, share: float = BUSY) -> float:
    """How many of what costs so many microseconds fit into a share of a core."""
    return share * SECOND / cost


def load_of(process: Process, costs: Costs, most_asked: int = 100) -> Load:
    """What *process* costs the server in a second."""
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
    """Script calls that refresh *held* permits once, which were acquired at all sorts of times."""
    groups = min(held, PHASES)
    return groups * math.ceil(held / groups / MAX_REFRESHES)


def largest_fleet(load: Load, share: float = BUSY, connections: int = CONNECTIONS) -> Fleet:
    """How many processes of that load use up the share of a core, or the connections."""
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
    """What so many pairs a second put on the network, both ways."""
    return 8 * pairs * bytes_of_pair


def fit_into(memory: float, each: float) -> float:
    """How many of *each* bytes fit into *memory*."""
    return memory / each
