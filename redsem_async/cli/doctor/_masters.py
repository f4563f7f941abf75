"""For how long two masters may take writes, where a failover replaces one that lives."""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from redsem_async._redis.sentinels import split_url
from redsem_async._redis.stored import as_text
from redsem_async.cli._target import Target

from ._finding import Finding, note, ok, unknown

# A master that needs replicas takes no writes once it heard of too few of them for longer than
# `min-replicas-max-lag`. It counts that in whole seconds, and looks once a second.
LATE = 2  # seconds
LARGE_LAG = 5  # seconds: half of a lease, by default
GOOD_LAG = 3  # seconds: a replica reports every second, and may be late

_ABOUT = "two masters"


async def two_masters(client: Any, target: Target, info: Mapping[str, Any]) -> list[Finding]:
    """A finding where *client* reaches a master that may be replaced while it takes writes.

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
        return [unknown(_ABOUT, text, "ACL SETUSER ... +config|get, or look there yourself")]
    return [verdict_on({as_text(key): as_text(value) for key, value in reply.items()}, replicas)]


def verdict_on(settings: Mapping[str, str], replicas: int) -> Finding:
    """The finding for a master with *replicas* connected, from its *settings*."""
    count, lag = (_setting(settings, which) for which in ("to-write", "max-lag"))
    needed = max(1, (replicas + 1) // 2)  # the others are too few for two masters
    advice = (
        f"min-replicas-to-write {needed} and min-replicas-max-lag {GOOD_LAG}, on all servers that"
        " may become the master"
    )
    if replicas < 2:
        advice += "; and two replicas, because a master that lost its only one refuses writes"
    if not count or not lag:
        return note(
            _ABOUT,
            "min-replicas-to-write is off: a master that is still alive after a failover grants"
            " permits beside the new one, for as long as clients reach it",
            advice,
        )
    if count < needed:
        return note(
            _ABOUT,
            f"min-replicas-to-write is {count}, with {replicas} replicas: a replaced master may"
            f" keep {count}, and grant permits beside the new one",
            advice,
        )
    text = (
        f"a master refuses writes {lag + LATE} s after it is left with fewer than {count} replicas"
    )
    if lag > LARGE_LAG:
        return note(_ABOUT, f"{text}: until then it may grant permits beside a new master", advice)
    return ok(_ABOUT, text)


def _setting(settings: Mapping[str, str], which: str) -> int:
    """A setting under its name, or its former one."""
    return int(settings.get(f"min-replicas-{which}", settings.get(f"min-slaves-{which}", "0")))
