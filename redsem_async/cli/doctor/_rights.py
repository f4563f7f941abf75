"""Finds the documented commands that the user may not run, by running each of them."""

import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from redsem_async._redis.acl import ADDITIONS, COMMANDS, Addition

from ._finding import Finding, note, ok, problem

_PATTERN = re.compile(r"\b(key|channel)s?\b")
_REPLY_TIMEOUT = 2.0  # seconds, for a subscription


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
        "zscore": (scores, "member"),
        "zrem": (scores, "member"),
        "del": (text, table, scores),
    }


async def check_rights(client: Any, prefix: str, *, cluster: bool) -> list[Finding]:
    """The permissions that the user of *client* lacks on one server."""
    denied: list[str] = []
    patterns: set[str] = set()
    for command, arguments in probes(prefix).items():
        denial = await _denial(client, command, *arguments)
        if denial is not None:
            what = _PATTERN.search(denial)
            patterns |= {what[1]} if what else set()
            denied += [] if what else [command]
    subscribe = "ssubscribe" if cluster else "subscribe"
    denial = await _subscription(client, subscribe, prefix)
    if denial is not None:
        what = _PATTERN.search(denial)
        patterns |= {what[1]} if what else set()
        denied += [] if what else [subscribe]
    if cluster:
        for command, arguments in {
            "asking": (),
            "cluster|slots": (),
            "spublish": (f"{prefix}:{{doctor}}:@doctor", "hello"),
        }.items():
            denial = await _denial(client, *command.upper().split("|"), *arguments)
            denied += [command] if denial is not None and not _PATTERN.search(denial) else []
    return [*_findings(denied, patterns, prefix), *await _additions(client)]


def _findings(denied: Collection[str], patterns: Collection[str], prefix: str) -> list[Finding]:
    found: list[Finding] = []
    if denied:
        what = ", ".join(command.upper().replace("|", " ") for command in sorted(denied))
        allow = " ".join(f"+{command}" for command in sorted(denied))
        only_late = set(denied) <= {"publish", "spublish", "subscribe", "ssubscribe"}
        harm = ": waiters are served late, at heartbeats" if only_late else ""
        found.append(problem("rights", f"denied: {what}{harm}", f"ACL SETUSER ... {allow}"))
    if "key" in patterns:
        text = f"keys with prefix {prefix!r} are denied"
        found.append(problem("rights", text, f"ACL SETUSER ... ~{prefix}:*"))
    if "channel" in patterns:
        text = (
            f"channels with prefix {prefix!r} are denied: waiters are served late, at heartbeats"
        )
        found.append(problem("rights", text, f"ACL SETUSER ... &{prefix}:*"))
    return found or [ok("rights", f"all {len(COMMANDS)} required commands are allowed")]


async def _additions(client: Any) -> list[Finding]:
    """The additional permissions that some options require."""
    found: list[Finding] = []
    uses: tuple[tuple[Addition, str, tuple[str | int, ...]], ...] = (
        ("grace", "recovery='grace'", ("INFO", "server")),
        ("min_replicas", "min_replicas", ("WAIT", 0, 1)),
    )
    for addition, use, words in uses:
        if await _denial(client, *words) is not None:
            [command] = ADDITIONS[addition]
            text = f"{command.upper()} is denied: {use} does not work"
            found.append(note("rights", text, f"to use it: ACL SETUSER ... +{command}"))
    return found


async def _denial(client: Any, *words: str | int) -> str | None:
    """The server's error if a command is denied; None if it is allowed."""
    try:
        await client.execute_command(*words)
    except NoPermissionError as error:
        return str(error)
    except ResponseError:
        return None  # allowed, but it failed: NOSCRIPT, for example
    return None


async def _subscription(client: Any, command: str, prefix: str) -> str | None:
    pubsub = client.pubsub()
    channel = f"{prefix}:{{doctor}}:@doctor" if command == "ssubscribe" else f"{prefix}:@doctor"
    try:
        await pubsub.execute_command(command.upper(), channel)
        await pubsub.parse_response(block=False, timeout=_REPLY_TIMEOUT)
    except NoPermissionError as error:
        return str(error)
    except ResponseError:
        return None
    finally:
        with suppress(RedisError):
            await pubsub.aclose()
    return None
