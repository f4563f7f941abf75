"""Calls as commands, and raw replies as typed ones: where positions become names, once."""

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import redis.exceptions as errors

from ._keys import Address
from ._protocol import (
    Abandon,
    Acquire,
    Adopt,
    Adopted,
    Answered,
    Call,
    Clear,
    Cleared,
    Confirm,
    Detach,
    Fault,
    Granted,
    Heartbeat,
    HeldEntry,
    Hint,
    Holding,
    Introduction,
    LineEntry,
    Message,
    Reap,
    Refresh,
    Release,
    Reply,
    Request,
    Restore,
    SetLimit,
    Standing,
    Status,
    Taken,
    Trouble,
)
from ._scripts import LIGHT_KEYS, Script, script

Argument = str | int


class Wire:
    """The scripts of one semaphore.

    *wall_clock* gives microseconds, for semaphores that are kept by their clients' clocks.
    """

    def __init__(
        self, address: Address, wall_clock: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self.address = address
        self.shard: str = address.keys[0].removesuffix(":holders")
        self.asking: bool = False  # letters go to a node that the semaphore is on its way to
        self._fair = address.mode == "fair"
        self._kind = address.kind
        self._keys = _counted(address.keys)
        self._light_keys = _counted(address.keys[:LIGHT_KEYS])
        self._heavy_keys = _counted(address.keys[: LIGHT_KEYS + 1])
        self._wall_clock = wall_clock
        self.recovers: bool = False

    def recover(self) -> None:
        """From now on, scripts look for a loss of state."""
        self.recovers = True
        self._keys = _counted((*self.address.keys, *self.address.recovery_keys))

    def command(
        self,
        call: Call,
        tag: int,
        hub: str,
        sharded: bool = False,  # noqa: FBT001, FBT002 - once a letter: a keyword costs
    ) -> tuple[Script, tuple[Argument, ...]]:
        """The script for *call*, with the number of its keys, the keys, and its arguments.

        *sharded*: its messages stay within the shard of a cluster.
        """
        keys = self._keys
        if isinstance(call, Refresh):
            keys = self._heavy_keys if call.heavy else self._light_keys
        clock = "" if self.address.clock == "server" else self._wall_clock()
        operation, own = self._arguments(call)
        arguments = (*keys, tag, clock, self._kind, hub, *own)
        return script(self.address.mode, operation, sharded), arguments

    def _arguments(  # noqa: C901 - a branch for each kind of call
        self, call: Call
    ) -> tuple[str, tuple[Argument, ...]]:
        fair = self._fair
        match call:
            case Acquire():
                beside: tuple[Argument, int]
                if fair:
                    beside = (-1 if call.max_waiters is None else call.max_waiters, call.after)
                else:
                    waits = f"{call.waits}:{call.highest}" if call.waits else 0
                    beside = (waits, call.hinted)
                head = (call.lease_ms, call.limit, *beside, *_introduce(call.introduction))
                return "acquire", (*head, *_asked(call))
            case Release(owner, numbers, keep):
                return "release", (owner, keep, *numbers)
            case Refresh(numbers, lease_ms, heavy):
                if not heavy:
                    return "refresh", (lease_ms, *numbers)
                weighed: list[Argument] = [f"{n}:{heavy[n]}" if n in heavy else n for n in numbers]
                return "refresh", (lease_ms, *weighed)
            case Restore(permits, lease_ms, introduction):
                back = (f"{number}:{token}:{weight}" for number, token, weight in permits)
                return "restore", (lease_ms, *_introduce(introduction), *back)
            case Confirm():
                raise AssertionError("no script waits for replicas")
            case Abandon(requests, void):
                return "abandon", (void, *(_queued(r) if fair else r.number for r in requests))
            case Heartbeat(lease_ms, requests, limit, waits, hinted, introduction, number):
                common = (lease_ms, *_introduce(introduction))
                if fair:
                    return "heartbeat", (*common, *map(_queued, requests))
                return "heartbeat", (*common, limit, waits, hinted, number)
            case Adopt(owner, old, new, lease_ms, introduction, number):
                return "adopt", (lease_ms, *_introduce(introduction), owner, old, new, number)
            case Detach(held, expires_ms, number):
                return "detach", (held, expires_ms, number)
            case Status(most):
                return "status", (most,)
            case SetLimit(limit, number):
                return "set_limit", ("" if limit is None else limit, number)
            case Reap():
                return "reap", ()
            case Clear(number):
                return "clear", (number,)

    def reply(self, call: Call, raw: Sequence[Any]) -> Answered:
        """The reply to *call*; *raw* begins with the tag."""
        fair = self._fair
        match call:
            case Acquire() if len(raw) == 3:  # all granted, with tokens in a row
                tokens = range(raw[1], raw[1] + len(call.numbers))
                return Reply(tokens, room=0 if fair else raw[2])
            case Release() if len(raw) == 1:  # all were held
                return Reply([1] * len(call.numbers))
            case Acquire() | Heartbeat() | Release() | Abandon() | SetLimit() | Reap():
                _, next_ms, waiting, mine, *answers = raw
                room = 0
                if not fair and isinstance(call, Acquire | Heartbeat):
                    room, *answers = answers
                return Reply(
                    answers=[_answer(answer) for answer in answers],
                    next_ms=None if next_ms < 0 else next_ms,
                    waiting=waiting,
                    granted=list(zip(mine[::2], mine[1::2], strict=True)) if fair else (),
                    hinted=0 if fair or not mine else mine[0],
                    room=room,
                )
            case Refresh() | Restore() | Detach():
                return Reply(answers=raw[1:])
            case Confirm():
                return Reply(answers=raw)
            case Adopt():
                if len(raw) == 2:
                    return Adopted(None)
                return Adopted(Holding(int(raw[1]), raw[2]), int(raw[3]))
            case Status():
                return _standing(raw, fair=fair)
            case Clear():
                return Reply()


def _counted(keys: Sequence[str]) -> tuple[Argument, ...]:
    return (len(keys), *keys)


def _introduce(introduction: Introduction | None) -> tuple[str, int]:
    return ("", 0) if introduction is None else (introduction.who, int(introduction.deaf))


def _asked(call: Acquire) -> Sequence[Argument]:
    """Requests as an acquire writes them: by number alone when nothing else is to be said."""
    if not call.unusual:
        return call.numbers
    return [
        f"{number}:{call.unusual[number][0]}:{call.unusual[number][1]:d}"
        if number in call.unusual
        else number
        for number in call.numbers
    ]


def _queued(request: Request) -> str:
    """A request as it stands in line."""
    return f"{request.number}:{request.lease_ms}:{request.limit}:{request.permits}"


def _answer(raw: Any) -> int | Holding:
    return raw if isinstance(raw, int) else Holding(int(raw[0]), raw[1])


def _standing(raw: Sequence[Any], *, fair: bool) -> Standing:
    _, cap, held, waiting, now_us, holders, entries, hubs = raw
    line: list[LineEntry] = []
    for entry, value in zip(entries[::2], entries[1::2], strict=True):
        if fair:
            identity, *_, permits = entry.decode().split(":")
            line.append(LineEntry(identity, int(float(value)), int(permits)))
        else:
            line.append(LineEntry(entry.decode(), 0, int(value)))
    return Standing(
        set_limit=None if cap < 0 else cap,
        held=held,
        waiting=waiting,
        now_us=now_us,
        holders=[
            HeldEntry(identity.decode(), left, int(token), int(permits))
            for identity, left, token, permits in zip(
                holders[::4], holders[1::4], holders[2::4], holders[3::4], strict=True
            )
        ],
        line=line,
        hubs={
            hub.decode(): who.decode("utf-8", "replace")
            for hub, who in zip(hubs[::2], hubs[1::2], strict=True)
        },
    )


def message(raw: bytes) -> Message | None:
    """What a message says, ``kind what name``; None when it says nothing we know."""
    try:
        kind, what, name = raw.decode().split(" ", 2)
        match kind:
            case "granted":
                return Granted(name, [_grant(*part.split(":")) for part in what.split(",")])
            case "gone":
                return Taken(name, [_whole(number) for number in what.split(",")])
            case "hint":
                return Hint(name, _whole(what, most=_MOST_HINTED))
            case "cleared":
                return Cleared(name)
            case _:
                return None
    except (ValueError, TypeError):
        return None


_MOST_HINTED = 1_000_000_000
_MOST_MS = 10**15
_EXACT = 2**53  # the highest whole number that Lua can tell from the next


def _grant(number: str, token: str, left_ms: str) -> tuple[int, Holding]:
    """A grant of a message: a TypeError where it has more parts than these, or fewer."""
    return _whole(number, least=1), Holding(_whole(token), _whole(left_ms, most=_MOST_MS))


def _whole(text: str, *, least: int = 0, most: int = _EXACT) -> int:
    """A number as scripts write it: digits alone, and not more than anything has."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ValueError("no number that a script would write")
    number = int(text)
    if not least <= number <= most:
        raise ValueError("a number that nothing has")
    return number


def who_text(**facts: object) -> str:
    """Who a hub is, as it is kept in Redis for ``status``."""
    return json.dumps(facts, separators=(",", ":"))


def who_facts(text: str) -> dict[str, object]:
    """What `who_text` was given; nothing when the text is not its."""
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, object]", facts) if isinstance(facts, dict) else {}


_MISMATCH = re.compile(r"\bMODE ((?:fair|zset) (?:server|local)) (\d+) (\d+) (-?\d+)")

# A script's own error arrives bare (7.0 on), or wrapped and prefixed (6.2): look for the word.
_TROUBLES = (
    (Trouble.AGAIN, re.compile(r"\b(NOSCRIPT|REORDERED|STRANGER|VOID)\b")),
    (Trouble.NO_MEMORY, re.compile(r"\bOOM\b")),
    (Trouble.MISMATCH, _MISMATCH),
    (Trouble.DEMOTED, re.compile(r"\b(READONLY|MASTERDOWN)\b")),
    (Trouble.UNSETTLED, re.compile(r"\b(TRYAGAIN|CLUSTERDOWN)\b")),
    (Trouble.BUSY, re.compile(r"\b(BUSY|LOADING|NOREPLICAS|MISCONF|UNKILLABLE)\b")),
)
_REDIRECTION = re.compile(r"(MOVED|ASK) \d+ (.*):(\d+)\Z")
_CLASSES: tuple[tuple[str, type[errors.RedisError]], ...] = (
    ("NOPERM", errors.NoPermissionError),
    ("NOAUTH", errors.AuthenticationError),
    ("OOM", errors.OutOfMemoryError),
    ("READONLY", errors.ReadOnlyError),
    ("LOADING", errors.BusyLoadingError),
    ("NOSCRIPT", errors.NoScriptError),
)

# A server that knows a command by another name, or not at all, quotes what it was sent; and ids
# of hubs are what makes ids of permits hard to guess.
_QUOTED = re.compile(r",? with args beginning with.*|\b[0-9a-f]{32}\b(\.\d+)?", re.DOTALL)


def error_of(text: str) -> errors.RedisError:
    """redis-py's error for an error reply, without the arguments that it may quote."""
    text = _QUOTED.sub("…", text)
    for word, kind in _CLASSES:
        if re.search(rf"\b{word}\b", text):
            return kind(text)
    return errors.ResponseError(text)


def fault_of(error: Exception) -> Fault:
    """What an error reply means for the call that got it."""
    text = str(error)
    if redirection := _REDIRECTION.match(text):
        word, host, port = redirection.groups()
        return Fault(Trouble[word], error, (host, int(port)))
    for trouble, pattern in _TROUBLES:
        if pattern.search(text):
            return Fault(trouble, error)
    return Fault(Trouble.REFUSED, error)


class Use(NamedTuple):
    """How a name is used that is in use in another mode or by another clock.

    Attributes:
        kind: mode and clock in use.
        held: whether permits are held.
        unused: whether nobody holds, and no process waits or has asked for anything of late.
        free_in: seconds until the name is free if nobody uses it; None when that is never.
    """

    kind: str
    held: bool
    unused: bool
    free_in: float | None


def use_of(error: Exception) -> Use:
    """What an error of trouble MISMATCH says."""
    found = _MISMATCH.search(str(error))
    assert found is not None, "this is what makes it one of that trouble"
    kind, held, alive, left_ms = found[1], int(found[2]), int(found[3]), int(found[4])
    return Use(kind, held > 0, held == alive == 0, left_ms / 1000 if left_ms >= 0 else None)
