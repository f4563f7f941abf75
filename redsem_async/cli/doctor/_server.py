"""What a server says of itself, and what that means for semaphores. No I/O here."""

import re
from collections.abc import Mapping
from typing import Any

from ._finding import Finding, note, ok, problem

Info = Mapping[str, Any]

MIN_VERSION = (6, 2)
HIGH_USAGE = 0.9  # of what there is, in use


def version(info: Info) -> Finding:
    """Whether it is a server that semaphores run on."""
    flavour, text = "Redis", str(info.get("redis_version", "?"))
    for name in ("valkey", "dragonfly"):
        if f"{name}_version" in info:
            flavour, text = name.capitalize(), str(info[f"{name}_version"])
    numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if flavour == "Dragonfly":
        return note("server", f"{flavour} {text}", "semaphores are tested on Redis and Valkey")
    if flavour == "Redis" and numbers < MIN_VERSION:
        return problem("server", f"{flavour} {text}", "use Redis 6.2 or newer, or Valkey")
    return ok("server", f"{flavour} {text}")


def role(info: Info, *, cluster: bool) -> list[Finding]:
    """Whether it is the one to write to."""
    found: list[Finding] = []
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        found.append(
            problem("role", f"it is a replica of {master}", "use the master's URL, or Sentinel")
        )
    if int(info.get("cluster_enabled", 0)) and not cluster:
        found.append(
            problem("role", "it is a node of a cluster", "use RedisCluster, and --cluster here")
        )
    return found


def memory(info: Info) -> Finding:
    """Whether it evicts keys, or is about to refuse writes."""
    maximum, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if not maximum:
        return ok("memory", "no maxmemory: keys are not evicted")
    if policy != "noeviction":
        return problem(
            "memory",
            f"maxmemory-policy {policy} evicts keys when {_mebibytes(maximum)} are full:"
            " permits are lost with them",
            "CONFIG SET maxmemory-policy noeviction, or give semaphores a server of their own",
        )
    if used > HIGH_USAGE * maximum:
        return problem(
            "memory",
            f"{_mebibytes(used)} of {_mebibytes(maximum)} are in use: new permits are refused when"
            " it is full",
            "raise maxmemory, or delete what is not needed",
        )
    return ok("memory", f"noeviction, {_mebibytes(used)} of {_mebibytes(maximum)} in use")


def clients(info: Info) -> Finding | None:
    """Whether new connections will be refused soon."""
    maximum, used = int(info.get("maxclients", 0)), int(info.get("connected_clients", 0))
    if maximum and used > HIGH_USAGE * maximum:
        return problem(
            "clients", f"{used:,} of {maximum:,} connections are in use", "raise maxclients"
        )
    return None


def durability(info: Info) -> list[Finding]:
    """What a restart or a failover would forget."""
    found: list[Finding] = []
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append(
            problem(
                "persistence",
                "the last snapshot failed: the server may refuse writes (MISCONF)",
                "see the server's log; free disk space",
            )
        )
    if not int(info.get("aof_enabled", 0)):
        found.append(
            note(
                "persistence",
                "no append-only file: a restart forgets who holds what, and set limits",
                "where the limit must hold even then: recovery='grace'",
            )
        )
    else:
        found.append(ok("persistence", "append-only file: a restart forgets at most a moment"))
    if replicas := int(info.get("connected_slaves", 0)):
        found.append(
            note(
                "replicas",
                f"{replicas} connected: a failover may forget the newest grants",
                "where that matters: min_replicas=1, or recovery='grace'",
            )
        )
    return found


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
