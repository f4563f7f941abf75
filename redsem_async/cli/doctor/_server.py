"""What INFO and HELLO say about a server, and CONFIG about its replicas."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from redis.exceptions import ResponseError

from redsem_async._redis.sentinels import split_url
from redsem_async._tools.stored import as_text
from redsem_async.cli._target import Target

from ._finding import Finding, note, ok, problem, unknown

Info = Mapping[str, Any]

MIN_VERSION = (6, 2)
HIGH_USAGE = 0.9  # share in use that is reported

# A master that needs replicas takes no writes once it heard of too few of them for longer than
# `min-replicas-max-lag`. It counts that in whole seconds, and looks once a second.
LATE = 2  # seconds
LARGE_LAG = 5  # seconds, half of a lease by default
GOOD_LAG = 3  # seconds, as a replica reports every second and may be late

_HOSTS = (
    (r"\.serverless\..*\.cache\.amazonaws\.com", "Amazon ElastiCache Serverless"),
    (r"\.cache\.amazonaws\.com", "Amazon ElastiCache"),
    (r"\.memorydb\..*\.amazonaws\.com", "Amazon MemoryDB"),
    (r"\.redis\.cache\.windows\.net", "Azure Cache for Redis"),
    (r"\.(redis|redisenterprise\.cache)\.azure\.net", "Azure Managed Redis"),
    (r"\.upstash\.io", "Upstash"),
    (r"\.(redislabs|redis-cloud)\.com", "Redis Cloud"),
    (r"\.redis\..*\.oraclecloud\.com", "OCI Cache"),
    (r"\.rds\.aliyuncs\.com", "Alibaba Cloud Tair"),
)
_FIELDS = {"dragonfly_version": "Dragonfly", "storage_provider_read_hits": "KeyDB"}


def service_of(host: str, info: Info, hello: Mapping[str, str]) -> str | None:
    """The name of the service. None where a server passes for Redis or Valkey.

    *info* is the reply to INFO and *hello* that to HELLO, empty where it is refused.
    """
    for end, name in _HOSTS:
        if re.search(rf"{end}(\.cn)?\Z", host):
            return name
    for field, name in _FIELDS.items():
        if field in info:
            return name
    if str(info.get("os", "")).startswith("Amazon"):
        return str(info["os"])
    greets_as = hello.get("server", "redis")
    return None if greets_as in ("redis", "valkey") else greets_as.capitalize()


def version(info: Info, service: str | None = None) -> Finding:
    """Whether the server is supported. *service* is the one it belongs to, where known."""
    if not info:
        text = "INFO and HELLO are denied" + (f", at {service}" if service else "")
        return unknown("server", text, "ACL SETUSER ... +info")
    flavour, text = "Redis", str(info.get("redis_version", "?"))
    for name in ("valkey", "dragonfly"):
        if f"{name}_version" in info:
            flavour, text = name.capitalize(), str(info[f"{name}_version"])
    numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if service is not None or flavour == "Dragonfly":
        where = flavour if service in (None, flavour) else f"{service}, {flavour}"
        return note("server", f"{where} {text}", "see docs/where-it-runs.md for what was tried")
    if flavour == "Redis" and numbers < MIN_VERSION:
        return problem("server", f"{flavour} {text}", "use Redis 6.2 or newer, or Valkey")
    return ok("server", f"{flavour} {text}")


def info_of_hello(hello: Mapping[str, str]) -> Info:
    """The version as INFO has it, from the reply to HELLO, which every user may call."""
    return {f"{hello.get('server', 'redis')}_version": hello.get("version", "?")} if hello else {}


def resources(info: Info, *, cluster: bool) -> Iterator[Finding]:
    """The role of the server, its memory and connections, and what a restart would lose."""
    if info.get("role") == "slave":
        text = f"this server is a replica of {info.get('master_host')}:{info.get('master_port')}"
        advice = "use the master's URL, or one of sentinels (redis+sentinel://)"
        yield problem("role", text, advice)
    if int(info.get("cluster_enabled", 0)) and not cluster:
        text = "this server is a node of a cluster"
        yield problem("role", text, "use RedisCluster, and --cluster here")
    yield memory(info)
    yield from clients(info)
    if not cluster:  # whose messages no pattern matches
        yield from patterns(info)
    yield from durability(info)


def memory(info: Info) -> Finding:
    """Whether the server evicts keys, or will soon refuse writes."""
    maximum, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if not maximum:
        return ok("memory", "no maxmemory: keys are not evicted")
    if policy != "noeviction":
        text = f"maxmemory-policy {policy} evicts keys when {_mebibytes(maximum)} are used:"
        text += " permits in evicted keys are lost"
        advice = "CONFIG SET maxmemory-policy noeviction, or use a separate server for semaphores"
        return problem("memory", text, advice)
    if used > HIGH_USAGE * maximum:
        text = f"{_mebibytes(used)} of {_mebibytes(maximum)} are in use: at maxmemory the"
        text += " server refuses new permits"
        return problem("memory", text, "raise maxmemory, or delete unused keys")
    return ok("memory", f"noeviction, {_mebibytes(used)} of {_mebibytes(maximum)} in use")


def clients(info: Info) -> Iterator[Finding]:
    """Whether the server will soon refuse new connections."""
    maximum, used = int(info.get("maxclients", 0)), int(info.get("connected_clients", 0))
    if maximum and used > HIGH_USAGE * maximum:
        text = f"{used:,} of {maximum:,} connections are in use"
        yield problem("clients", text, "raise maxclients")


def patterns(info: Info) -> Iterator[Finding]:
    """Whether messages count as received although their process was killed."""
    if count := int(info.get("pubsub_patterns", 0)):
        text = f"{count} subscribed patterns: what is sent to a killed process counts as received"
        text += " by those that match, so it is granted a permit for a lease"
        yield note("messages", text, "end what subscribes to all channels (PSUBSCRIBE *)")


def durability(info: Info) -> Iterator[Finding]:
    """What a restart or a failover would lose."""
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last snapshot failed: the server may refuse writes (MISCONF)"
        yield problem("persistence", text, "check the server's log and the free disk space")
    if not int(info.get("aof_enabled", 0)):
        text = "no append-only file: a restart loses permits, set limits and pauses"
        yield note("persistence", text, "if the limit must hold after a restart: appendonly yes")
    else:
        yield ok("persistence", "append-only file: a restart loses at most the last writes")
    if replicas := int(info.get("connected_slaves", 0)):
        text = f"{replicas} connected: a failover may lose the newest grants"
        yield note("replicas", text, "if that matters: fencing tokens, or a durable service")


async def two_masters(client: Any, target: Target, info: Info) -> list[Finding]:
    """For how long two masters may take writes, where a failover replaces a live one.

    In a cluster, a master that does not reach most of the others takes no writes anyway.
    """
    replicas = int(info.get("connected_slaves", 0))
    watched = split_url(target.url).scheme.endswith("+sentinel")
    in_cluster = int(info.get("cluster_enabled", 0))
    if info.get("role") != "master" or in_cluster or not (replicas or watched):
        return []
    try:
        reply: Mapping[Any, Any] = await client.config_get("min-*")
    except ResponseError as error:  # denied, or a service does not have the command
        text = f"min-replicas-to-write cannot be checked: {error}"
        advice = "ACL SETUSER ... +config|get, or look there yourself"
        return [unknown("two masters", text, advice)]
    return [of_masters({as_text(key): as_text(value) for key, value in reply.items()}, replicas)]


def of_masters(settings: Mapping[str, str], replicas: int) -> Finding:
    """The finding for a master with *replicas* connected, from its *settings*."""
    count, lag = (_setting(settings, which) for which in ("to-write", "max-lag"))
    needed = max(1, (replicas + 1) // 2)  # the others are too few for two masters
    advice = f"min-replicas-to-write {needed} and min-replicas-max-lag {GOOD_LAG}, on all servers"
    advice += " that may become the master"
    if replicas < 2:
        advice += "; and two replicas, because a master that lost its only one refuses writes"
    if not count or not lag:
        text = "min-replicas-to-write is off: a master that is still alive after a failover grants"
        text += " permits alongside the new one, for as long as clients reach it"
        return note("two masters", text, advice)
    if count < needed:
        text = f"min-replicas-to-write is {count}, with {replicas} replicas: a replaced master may"
        text += f" keep {count}, and grant permits alongside the new one"
        return note("two masters", text, advice)
    text = f"a master refuses writes {lag + LATE} s after it is left with fewer than {count}"
    text += " replicas"
    if lag > LARGE_LAG:
        text += ": until then it may grant permits alongside a new master"
        return note("two masters", text, advice)
    return ok("two masters", text)


def _setting(settings: Mapping[str, str], which: str) -> int:
    """A setting under its name, or its former one."""
    return int(settings.get(f"min-replicas-{which}", settings.get(f"min-slaves-{which}", "0")))


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
