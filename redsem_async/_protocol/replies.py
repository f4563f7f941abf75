"""What a store of semaphores replies to an operation, and how it is read.

What a script never replies raises one of the exceptions in `MISFITS`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from redsem_async._core.keys import Address

# Answers to an acquire or a heartbeat that are not a token or a Holding.
WAITING = 0
GONE = -1  # the number was used before, and what it stood for has ended
FULL = -2
QUEUE_FULL = -3
WAITING_FOR_KEY = -4  # held up by the limit of its key
FULL_FOR_KEY = -5
QUEUE_FULL_FOR_KEY = -6

MAX_EXACT = 2**53  # Lua tells every whole number up to this one from the next
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

_WHOLE = frozenset({int})


class Holding(NamedTuple):
    """The reply to a request that holds a permit already, because it was sent before."""

    token: int
    left_ms: int
    slots: Sequence[int] = ()


Answer = int | Holding


class Ramp(NamedTuple):
    """A back-off. For *lasts_ms* more *permits* are its limit in force, 0 while it pauses."""

    lasts_ms: int
    permits: int


def lowered(limit: int, ramp: Ramp | None) -> int:
    """*limit*, or the limit in force of a back-off if that is lower. A pause lowers nothing."""
    return limit if ramp is None else min(limit, ramp.permits or limit)


class KeyQueue(NamedTuple):
    """The requests of one key that wait, the limit that is set for the key, and its back-off."""

    waiting: int
    set_limit: int | None
    ramp: Ramp | None = None


class Reply(NamedTuple):
    """The reply to most operations.

    Attributes:
        answers: one for each request or number of the call.
        next_ms: milliseconds until something may change by itself. ``None`` for never.
        waiting: how many requests are in the queue.
        set_limit: what replaces the limits of the callers, if it is set (acquire, heartbeat).
        hold_ms: how long requests of all processes recently held their permits, times permits, if
            that is known and one of the caller has to wait (acquire, heartbeat).
        granted: number and token of waiters of the caller's hub that were served.
        slots: of each number of the caller's hub that the call granted, where permits have slots.
        key_queues: of each key whose request was not served (acquire, heartbeat).
        competing_keys: if there are any, how many keys wait for the overall limit.
        ramp: of the back-off that runs, if one does (acquire, heartbeat).
        forgotten: no limit is set, and nothing was known of the caller's hub (acquire, heartbeat).
        rated_ms: in how many milliseconds the rates let the last of those go that wait. ``None``
            where they hold nobody up (acquire, heartbeat).
    """

    answers: Sequence[Answer] = ()
    next_ms: int | None = None
    waiting: int = 0
    set_limit: int | None = None
    hold_ms: int | None = None
    granted: Sequence[tuple[int, int]] = ()
    slots: Mapping[int, Sequence[int]] = MappingProxyType({})
    key_queues: Mapping[str, KeyQueue] = MappingProxyType({})
    competing_keys: int = 0
    ramp: Ramp | None = None
    forgotten: bool = False
    rated_ms: int | None = None


class AdoptReply(NamedTuple):
    """The reply to an adopt, with the permit, or nothing when the old id holds none.

    *held_ms* says how long ago it was granted, where the call has a ``max_hold_ms``. *key* is the
    key that it counts against, if it has one.
    """

    holding: Holding | None
    permits: int = 1
    held_ms: int = 0
    key: str | None = None


def common_reply(
    raw: Sequence[Any], address: Address, asked: int, *, of_waiters: bool = False
) -> Reply:
    """A reply that begins as the scripts' reply_head() has it, with *asked* answers.

    *of_waiters*: it also has what matters to requests that wait.
    """
    _, next_ms, waiting, mine, *answers = raw
    slots: Sequence[Any] = ()
    if address.slotted:
        mine, slots = mine
    queues: Sequence[Any] = ()
    set_limit, hold_ms, rated_ms, ramp = -1, -1, -1, None
    if of_waiters:
        set_limit, hold_ms, *answers = answers
        if not isinstance(set_limit, int):
            set_limit, ramp = limit_and_ramp(set_limit)
        if address.keyed:
            queues, *answers = answers
        if address.rated:
            rated_ms, *answers = answers
    if not _WHOLE.issuperset(map(type, (next_ms, waiting, hold_ms, rated_ms, *mine))):
        raise TypeError("these are numbers")
    return Reply(
        answers=answers_of(answers, asked, holdings=of_waiters),
        next_ms=none_below_0(next_ms),
        waiting=waiting,
        set_limit=none_below_0(set_limit),
        forgotten=set_limit == -2,
        hold_ms=none_below_0(hold_ms),
        granted=list(zip(mine[::2], mine[1::2], strict=True)),
        slots=dict(zip(map(number_of, slots[::2]), map(slots_of, slots[1::2]), strict=True)),
        key_queues=_key_queues(queues[1:]),
        competing_keys=number_of(queues[0]) if queues else 0,
        ramp=ramp,
        rated_ms=none_below_0(rated_ms),
    )


def answers_of(raw: Sequence[Any], asked: int, *, holdings: bool = False) -> Sequence[Answer]:
    """The answers to *asked* requests or numbers, which may be *holdings*."""
    if len(raw) != asked:
        raise ValueError("these are more answers, or fewer")
    if _WHOLE.issuperset(map(type, raw)):
        return raw
    if not holdings:
        raise TypeError("these are numbers")
    return [answer if isinstance(answer, int) else _holding(*answer) for answer in raw]


def _holding(token: Any, left_ms: Any, *slots: bytes) -> Holding:
    return Holding(number_of(token), number_of(left_ms), *map(slots_of, slots))


def _key_queues(raw: Sequence[Any]) -> Mapping[str, KeyQueue]:
    return {
        unquote(key.decode()): KeyQueue(number_of(waiting), none_below_0(set_limit), ramp)
        for key, waiting, told in zip(raw[::3], raw[1::3], raw[2::3], strict=True)
        for set_limit, ramp in (limit_and_ramp(told),)
    }


def limit_and_ramp(told: Any) -> tuple[int, Ramp | None]:
    """A limit as a script writes it, and the back-off that runs, if any."""
    if isinstance(told, int | bytes):
        return number_of(told), None
    limit, lasts_ms, permits = map(number_of, told)
    return limit, Ramp(lasts_ms, permits)


def none_below_0(number: int) -> int | None:
    return None if number < 0 else number


def number_of(raw: Any) -> int:
    """A whole number as scripts have it. ValueError for anything else."""
    value = int(raw) if isinstance(raw, int | bytes) else None
    if value is None or abs(value) > MAX_EXACT:
        raise ValueError("a script tells no such number")
    return value


def key_of(key: bytes | str | None) -> str | None:
    """A key as it was given. None for none."""
    if not key:
        return None
    return unquote(key if isinstance(key, str) else key.decode())


def slots_of(raw: bytes) -> tuple[int, ...]:
    """The slots of a permit, from 'index+index'. One that is too high is no slot of any list."""
    return tuple(min(int(index), MAX_EXACT) for index in raw.split(b"+")) if raw else ()
