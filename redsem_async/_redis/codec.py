"""Operations as commands, raw replies and push messages as typed ones.

The only place where positions in ARGV and in replies get names.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from redsem_async._core.keys import Address
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    Clear,
    Confirm,
    Detach,
    Heartbeat,
    Operation,
    Reap,
    Refresh,
    Release,
    Request,
    Restore,
    RightRequest,
    SetLimit,
    Status,
)
from redsem_async._protocol.pushes import Cleared, Granted, Hint, Push, Recalled, Revoked
from redsem_async._protocol.replies import (
    AdoptReply,
    AnyReply,
    HeldEntry,
    Holding,
    LineEntry,
    Reply,
    StatusReply,
)

from .scripts import LIGHT_KEYS, Script, script

Argument = str | int


class Codec:
    """The scripts of one semaphore.

    *wall_clock* gives microseconds, for semaphores that are kept by their clients' clocks.
    """

    def __init__(
        self, address: Address, wall_clock: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self.address = address
        self.shard: str = address.keys[0].removesuffix(":holders")
        self._fair = address.mode == "fair"
        self._kind = address.kind
        self._keys = _counted(address.keys)
        self._recovery_keys = _counted((*address.keys, *address.recovery_keys))
        self._light_keys = _counted(address.keys[:LIGHT_KEYS])
        self._heavy_keys = _counted(address.keys[: LIGHT_KEYS + 1])
        self._wall_clock = wall_clock

    def encode(  # positional, because a keyword costs time and this is called for each command
        self,
        operation: Operation,
        tag: int,
        hub: str,
        recovers: bool = False,  # noqa: FBT001, FBT002
        sharded: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Script, tuple[Argument, ...]]:
        """Return the script for *operation*, and the number of its keys, the keys, its arguments.

        *recovers*: the script looks for a loss of state. *sharded*: its push messages stay
        within the shard of a cluster.
        """
        if isinstance(operation, Refresh):
            keys = self._heavy_keys if operation.heavy else self._light_keys
        else:
            keys = self._recovery_keys if recovers else self._keys
        clock = "" if self.address.clock == "server" else self._wall_clock()
        name, own = self._arguments(operation)
        arguments = (*keys, tag, clock, self._kind, hub, *own)
        return script(self.address.mode, name, sharded), arguments

    def _arguments(  # noqa: C901 - a branch for each operation
        self, operation: Operation
    ) -> tuple[str, tuple[Argument, ...]]:
        fair = self._fair
        match operation:
            case Acquire():
                beside: tuple[Argument, int]
                if fair:
                    bound = -1 if operation.max_waiters is None else operation.max_waiters
                    beside = (bound, operation.after)
                else:
                    waits = f"{operation.waits}:{operation.highest}" if operation.waits else 0
                    beside = (waits, operation.hinted)
                described = _described(operation.hub_info)
                right = _right(operation.right)
                head = (operation.lease_ms, operation.limit, *beside, *described, right)
                return "acquire", (*head, *_requests(operation))
            case Release(owner, numbers, keep):
                return "release", (owner, keep, *numbers)
            case Refresh(numbers, lease_ms, heavy):
                if not heavy:
                    return "refresh", (lease_ms, *numbers)
                weighed: list[Argument] = [f"{n}:{heavy[n]}" if n in heavy else n for n in numbers]
                return "refresh", (lease_ms, *weighed)
            case Restore(permits, lease_ms, hub_info):
                back = (f"{number}:{token}:{weight}" for number, token, weight in permits)
                return "restore", (lease_ms, *_described(hub_info), *back)
            case Confirm():
                raise AssertionError("no script waits for replicas")
            case Abandon(requests, void):
                return "abandon", (void, *(_queued(r) if fair else r.number for r in requests))
            case Heartbeat(lease_ms, requests, limit, waits, hinted, hub_info, number, right):
                common = (lease_ms, *_described(hub_info), _right(right))
                if fair:
                    return "heartbeat", (*common, *map(_queued, requests))
                return "heartbeat", (*common, limit, waits, hinted, number)
            case Adopt(owner, old, new, lease_ms, hub_info, number):
                return "adopt", (lease_ms, *_described(hub_info), owner, old, new, number)
            case Detach(held, expires_ms, number):
                return "detach", (held, expires_ms, number)
            case Status(max_entries):
                return "status", (max_entries,)
            case SetLimit(limit, number):
                return "set_limit", ("" if limit is None else limit, number)
            case Reap():
                return "reap", ()
            case Clear(number):
                return "clear", (number,)

    def reply(self, operation: Operation, raw: Sequence[Any]) -> AnyReply:
        """Return the reply to *operation*; *raw* begins with the tag."""
        fair = self._fair
        match operation:
            case Acquire() if len(raw) == 3:  # all granted, with tokens in a row
                tokens = range(raw[1], raw[1] + len(operation.numbers))
                return Reply(tokens, room=0 if fair else raw[2])
            case Release() if len(raw) == 1:  # all were held
                return Reply([1] * len(operation.numbers))
            case Acquire() | Heartbeat() | Release() | Abandon() | SetLimit() | Reap():
                _, next_ms, waiting, mine, *answers = raw
                set_limit, room, right = -1, 0, False
                if isinstance(operation, Acquire | Heartbeat):
                    set_limit, *answers = answers
                    if not fair:
                        room, *answers = answers
                    if operation.right is not None:
                        *answers, last = answers
                        right = bool(last)
                return Reply(
                    answers=[_answer(answer) for answer in answers],
                    next_ms=None if next_ms < 0 else next_ms,
                    waiting=waiting,
                    set_limit=None if set_limit < 0 else set_limit,
                    granted=list(zip(mine[::2], mine[1::2], strict=True)) if fair else (),
                    hinted=0 if fair or not mine else mine[0],
                    room=room,
                    right=right,
                )
            case Refresh() | Restore() | Detach():
                return Reply(answers=raw[1:])
            case Confirm():
                return Reply(answers=raw)
            case Adopt():
                if len(raw) == 2:
                    return AdoptReply(None)
                return AdoptReply(Holding(int(raw[1]), raw[2]), int(raw[3]))
            case Status():
                return _status_reply(raw, fair=fair)
            case Clear():
                return Reply()


def _counted(keys: Sequence[str]) -> tuple[Argument, ...]:
    return (len(keys), *keys)


def _described(hub_info: HubInfo | None) -> tuple[str, int]:
    return ("", 0) if hub_info is None else (hub_info.description, int(hub_info.no_push))


def _right(asked: RightRequest | None) -> str:
    return "" if asked is None else f"{asked.lasts_ms}:{asked.limit}"


def _requests(operation: Acquire) -> Sequence[Argument]:
    """The requests of an acquire: by number alone where they are for one permit and wait."""
    if not operation.unusual:
        return operation.numbers
    return [
        f"{number}:{operation.unusual[number][0]}:{operation.unusual[number][1]:d}"
        if number in operation.unusual
        else number
        for number in operation.numbers
    ]


def _queued(request: Request) -> str:
    """A request as the queue has it."""
    return f"{request.number}:{request.lease_ms}:{request.limit}:{request.permits}"


def _answer(raw: Any) -> int | Holding:
    return raw if isinstance(raw, int) else Holding(int(raw[0]), raw[1])


def _status_reply(raw: Sequence[Any], *, fair: bool) -> StatusReply:
    _, cap, held, waiting, now_us, holders, entries, hubs = raw
    line: list[LineEntry] = []
    for entry, value in zip(entries[::2], entries[1::2], strict=True):
        if fair:
            identity, *_, permits = entry.decode().split(":")
            line.append(LineEntry(identity, int(float(value)), int(permits)))
        else:
            line.append(LineEntry(entry.decode(), 0, int(value)))
    return StatusReply(
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
            hub.decode(): description.decode("utf-8", "replace")
            for hub, description in zip(hubs[::3], hubs[1::3], strict=True)
        },
        reusing={
            hub.decode() for hub, reuses in zip(hubs[::3], hubs[2::3], strict=True) if reuses
        },
    )


def push_of(raw: bytes) -> Push | None:
    """Return the push message ``kind facts name``; None when it is not one of ours."""
    try:
        kind, facts, name = raw.decode().split(" ", 2)
        match kind:
            case "granted":
                return Granted(name, [_grant(*part.split(":")) for part in facts.split(",")])
            case "gone":
                return Revoked(name, [_whole(number) for number in facts.split(",")])
            case "hint":
                return Hint(name, _whole(facts, at_most=_MAX_HINTED))
            case "cleared":
                return Cleared(name)
            case "recall":
                return Recalled(name)
            case _:
                return None
    except (ValueError, TypeError):
        return None


_MAX_HINTED = 1_000_000_000
_MAX_MS = 10**15
_MAX_EXACT = 2**53  # Lua tells every whole number up to this one from the next


def _grant(number: str, token: str, left_ms: str) -> tuple[int, Holding]:
    """One grant of a push message. TypeError where it has more parts than these, or fewer."""
    return _whole(number, at_least=1), Holding(_whole(token), _whole(left_ms, at_most=_MAX_MS))


def _whole(text: str, *, at_least: int = 0, at_most: int = _MAX_EXACT) -> int:
    """A number as scripts write it: digits only, within bounds."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ValueError("a script writes no such number")
    number = int(text)
    if not at_least <= number <= at_most:
        raise ValueError("the number is out of bounds")
    return number
