"""As much of Redis as the scripts use, in this process's memory, on a clock that its owner moves.

Scripts run in Lua 5.1, as in Redis. Strings, hashes and sorted sets have the types, the order, the
expiries and the error replies of Redis. Commands and options that no script uses are missing.
"""

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

_SETUP = b"""
local ask = ...
redis = {
  call = function(...)
    local reply = ask(...)
    if type(reply) == 'table' and reply.err then error(reply) end
    return reply
  end,
  pcall = ask,
  error_reply = function(text) return { err = text } end,
  status_reply = function(text) return { ok = text } end,
}
return function(text)
  local script = assert(loadstring(text, '=script'))
  return function(keys, arguments)
    KEYS, ARGV = keys, arguments
    local ran, reply = pcall(script)
    if ran or type(reply) == 'table' then return reply end
    return { err = 'ERR ' .. tostring(reply) }
  end
end
"""


class ErrorReply(Exception):
    """An error reply."""


class Status(bytes):
    """A status reply, which is a table to a script."""


@dataclass(slots=True)
class SortedSet:
    """Members in the order of their scores, and of their bytes if the scores are equal."""

    scores: dict[bytes, float] = field(default_factory=dict[bytes, float])
    rows: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, score: float, member: bytes) -> bool:
        new = not self.remove(member)
        self.scores[member] = score
        insort(self.rows, (score, member))
        return new

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.rows[bisect_left(self.rows, (score, member))]
        return True

    def by_score(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        start = (bisect_right if low[:1] == b"(" else bisect_left)(
            self.rows, _bound(low), key=_score
        )
        end = (bisect_left if high[:1] == b"(" else bisect_right)(
            self.rows, _bound(high), key=_score
        )
        return self.rows[start:end]

    def by_text(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        """Rows between two texts, if all scores are equal."""
        start, end = self._place(low, b"("), self._place(high, b"[")
        return self.rows[start:end]

    def _place(self, bound: bytes, after: bytes) -> int:
        """How many rows come before *bound*, with its own if it begins with *after*."""
        if bound in (b"-", b"+"):
            return len(self) * (bound == b"+")
        if bound[:1] not in (b"[", b"("):
            raise ErrorReply("ERR min or max not valid string range item")
        return (bisect_right if bound[:1] == after else bisect_left)(
            self.rows, bound[1:], key=_member
        )


def _bound(text: bytes) -> float:
    text = text.removeprefix(b"(")
    return _float(text, "min or max is not a float") if text else 0.0


_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")
_FLOAT = re.compile(rb"(?i)[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity)")
_score = itemgetter(0)
_member = itemgetter(1)

Value = bytes | dict[bytes, bytes] | SortedSet
RawArgument = bytes | str | int
RawReply = int | bytes | list[bytes] | list[bytes | None] | None
Rows = list[tuple[float, bytes]]
Snapshot = dict[bytes, tuple[Value, int | None]]
T = TypeVar("T", bytes, dict[bytes, bytes], SortedSet)
Command = TypeVar("Command", bound=Callable[..., Any])

_COMMANDS: dict[bytes, Callable[..., Any]] = {}
_ARITIES: dict[bytes, tuple[float, float]] = {}  # least and most arguments


def _command(function: Command) -> Command:
    """Let scripts call *function* by its name, with as many arguments as it takes."""
    *named, last = signature(function).parameters.values()
    takes = len(named) + (last.name != "options")
    most = math.inf if last.kind is last.VAR_POSITIONAL else takes
    name = function.__name__.rstrip("_").upper().encode()
    _COMMANDS[name], _ARITIES[name] = function, (takes - 1, most - 1)  # without self
    return function


class _Database:
    """Values by their keys, with their expiries, and the commands for them."""

    def __init__(self) -> None:
        self._now_us = 0  # of the script that runs
        self._values: dict[bytes, Value] = {}
        self._expiries: dict[bytes, int] = {}  # in milliseconds

    def snapshot(self) -> Snapshot:
        """A copy of all values and expiries."""
        return {k: (_copied(v), self._expiries.get(k)) for k, v in self._values.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Forget everything but what *snapshot* has."""
        self._values = {key: _copied(value) for key, (value, _) in snapshot.items()}
        self._expiries = {key: at for key, (_, at) in snapshot.items() if at is not None}

    def _get(self, key: bytes, kind: type[T]) -> T | None:
        if not self._exists(key):
            return None
        value = self._values[key]
        if isinstance(value, kind):
            return value
        raise ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")

    def _made(self, key: bytes, kind: type[T]) -> T:
        """The value of *key*, which is made if there is none."""
        value = self._get(key, kind)
        if value is None:
            value = self._values[key] = kind()
        return value

    def _exists(self, key: bytes) -> bool:
        if self._expiries.get(key, math.inf) < self._now_us // 1000:
            self._remove(key)
        return key in self._values

    def _remove(self, key: bytes) -> bool:
        self._expiries.pop(key, None)
        return self._values.pop(key, None) is not None

    # -- keys and strings

    @_command
    def exists(self, *keys: bytes) -> int:
        return sum(map(self._exists, keys))

    @_command
    def del_(self, *keys: bytes) -> int:
        return sum(self._remove(key) for key in keys if self._exists(key))

    @_command
    def unlink(self, *keys: bytes) -> int:
        return self.del_(*keys)

    @_command
    def pexpire(self, key: bytes, ms: bytes) -> int:
        left, now = _integer(ms), self._now_us // 1000
        if abs(now + left) >= 2**63:
            raise ErrorReply("ERR invalid expire time in 'pexpire' command")
        if not self._exists(key):
            return 0
        self._expiries[key] = now + left
        return 1 if left > 0 else int(self._remove(key))

    @_command
    def pexpiretime(self, key: bytes) -> int:
        return self._expiries.get(key, -1) if self._exists(key) else -2

    @_command
    def pttl(self, key: bytes) -> int:
        expires_at = self.pexpiretime(key)
        return expires_at if expires_at < 0 else expires_at - self._now_us // 1000

    @_command
    def get(self, key: bytes) -> bytes | None:
        return self._get(key, bytes)

    @_command
    def set(self, key: bytes, value: bytes) -> Status:
        self._remove(key)
        self._values[key] = value
        return Status(b"OK")

    # -- hashes

    @_command
    def hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self._get(key, dict) or {}).get(field)

    @_command
    def hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return [*map((self._get(key, dict) or {}).get, fields)]

    @_command
    def hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in (self._get(key, dict) or {}).items() for part in pair]

    @_command
    def hlen(self, key: bytes) -> int:
        return len(self._get(key, dict) or ())

    @_command
    def hset(self, key: bytes, *pairs: bytes) -> int:
        _in_pairs(pairs)
        value = self._made(key, dict)
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(value) - before

    @_command
    def hdel(self, key: bytes, *fields: bytes) -> int:
        value = self._get(key, dict) or {}
        removed = sum(value.pop(field, None) is not None for field in fields)
        if removed and not value:
            self._remove(key)
        return removed

    # -- sorted sets

    def _sorted(self, key: bytes) -> SortedSet:
        return self._get(key, SortedSet) or _EMPTY

    def _rows(
        self, key: bytes, by: Callable[[SortedSet, bytes, bytes], Rows], low: bytes, high: bytes
    ) -> Rows:
        """The rows between two bounds, which are refused before a value of another type is."""
        by(_EMPTY, low, high)
        return by(self._sorted(key), low, high)

    @_command
    def zadd(self, key: bytes, *pairs: bytes) -> int:
        _in_pairs(pairs)
        scores = [*map(_float, pairs[::2])]  # all of them, before the first is changed
        add = self._made(key, SortedSet).add
        return sum(map(add, scores, pairs[1::2]))

    @_command
    def zrem(self, key: bytes, *members: bytes) -> int:
        value = self._sorted(key)
        removed = sum(map(value.remove, members))
        if removed and not value:
            self._remove(key)
        return removed

    @_command
    def zcard(self, key: bytes) -> int:
        return len(self._sorted(key))

    @_command
    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        return _text(self._sorted(key).scores.get(member))

    @_command
    def zrank(self, key: bytes, member: bytes) -> int | None:
        value = self._sorted(key)
        score = value.scores.get(member)
        return None if score is None else bisect_left(value.rows, (score, member))

    @_command
    def zmscore(self, key: bytes, *members: bytes) -> list[bytes | None]:
        return [*map(_text, map(self._sorted(key).scores.get, members))]

    @_command
    def zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len(self._rows(key, SortedSet.by_score, low, high))

    @_command
    def zlexcount(self, key: bytes, low: bytes, high: bytes) -> int:
        return len(self._rows(key, SortedSet.by_text, low, high))

    @_command
    def zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes | None]:
        (first, last), choose = map(_integer, (start, stop)), _choice(options, b"WITHSCORES")
        rows = self._sorted(key).rows
        first = first if first >= 0 else max(0, len(rows) + first)
        last = last if last >= 0 else len(rows) + last
        return choose(rows[first : last + 1])

    @_command
    def zrangebyscore(
        self, key: bytes, low: bytes, high: bytes, *options: bytes
    ) -> list[bytes | None]:
        choose = _choice(options, b"WITHSCORES", b"LIMIT")
        return choose(self._rows(key, SortedSet.by_score, low, high))

    @_command
    def zrangebylex(
        self, key: bytes, low: bytes, high: bytes, *options: bytes
    ) -> list[bytes | None]:
        choose = _choice(options, b"LIMIT")
        return choose(self._rows(key, SortedSet.by_text, low, high))


class MemoryRedis(_Database):
    """Values and their expiries.

    Args:
        clock_us: gives the time, in microseconds.
        publish: delivers a message to a channel, and returns how many clients received it.
    """

    def __init__(
        self, clock_us: Callable[[], int], publish: Callable[[bytes, bytes], int]
    ) -> None:
        super().__init__()
        self._clock_us = clock_us
        self._publish = publish
        self._lua = _lua_runtime()
        self._compile: Any = self._lua.execute(_SETUP, self._ask)
        self._scripts: dict[str, Any] = {}

    def eval(self, script: str, *keys_and_arguments: RawArgument) -> Any:
        """Run *script*, with the number of its keys, the keys and the arguments of ``EVAL``.

        Raises:
            ErrorReply: the reply is an error.
        """
        self._now_us = self._clock_us()
        count, *parts = (
            p if isinstance(p, bytes) else str(p).encode() for p in keys_and_arguments
        )
        keys, arguments = parts[: int(count)], parts[int(count) :]
        run, table = self._scripts.get(script), self._lua.table_from
        if run is None:
            run = self._scripts[script] = self._compile(script.encode())
        reply = self._reply(run(table(keys), table(arguments)))
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def command(self, name: str, *arguments: RawArgument) -> Any:
        """Carry out one command of a client.

        Raises:
            ErrorReply: the reply is an error.
        """
        self._now_us = self._clock_us()
        return _COMMANDS[name.encode()](self, *map(_bytes, arguments))

    # -- between Lua and Python

    def _ask(self, *words: Any) -> Any:
        """Carry out a command of a script."""
        try:
            reply = self._asked(*map(_argument, words))
        except ErrorReply as refused:
            return self._lua.table_from({b"err": str(refused).encode()})
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": reply})
        if isinstance(reply, list):
            return self._lua.table_from([False if part is None else part for part in reply])
        return False if reply is None else reply

    def _asked(self, name: bytes = b"", *arguments: bytes) -> RawReply:
        name = name.upper()
        if (command := _COMMANDS.get(name)) is None:
            raise ErrorReply("ERR Unknown Redis command called from script")
        least, most = _ARITIES[name]
        if not least <= len(arguments) <= most:
            raise ErrorReply("ERR Wrong number of args calling Redis command from script")
        reply: RawReply = command(self, *arguments)
        return reply

    def _reply(self, said: Any) -> Any:
        """What a client receives for what a script returned. An error may be a part of it."""
        if said is None or said is False:
            return None
        if said is True:
            return 1
        if isinstance(said, bytes):
            return said
        if isinstance(said, int | float):
            return int(said) if abs(said) < 2**63 else -(2**63)  # also for nan, as in C
        if (error := said[b"err"]) is not None:
            return ErrorReply(error.decode())
        if (status := said[b"ok"]) is not None:
            return status
        parts: list[Any] = []
        while (part := said[len(parts) + 1]) is not None:  # as in Redis, to the first nil
            parts.append(self._reply(part))
        return parts

    # -- commands that are of no key

    @_command
    def time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self._now_us, 1_000_000)]

    @_command
    def publish(self, channel: bytes, message: bytes) -> int:
        return self._publish(channel, message)

    @_command
    def spublish(self, channel: bytes, message: bytes) -> int:
        return self._publish(channel, message)


def _lua_runtime() -> Any:
    try:
        lua51: Any = import_module("lupa.lua51")  # whose types are known to one checker of two
    except ImportError as error:
        raise ImportError(
            "MemoryBackend runs the Lua scripts in memory, which needs lupa: "
            "pip install 'redsem-async[testing]'"
        ) from error
    return lua51.LuaRuntime(encoding=None, register_eval=False)


_EMPTY = SortedSet()


def _copied(value: Value) -> Value:
    if not isinstance(value, SortedSet):
        return value if isinstance(value, bytes) else dict(value)
    return SortedSet(dict(value.scores), list(value.rows))


def _bytes(argument: RawArgument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()


def _argument(value: Any) -> bytes:
    """A script's argument of a command, as Redis converts it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ErrorReply("ERR Lua redis lib command arguments must be strings or integers")
    return b"%.17g" % value


def _integer(text: bytes) -> int:
    if _INTEGER.fullmatch(text) and -(2**63) <= (number := int(text)) < 2**63:
        return number
    raise ErrorReply("ERR value is not an integer or out of range")


def _float(text: bytes, refusal: str = "value is not a valid float") -> float:
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isfinite(number) or b"n" in text.lower():
            return number
    raise ErrorReply(f"ERR {refusal}")


def _in_pairs(arguments: Sequence[bytes]) -> None:
    if len(arguments) % 2:
        raise ErrorReply("ERR syntax error")


def _text(score: float | None) -> bytes | None:
    if score is None:
        return None
    return b"%d" % score if score.is_integer() and abs(score) < 1e17 else b"%.17g" % score


def _choice(options: Sequence[bytes], *known: bytes) -> Callable[[Rows], list[bytes | None]]:
    """What a command with these options returns of the rows that it found."""
    words, scored, start, count = iter(options), False, 0, -1
    for word in map(bytes.upper, words):
        limits = [*islice(words, 2 if word == b"LIMIT" else 0)]
        if word not in known or (word == b"LIMIT" and len(limits) < 2):
            raise ErrorReply("ERR syntax error")
        if limits:
            start, count = map(_integer, limits)
        else:
            scored = True

    def choose(rows: Rows) -> list[bytes | None]:
        if start < 0:
            return []
        rows = rows[start : start + count] if count >= 0 else rows[start:]
        if scored:
            return [part for score, member in rows for part in (member, _text(score))]
        return [member for _, member in rows]

    return choose
