"""Operations as commands, raw replies and push messages as typed ones.

The only place where positions in ARGV and in replies get names.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import Command
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    BackOff,
    Delete,
    Detach,
    Heartbeat,
    KeyTerms,
    Operation,
    Reap,
    Refresh,
    Release,
    Request,
    RequestOptions,
    SetLimit,
    Status,
)
from redsem_async._protocol.pushes import Deleted, Granted, Push, Recheck, Revoked
from redsem_async._protocol.replies import (
    AdoptReply,
    AnyReply,
    Holding,
    KeyQueue,
    Ramp,
    Reply,
)

from .resp import invalid_reply
from .scripts import Script, script
from .status_reply import MAX_EXACT, key_of, limit_and_ramp, number, slots_of, status_reply

Argument = str | int

_WHOLE = frozenset({int})

# What is raised if a reply has something of another type, or too much, or too little.
_MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Codec:
    """The scripts of one semaphore.

    *wall_clock* gives microseconds, for semaphores that are kept by their clients' clocks.
    """

    def __init__(
        self, address: Address, wall_clock: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self.address = address
        self.shard: str = address.keys[0].removesuffix(":holders")
        self._keyed, self._slotted = address.keyed, address.slotted
        self._kind = address.kind
        self._keys: tuple[Argument, ...] = (len(address.keys), *address.keys)
        held = address.held_keys
        self._held_keys: tuple[Argument, ...] = (len(held), *held)
        self._wall_clock = wall_clock

    def encode(  # positional, because a keyword costs time and this is called for each command
        self,
        operation: Operation,
        tag: int,
        hub: str,
        sharded: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Script, tuple[Argument, ...]]:
        """Return the script for *operation*, and the number of its keys, the keys, its arguments.

        With *sharded* its push messages stay within the shard of a cluster.
        """
        clock = "" if self.address.clock == "server" else self._wall_clock()
        name, own = self._arguments(operation)
        keys = self._held_keys if isinstance(operation, Refresh) else self._keys
        arguments = (*keys, tag, clock, self._kind, hub, *own)
        return script(self.address.mode, name, sharded), arguments

    def _arguments(self, operation: Operation) -> tuple[str, tuple[Argument, ...]]:
        match operation:
            case Acquire():
                # Most have nothing of all this. Each call would cost as much as the rest.
                told = operation.hub_info
                described = ("", 0) if told is None else _described(told)
                limit: Argument = operation.limit
                if self._slotted:
                    limit = _listed(operation.slots)
                beside = (_bound(operation), operation.after)
                head = (operation.lease_ms, limit, *beside, *described)
                if not operation.options:
                    return "acquire", (*head, *operation.numbers)
                return "acquire", (*head, *self._requests(operation))
            case Release(owner, numbers, hold_ms, waits, first):
                hold: Argument = "" if hold_ms is None else hold_ms
                waiting = ",".join(map(self._queued, first)) if first else "1" * waits
                return "release", (owner, hold, waiting, *numbers)
            case Refresh(numbers, lease_ms, _, max_hold_ms):
                return "refresh", (_bounded(lease_ms, max_hold_ms), *numbers)
            case Abandon(requests, void, void_change):
                return "abandon", (void, void_change, *map(self._queued, requests))
            case Heartbeat(lease_ms, requests, hub_info):
                common = (lease_ms, *_described(hub_info))
                return "heartbeat", (*common, *map(self._queued, requests))
            case Adopt(owner, old, new, lease_ms, hub_info, number, max_hold_ms, slots):
                bound: tuple[Argument, ...] = () if max_hold_ms is None else (max_hold_ms,)
                if self._slotted:
                    bound = ("" if max_hold_ms is None else max_hold_ms, _listed(slots))
                ids = (owner, old, new)
                return "adopt", (lease_ms, *_described(hub_info), *ids, number, *bound)
            case Detach(held, expires_ms, number, max_hold_ms):
                return "detach", (held, _bounded(expires_ms, max_hold_ms), number)
            case Status(max_entries, after):
                own = ("" if after is None else _encoded(after),) if self._keyed else ()
                return "status", (max_entries, *own)
            case SetLimit(most, number, key):
                own = () if key is None else (_encoded(key),)
                return "set_limit", ("" if most is None else most, number, "", *own)
            case BackOff(pause_ms, token, number, key):
                own = () if key is None else (_encoded(key),)
                granted = "" if token is None else token
                return "back_off", (pause_ms, granted, number, "", *own)
            case Reap():
                return "reap", ()
            case Delete(number):
                return "delete", (number,)

    def reply_to(self, command: Command, raw: Any) -> AnyReply:
        """Return the reply to *command*. Raises `WireError` if *raw* is none."""
        operation, tag = command.operation, b"%d" % command.tag
        try:
            reply = self.reply(operation, raw) if raw[:1] == [tag] else None
        except _MISFITS as error:
            raise invalid_reply("the server's reply does not fit its command") from error
        if reply is None:
            raise invalid_reply("the server's reply belongs to another command")
        return reply

    def reply(self, operation: Operation, raw: Sequence[Any]) -> AnyReply:
        """Return the reply to *operation*. *raw* begins with the tag."""
        match operation:
            case Acquire() if len(raw) == 2:  # all granted, with tokens in a row
                return Reply(range(raw[1], raw[1] + len(operation.numbers)))
            case Release() if len(raw) == 1:  # all were held
                return Reply([1] * len(operation.numbers))
            case Acquire() | Heartbeat() | Release() | Abandon() | SetLimit() | BackOff() | Reap():
                return self._common_reply(operation, raw)
            case Refresh() | Detach():
                return Reply(answers=_answers(operation, raw[1:]))
            case Adopt():
                if len(raw) == 2:
                    return AdoptReply(None)
                key, held_slots = None, b""
                if self._keyed:
                    *raw, key = raw
                if self._slotted:
                    *raw, held_slots = raw
                token, left_ms, permits, *held_ms = map(number, raw[1:])
                holding = Holding(token, left_ms, slots_of(held_slots))
                return AdoptReply(holding, permits, sum(held_ms), key_of(key))
            case Status():
                return status_reply(raw, self.address)
            case Delete():
                return Reply()

    def _common_reply(self, operation: Operation, raw: Sequence[Any]) -> Reply:
        """A reply that begins as the scripts' reply_head() has it."""
        _, next_ms, waiting, mine, *answers = raw
        set_limit, hold_ms = -1, -1
        ramp: Ramp | None = None
        told: Sequence[Any] = ()
        queues: Sequence[Any] = ()
        if self._slotted:
            mine, told = mine
        if isinstance(operation, Acquire | Heartbeat):
            set_limit, hold_ms, *answers = answers
            if not isinstance(set_limit, int):
                set_limit, ramp = limit_and_ramp(set_limit)
            if self._keyed:
                queues, *answers = answers
        if not _WHOLE.issuperset(map(type, (next_ms, waiting, hold_ms, *mine))):
            raise TypeError("these are numbers")
        return Reply(
            answers=_answers(operation, answers),
            next_ms=None if next_ms < 0 else next_ms,
            waiting=waiting,
            set_limit=None if set_limit < 0 else set_limit,
            forgotten=set_limit == -2,
            hold_ms=None if hold_ms < 0 else hold_ms,
            granted=list(zip(mine[::2], mine[1::2], strict=True)),
            slots=dict(zip(map(number, told[::2]), map(slots_of, told[1::2]), strict=True)),
            key_queues=_key_queues(queues[1:]),
            competing_keys=number(queues[0]) if queues else 0,
            ramp=ramp,
        )

    def _requests(self, operation: Acquire) -> Sequence[Argument]:
        """The requests of an acquire, by number alone where they have none of the options."""
        asked = map(operation.options.get, operation.numbers)
        return [
            number if options is None else self._with_options(number, options)
            for number, options in zip(operation.numbers, asked, strict=True)
        ]

    def _with_options(self, number: int, asked: RequestOptions) -> str:
        text = f"{number}:{asked.permits}:{asked.waits + asked.again:d}"
        if asked.key is not None:
            return f"{text}:{asked.ahead_ms}{self._tail(asked.key)}"
        return f"{text}:{asked.ahead_ms}" if asked.ahead_ms else text

    def _queued(self, request: Request) -> str:
        """A request as the queue has it."""
        text = f"{request.number}:{request.lease_ms}:{request.limit}:{request.permits}"
        return text + self._tail(request.key)

    def _tail(self, terms: KeyTerms | None) -> str:
        """The end of a request, with its key."""
        if not self._keyed:
            return ""
        if terms is None:
            return "::1:0:"
        key, limit, weight, patience_ms = terms
        declared = "" if limit is None else limit
        return f":{declared}:{weight:.6f}:{patience_ms}:{_encoded(key)}"


