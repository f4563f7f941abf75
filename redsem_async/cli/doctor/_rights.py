"""Finds the documented commands that the user may not run, by running each of them."""

import re
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redsem_async._redis.acl import COMMANDS
from redsem_async.cli._target import Target

from ._finding import Finding, ok, problem

_PATTERN = re.compile(r"\b(key|channel)s?\b")
_REPLY_TIMEOUT = 2.0  # seconds, for a subscription
_LATE = ": waiters are served late, at heartbeats"
_MESSAGES = {"publish", "spublish", "subscribe", "ssubscribe"}


def probes(prefix: str) -> dict[str, tuple[str | int, ...]]:
    """A harmless call of each command. The last one deletes all keys of the others."""
    stem = f"{prefix}:{{doctor-{secrets.token_hex(4)}}}"
    text, table, scores = (f"{stem}:{kind}" for kind in ("text", "table", "scores"))
    return {
        "eval": ("return 1", 0),
        "evalsha": ("0" * 40, 0),
        "time": (),
        "publish": (f"{prefix}:@doctor", "hello"),
        "set": (text, 1, "PX", 10_000),
        "get": (text,),
        "exists": (text,),
        "pexpire": (text, 10_000),
        "pttl": (text,),
        "unlink": (text,),
        "hset": (table, "field", 1),
        "hget": (table, "field"),
        "hgetall": (table,),
        "hlen": (table,),
        "hmget": (table, "field"),
        "hdel": (table, "field"),
        "zadd": (scores, 1, "member"),
        "zcard": (scores,),
        "zcount": (scores, "-inf", "+inf"),
        "zlexcount": (scores, "-", "+"),
        "zmscore": (scores, "member"),
        "zrange": (scores, 0, 0),
        "zrangebylex": (scores, "-", "+"),
        "zrangebyscore": (scores, "-inf", "+inf"),
        "zrank": (scores, "member"),
        "zscore": (scores, "member"),
        "zrem": (scores, "member"),
        "del": (text, table, scores),
    }


async def check_rights(client: Any, target: Target) -> list[Finding]:
    """The permissions that the user of *client* lacks on one server."""
    prefix = target.prefix
    calls, channel, subscribe = probes(prefix), f"{prefix}:@doctor", "subscribe"
    if target.cluster:
        channel, subscribe = f"{prefix}:{{doctor}}:@doctor", "ssubscribe"
        calls |= {"asking": (), "cluster|slots": (), "spublish": (channel, "hello")}
    denials = {
        command: await _denial(client.execute_command(*command.upper().split("|"), *arguments))
        for command, arguments in calls.items()
    }
    denials[subscribe] = await _denial(_subscribed(client, subscribe, channel))
    matches = (_PATTERN.search(denial) for denial in denials.values())
    patterns = {match[1] for match in matches if match}
    denied = sorted(
        command for command, denial in denials.items() if denial and not _PATTERN.search(denial)
    )
    found: list[Finding] = []
    if denied:
        what = ", ".join(command.upper().replace("|", " ") for command in denied)
        allow = " ".join(f"+{command}" for command in denied)
        harm = _LATE if set(denied) <= _MESSAGES else ""
        found.append(problem("rights", f"denied: {what}{harm}", f"ACL SETUSER ... {allow}"))
    for pattern, sign, harm in (("key", "~", ""), ("channel", "&", _LATE)):
        if pattern in patterns:
            text = f"{pattern}s with prefix {prefix!r} are denied{harm}"
            found.append(problem("rights", text, f"ACL SETUSER ... {sign}{prefix}:*"))
    if not found:
        found.append(ok("rights", f"all {len(COMMANDS)} required commands are allowed"))
    return found


async def _denial(call: Awaitable[Any]) -> str:
    """The server's error if a command is denied. Empty if it is allowed."""
    try:
        await call
    except NoPermissionError as error:
        return str(error)
    except ResponseError:
        pass  # allowed, although it failed (with NOSCRIPT, for example)
    return ""


async def _subscribed(client: Any, command: str, channel: str) -> None:
    pubsub = client.pubsub()
    try:
        await pubsub.execute_command(command.upper(), channel)
        await pubsub.parse_response(block=False, timeout=_REPLY_TIMEOUT)
    finally:
        with suppress(RedisError):
            await pubsub.aclose()
