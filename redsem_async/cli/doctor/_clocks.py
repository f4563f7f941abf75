"""The clocks of the server and its replicas, and how long a round trip takes."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError

from redsem_async.cli._target import REDIS_ERRORS, Target, connected, describe

from ._finding import Finding, note, ok, problem, unknown

READINGS = 50  # of the server's clock
REPLICA_READINGS = 10  # of each clock. The one with the shortest round trip is used
CONNECT_TIMEOUT = 2.0  # seconds to connect to a replica
MAX_SKEW = 1.0  # seconds. A larger difference of clocks is a note
SLOW_MEDIAN, SLOW_MAX = 0.010, 0.100  # seconds, the median and longest trip that are a note

# A promoted replica compares the expiries that its master wrote with its own clock. The clocks of
# servers with NTP differ by a few milliseconds. A holder stops trusting its permit 1 % of the
# lease and 5 ms before the lease ends. SOME is within that margin for leases of 4.5 s and more,
# LARGE only for leases of 50 s and more. With the default lease of 10 s, a difference of LARGE
# allows two holders of one permit for 0.4 s.
SOME, LARGE = 0.050, 0.500  # seconds


class ClockReading(NamedTuple):
    """A server's clock, with its time, read *trip* seconds or less after *began*."""

    trip: float
    began: float
    server: float


class Offset(NamedTuple):
    """How far one clock is ahead of another, and the error of that measurement, in seconds."""

    ahead: float
    error: float


async def clock_and_latency(client: Any, _: object = None) -> list[Finding]:
    """The clock of the server that *client* reaches, and how long it takes to reach it."""
    to_wall = time.time() - time.perf_counter()
    try:
        readings = [await _read(client) for _ in range(READINGS)]
    except NoPermissionError:
        denied = ("TIME is denied", "ACL SETUSER ... +time")
        return [unknown("clock", *denied), unknown("latency", *denied)]
    return [_clock(readings, to_wall), _latency(sorted(reading.trip for reading in readings))]


def _clock(readings: Sequence[ClockReading], to_wall: float) -> Finding:
    back = max(before.server - after.server for before, after in pairwise(readings))
    if back > 0:
        text = f"the server's clock went back by {back:.3f} s during the check"
        return problem("clock", text, "configure NTP to slew the clock, never to step it")
    ahead, error = _offset(readings)
    ahead -= to_wall
    text = f"the server's clock is {_seconds(ahead, 3)} this machine's"
    if abs(ahead) > MAX_SKEW + 2 * error:
        text += ": harmless with clock='server', the default"
        return note("clock", text, "use NTP on both before you use clock='local'")
    return ok("clock", text)


def _seconds(ahead: float, digits: int) -> str:
    return f"{abs(ahead):.{digits}f} s {'ahead of' if ahead > 0 else 'behind'}"


def _latency(trips: Sequence[float]) -> Finding:
    usual, longest = trips[len(trips) // 2], trips[-1]
    text = f"round trip: median {usual * 1000:.2f} ms, longest of {len(trips)}"
    text += f" {longest * 1000:.1f} ms"
    if usual > SLOW_MEDIAN or longest > SLOW_MAX:
        lease = max(1.0, 20 * longest)
        return note("latency", text, f"use leases of at least {lease:.0f} s, or a server nearby")
    return ok("latency", text)


async def replica_clocks(client: Any, target: Target, info: Mapping[str, Any]) -> list[Finding]:
    """One finding for each replica of the master that *client* reaches and *info* describes."""
    if info.get("role") != "master":
        return []
    numbers = range(int(info.get("connected_slaves", 0)))
    replicas = [one for number in numbers if (one := info.get(f"slave{number}"))]
    return [await _replica_clock(client, target, one["ip"], int(one["port"])) for one in replicas]


async def _replica_clock(client: Any, target: Target, host: str, port: int) -> Finding:
    try:
        at = target.at(host, port)
        async with connected(at, connect_timeout=CONNECT_TIMEOUT) as replica:
            return of_replica(f"{host}:{port}", await _difference(client, replica))
    except REDIS_ERRORS as error:
        text = f"{host}:{port} could not be queried: {describe(error)}"
        advice = "run doctor on a machine that reaches the replicas; use NTP on all servers"
        return note("replica clock", text, advice)


def of_replica(replica: str, clock: Offset) -> Finding:
    """The finding for a *replica* whose clock differs from its master's by *clock*."""
    text = f"{replica} is {_seconds(clock.ahead, 4)} its master (within {clock.error:.4f} s)"
    certain = abs(clock.ahead) - clock.error  # the smallest possible difference
    if certain <= SOME:
        return ok("replica clock", text)
    if clock.ahead > 0:
        text += ": after a promotion every lease ends that much earlier,"
        text += " and two processes may hold one permit"
    else:
        text += ": after a promotion the permits of crashed holders expire that much later"
    severity = problem if certain > LARGE else note
    advice = "use NTP on both"
    return severity("replica clock", text, advice)


async def _difference(master: Any, replica: Any) -> Offset:
    for client in (master, replica):
        await client.time()  # so that no reading includes connecting
    pairs = [(await _read(master), await _read(replica)) for _ in range(REPLICA_READINGS)]
    masters, replicas = zip(*pairs, strict=True)
    one, other = _offset(replicas), _offset(masters)
    return Offset(one.ahead - other.ahead, one.error + other.error)


async def _read(client: Any) -> ClockReading:
    began = time.perf_counter()
    seconds, micros = await client.time()
    return ClockReading(time.perf_counter() - began, began, seconds + micros / 1e6)


def _offset(readings: Sequence[ClockReading]) -> Offset:
    """How far a server's clock is ahead of this process's counter."""
    trip, began, server = min(readings)
    # The server read its clock between sending and receiving, in the middle give or take half.
    return Offset(server - began - trip / 2, trip / 2)
