"""Push messages, which a store of semaphores sends to a hub unasked. Any client may send one."""

from collections.abc import Sequence
from typing import NamedTuple

from .replies import MAX_EXACT, Holding

_MAX_MS = 10**15


class Granted(NamedTuple):
    """Waiters of this hub hold permits now."""

    name: str
    grants: Sequence[tuple[int, Holding]]


class Revoked(NamedTuple):
    """Another client released or adopted permits of this hub."""

    name: str
    numbers: Sequence[int]


class Recheck(NamedTuple):
    """Something may change earlier than was said, so ask again: now, or in some ms."""

    name: str
    in_ms: int = 0


class Deleted(NamedTuple):
    """The semaphore was deleted."""

    name: str


Push = Granted | Revoked | Recheck | Deleted


def push_of(raw: bytes) -> Push | None:
    """Return the push message ``kind facts name``. None when it is not one of ours."""
    try:
        kind, facts, name = raw.decode().split(" ", 2)
        match kind:
            case "granted":
                return Granted(name, list(map(_grant, facts.split(","))))
            case "revoked":
                return Revoked(name, [_whole(number) for number in facts.split(",")])
            case "recheck":
                return Recheck(name, 0 if facts == "-" else _whole(facts, at_most=_MAX_MS))
            case "deleted":
                return Deleted(name)
            case _:
                return None
    except (ValueError, TypeError):
        return None


def _grant(text: str) -> tuple[int, Holding]:
    """One grant of a push message. ValueError where it has more parts than these, or fewer."""
    number, token, left_ms, slots = (text if text.count(":") > 2 else f"{text}:").split(":")
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