def _asked(operation: Operation) -> int:
    """How many answers the reply to *operation* has."""
    match operation:
        case Acquire() | Release() | Refresh():
            return len(operation.numbers)
        case Heartbeat() | Abandon():
            return len(operation.requests)
        case SetLimit() | Delete():
            return 0
        case _:
            return 1


def _described(hub_info: HubInfo | None) -> tuple[str, int]:
    if hub_info is None:
        return "", 0
    return hub_info.description, 1 if hub_info.no_push else 2 * hub_info.uncounted


def _bounded(lease_ms: int, max_hold_ms: int | None) -> Argument:
    """The lease of a refresh, and for how long a permit is held at most."""
    return lease_ms if max_hold_ms is None else f"{lease_ms}:{max_hold_ms}"


def _bound(operation: Acquire) -> Argument:
    """The longest queues that a request joins. -1 for any."""
    most, of_key = operation.max_waiters, operation.max_waiters_per_key
    bound = -1 if most is None else most
    return bound if of_key is None else f"{bound}:{of_key}"


def _encoded(key: str) -> str:
    """*key* without characters that mean something next to it."""
    return quote(key, safe="")


def _answers(operation: Operation, raw: Sequence[Any]) -> list[int | Holding]:
    """The answers, one for each thing that was asked."""
    if len(raw) != _asked(operation):
        raise ValueError("these are more answers, or fewer")
    if _WHOLE.issuperset(map(type, raw)):
        return list(raw)
    if not isinstance(operation, Acquire | Heartbeat):
        raise TypeError("these are numbers")
    return list(map(_answer, raw))


