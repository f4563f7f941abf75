"""The difference between the clocks of each replica and its master.

A promoted replica compares the expiries that its master wrote with its own clock.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from redsem_async.cli._target import REDIS_ERRORS, Target, connected, describe

from ._finding import Finding, note, ok, problem

SAMPLES = 10  # of each clock; the sample with the shortest round trip is used
CONNECT_TIMEOUT = 2.0  # seconds to connect to a replica

# The clocks of servers with NTP differ by a few milliseconds. A holder stops trusting its permit
# 1 % of the lease and 5 ms before the lease ends. SOME is within that margin for leases of 4.5 s
# and more, LARGE only for leases of 50 s and more. With the default lease of 10 s, a difference
# of LARGE allows two holders of one permit for 0.4 s.
SOME, LARGE = 0.050, 0.500  # seconds

_ABOUT = "replica clock"


class Offset(NamedTuple):
    """How far one clock is ahead of another, and the error of that measurement, in seconds."""

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
            text = f"{host}:{port} could not be queried: {describe(error)}"
            advice = "run doctor on a machine that reaches the replicas; use NTP on all servers"
            found.append(note(_ABOUT, text, advice))
    return found


def verdict_on(replica: str, clock: Offset) -> Finding:
    """The finding for a *replica* whose clock differs from its master's by *clock*."""
    way = "ahead of" if clock.ahead > 0 else "behind"
    text = f"{replica} is {abs(clock.ahead):.4f} s {way} its master (within {clock.error:.4f} s)"
    certain = abs(clock.ahead) - clock.error  # the smallest possible difference
    if certain <= SOME:
        return ok(_ABOUT, text)
    if clock.ahead > 0:
        text += ": after a promotion every lease ends that much earlier,"
        text += " and two processes may hold one permit"
    else:
        text += ": after a promotion the permits of crashed holders expire that much later"
    severity = problem if certain > LARGE else note
    return severity(
        _ABOUT, text, "use NTP on both; recovery='grace' keeps the limit at a failover"
    )


def _replicas(info: Mapping[str, Any]) -> list[tuple[str, int]]:
    if info.get("role") != "master":
        return []
    entries = (
        info.get(f"slave{number}") for number in range(int(info.get("connected_slaves", 0)))
    )
    return [(str(one["ip"]), int(one["port"])) for one in entries if one]


async def _difference(master: Any, replica: Any) -> Offset:
    for client in (master, replica):
        await client.time()  # so that no sample includes connecting
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
    # The server read its clock between sending and receiving: in the middle, plus or minus half.
    return Offset(seconds + micros / 1e6 - began - half, half)
