"""Checks of the reply to INFO. No I/O here."""

import re
from collections.abc import Mapping
from typing import Any

from ._finding import Finding, note, ok, problem

Info = Mapping[str, Any]

MIN_VERSION = (6, 2)
HIGH_USAGE = 0.9  # share in use that is reported


def version(info: Info, service: str | None = None) -> Finding:
    """Whether the server is supported. *service*: that it belongs to, where that is known."""
    flavour, text = "Redis", str(info.get("redis_version", "?"))
    for name in ("valkey", "dragonfly"):
        if f"{name}_version" in info:
            flavour, text = name.capitalize(), str(info[f"{name}_version"])
    numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if service is not None or flavour == "Dragonfly":
        where = flavour if service in (None, flavour) else f"{service}, {flavour}"
        return note("server", f"{where} {text}", "see the page «Where it runs»: what was tried")
    if flavour == "Redis" and numbers < MIN_VERSION:
        return problem("server", f"{flavour} {text}", "use Redis 6.2 or newer, or Valkey")
    return ok("server", f"{flavour} {text}")


def role(info: Info, *, cluster: bool) -> list[Finding]:
    """Whether the server accepts writes, and whether it belongs to a cluster."""
    found: list[Finding] = []
    if info.get("role") == "slave":
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        found.append(
            problem(
                "role",
                f"this server is a replica of {master}",
                "use the master's URL, or one of sentinels (redis+sentinel://)",
            )
        )
    if int(info.get("cluster_enabled", 0)) and not cluster:
        found.append(
            problem(
                "role",
                "this server is a node of a cluster",
                "use RedisCluster, and --cluster here",
            )
        )
    return found


def memory(info: Info) -> Finding:
    """Whether the server evicts keys, or will soon refuse writes."""
    maximum, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if not maximum:
        return ok("memory", "no maxmemory: keys are not evicted")
    if policy != "noeviction":
        return problem(
            "memory",
            f"maxmemory-policy {policy} evicts keys when {_mebibytes(maximum)} are used:"
            " permits in evicted keys are lost",
            "CONFIG SET maxmemory-policy noeviction, or use a separate server for semaphores",
        )
    if used > HIGH_USAGE * maximum:
        return problem(
            "memory",
            f"{_mebibytes(used)} of {_mebibytes(maximum)} are in use: at maxmemory the"
            " server refuses new permits",
            "raise maxmemory, or delete unused keys",
        )
    return ok("memory", f"noeviction, {_mebibytes(used)} of {_mebibytes(maximum)} in use")


def clients(info: Info) -> Finding | None:
    """Whether the server will soon refuse new connections."""
    maximum, used = int(info.get("maxclients", 0)), int(info.get("connected_clients", 0))
    if maximum and used > HIGH_USAGE * maximum:
        return problem(
            "clients", f"{used:,} of {maximum:,} connections are in use", "raise maxclients"
        )
    return None


def durability(info: Info) -> list[Finding]:
    """What a restart or a failover would lose."""
    found: list[Finding] = []
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append(
            problem(
                "persistence",
                "the last snapshot failed: the server may refuse writes (MISCONF)",
                "check the server's log and the free disk space",
            )
        )
    if not int(info.get("aof_enabled", 0)):
        found.append(
            note(
                "persistence",
                "no append-only file: a restart loses permits and set limits",
                "if the limit must hold after a restart: recovery='grace'",
            )
        )
    else:
        found.append(
            ok("persistence", "append-only file: a restart loses at most the last writes")
        )
    if replicas := int(info.get("connected_slaves", 0)):
        found.append(
            note(
                "replicas",
                f"{replicas} connected: a failover may lose the newest grants",
                "if that matters: min_replicas=1, or recovery='grace'",
            )
        )
    return found


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