def _answer(raw: Any) -> int | Holding:
    if isinstance(raw, int):
        return raw
    token, left_ms, *slots = raw
    return Holding(number(token), number(left_ms), *map(slots_of, slots))


def _key_queues(raw: Sequence[Any]) -> dict[str, KeyQueue]:
    return {
        unquote(key.decode()): KeyQueue(
            number(waiting), None if set_limit < 0 else set_limit, ramp
        )
        for key, waiting, told in zip(raw[::3], raw[1::3], raw[2::3], strict=True)
        for set_limit, ramp in (limit_and_ramp(told),)
    }


def _listed(slots: Sequence[str | int] | None) -> str:
    """The slots that a client declares, after their number."""
    assert slots is not None
    return f"{len(slots)}:{','.join(_encoded(str(slot)) for slot in slots)}"


def push_of(raw: bytes) -> Push | None:
    """Return the push message ``kind facts name``. None when it is not one of ours."""
    try:
        kind, facts, name = raw.decode().split(" ", 2)
        match kind:
            case "granted":
                return Granted(name, [_grant(*part.split(":")) for part in facts.split(",")])
            case "revoked":
                return Revoked(name, [_whole(number) for number in facts.split(",")])
            case "recheck":
                return Recheck(name)
            case "deleted":
                return Deleted(name)
            case _:
                return None
    except (ValueError, TypeError):
        return None


_MAX_MS = 10**15


def _grant(number: str, token: str, left_ms: str, slots: str = "") -> tuple[int, Holding]:
    """One grant of a push message. TypeError where it has more parts than these, or fewer."""
    held = tuple(map(_whole, slots.split("+"))) if slots else ()
    left = _whole(left_ms, at_most=_MAX_MS)
    return _whole(number, at_least=1), Holding(_whole(token), left, held)


def _whole(text: str, *, at_least: int = 0, at_most: int = MAX_EXACT) -> int:
    """A number as scripts write it, with digits only and within bounds."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ValueError("a script writes no such number")
    number = int(text)
    if not at_least <= number <= at_most:
        raise ValueError("the number is out of bounds")
    return number
