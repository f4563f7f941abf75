"""By how much the clock of each replica differs from its master's.

A replica that is promoted keeps the expiries that its master wrote, and compares them with its
own clock.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from redsem_async.cli._target import REDIS_ERRORS, Target, connected, describe

from ._finding import Finding, note, ok, problem

SAMPLES = 10  # of each clock; the one with the shortest round trip counts
CONNECT_TIMEOUT = 2.0  # seconds to connect to a replica

# Servers that keep time by NTP differ by a few milliseconds. A holder stops trusting its permit
# 1 % of the lease and 5 ms before the lease ends: SOME stays within that for leases from 4.5 s
# on, LARGE from 50 s on only. With the default lease of 10 s, LARGE lets two in for 0.4 s.
SOME, LARGE = 0.050, 0.500  # seconds

_ABOUT = "replica clock"


class Offset(NamedTuple):
    """How far one clock is ahead of another, in seconds, and by how much that may be wrong."""

    ahead: float
    error: float


async def replica_clocks(client: Any, target: Target, info: Mapping[str, Any]) -> list[Finding]:
    """One finding for each replica of the master that *client* reaches and *info* describes."""
    found: list[Finding] = []
    for host, port in _replicas(info):
        try:
            async with connected(
                target.at(host, port), connect_timeout=CONNECT_TIMEOUT
            ) as replica:
                found.append(verdict_on(f"{host}:{port}", await _difference(client, replica)))
        except REDIS_ERRORS as error:
            text = f"{host}:{port} could not be asked for the time: {describe(error)}"
            advice = "run doctor where the replicas can be reached; NTP on all of them"
            found.append(note(_ABOUT, text, advice))
    return found


def verdict_on(replica: str, clock: Offset) -> Finding:
    """What it means that the clock of *replica* differs from its master's by *clock*."""
    way = "ahead of" if clock.ahead > 0 else "behind"
    text = f"{replica} is {abs(clock.ahead):.4f} s {way} its master (within {clock.error:.4f} s)"
    certain = abs(clock.ahead) - clock.error  # it differs by as much at least
    if certain <= SOME:
        return ok(_ABOUT, text)
    if clock.ahead > 0:
        text += ": promoted, it ends every lease earlier by as much, and two may hold one permit"
    else:
        text += ": promoted, it lets crashed holders be in the way for longer"
    severity = problem if certain > LARGE else note
    return severity(_ABOUT, text, "NTP on both; recovery='grace' holds the limit at a failover")


def _replicas(info: Mapping[str, Any]) -> list[tuple[str, int]]:
    if info.get("role") != "master":
        return []
    reply = (info.get(f"slave{number}") for number in range(int(info.get("connected_slaves", 0))))
    return [(str(one["ip"]), int(one["port"])) for one in reply if one]


async def _difference(master: Any, replica: Any) -> Offset:
    for client in (master, replica):
        await client.time()  # connects, so that no sample has to
    masters, replicas = list[Offset](), list[Offset]()
    for _ in range(SAMPLES):
        masters.append(await _sample(master))
        replicas.append(await _sample(replica))
    one, other = (min(samples, key=lambda s: s.error) for samples in (replicas, masters))
    return Offset(one.ahead - other.ahead, one.error + other.error)


async def _sample(client: Any) -> Offset:
    """How far a server's clock is ahead of this process's counter."""
    began = time.perf_counter()
    seconds, micros = await client.time()
    half = (time.perf_counter() - began) / 2
    # The server read its clock between the two moments: in the middle, give or take half.
    return Offset(seconds + micros / 1e6 - began - half, half)
