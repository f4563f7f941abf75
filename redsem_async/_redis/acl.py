"""What a Redis user has to be allowed for semaphores, and nothing beyond it.

Documentation and tests read it from here, so that what is documented, tested and sent agrees.
"""

import re
from collections.abc import Iterable
from typing import Literal

Addition = Literal["client_name", "cluster", "database", "no_time", "sharded"]

COMMANDS = (
    # what the hub's connection sends (HELLO and AUTH are open to every user)
    *("eval", "evalsha", "subscribe"),
    # what its scripts call
    *("del", "exists", "get", "hdel", "hget", "hgetall", "hlen", "hmget", "hset"),
    *("pexpire", "pttl", "publish", "set", "time", "unlink"),
    *("zadd", "zcard", "zcount", "zlexcount", "zmscore"),
    *("zrange", "zrangebylex", "zrangebyscore", "zrank", "zrem", "zscore"),
)

ADDITIONS: dict[Addition, tuple[str, ...]] = {
    "client_name": ("client|setname",),  # a client that was given one
    "cluster": ("asking", "cluster|slots"),
    "database": ("select",),  # another than 0
    "no_time": ("pexpiretime",),  # a server that refuses TIME in scripts
    "sharded": ("spublish", "ssubscribe", "sunsubscribe"),  # a cluster of Redis 7.0 or newer
}
"""Commands for what not every client uses."""

HARMLESS_DENIALS = ("client|setinfo", "info")
"""Commands that we do without if they are denied. redis-py describes itself with one, for which
servers before 7.2 take no rule. The other asks whether the server evicts keys."""


def acl_rules(prefix: str = "redsem", additions: Iterable[Addition] = ()) -> tuple[str, ...]:
    """Rules for ACL SETUSER that let a user do what semaphores under *prefix* need.

    They remove whatever keys, channels and commands the user had before.
    """
    # A blank cannot stand in a pattern. Other characters with a meaning there are escaped.
    pattern = re.sub(r"[\s\0]", "?", re.sub(r"([][*?\\])", r"\\\1", prefix))
    commands = [*COMMANDS, *(command for which in additions for command in ADDITIONS[which])]
    allowed = (f"+{command}" for command in sorted(commands))
    return (
        *("resetkeys", "resetchannels", "-@all"),
        *(f"~{pattern}:*", f"&{pattern}:*"),
        *allowed,
    )
