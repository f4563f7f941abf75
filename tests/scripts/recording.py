"""The journal: every script also writes down what it did, in the order in which Redis did it.

A switch for tests only. Redis runs scripts one at a time, so the journal is the linearization:
nobody has to search for one. `install` in each process that is to be recorded; what any of them
does then goes into one list, ``PREFIX:@journal``; in a cluster, where messages stay within a
shard, into one for each semaphore, ``PREFIX:{NAME}:@journal``.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import hiredis

import redsem_async._protocol.operations as op
import redsem_async._redis.codec as wire
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._redis.scripts import Script, script
from tests.harness import restricted

_WRAPPER = Path(__file__).with_name("journalled.lua").read_text(encoding="utf-8")
_COMMAND = "rpush"  # with which the journal is written
_LOOKED_UP = "script"  # the name in `_wire` by which scripts are looked up
_SLOT = "--[[ the script stands here ]]"


@functools.cache
def journalled(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script, and around it what writes down what it did."""
    before, after = _WRAPPER.split(_SLOT)
    place = "^(.-{.*}:)" if sharded else "^(.-){"
    facts = f"local MODE, OPERATION, PLACE = '{mode}', '{operation}', '{place}'\n"
    text = f"{facts}{before}{script(mode, operation, sharded).text}{after}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def install() -> Callable[[], None]:
    """Let every script that this process runs write the journal. Returns what undoes it."""
    plain: object = getattr(wire, _LOOKED_UP)
    assert plain in (script, journalled), "something else stands where the scripts are looked up"
    setattr(wire, _LOOKED_UP, journalled)
    restricted.BESIDE.add(_COMMAND)

    def undo() -> None:
        setattr(wire, _LOOKED_UP, plain)
        restricted.BESIDE.discard(_COMMAND)

    return undo


def journal_key(prefix: str) -> str:
    return f"{prefix}:@journal"


class Write(NamedTuple):
    """A command by which a script changed something, or published a message."""

    receivers: int
    command: str
    key: str
    arguments: Sequence[str]


class Record(NamedTuple):
    """One script, as it ran."""

    mode: Mode
    operation: str
    server_us: int
    present: str
    key: str
    arguments: Sequence[str]
    writes: Sequence[Write]
    raw_reply: bytes

    @property
    def base(self) -> str:
        """What the names of the semaphore's keys begin with."""
        return f"{self.key.rpartition(':')[0]}:"

    @property
    def address(self) -> Address:
        """Of the semaphore: its keys are those that every script may be given."""
        prefix, _, name = self.base.partition(":{")
        clock: Clock = "local" if self.arguments[2].endswith("local") else "server"
        return Address(self.mode, prefix, name[:-2], clock)

    @property
    def hub(self) -> str:
        return self.arguments[3]

    @property
    def now_us(self) -> int:
        """The clock that the semaphore is kept by, as the script read it."""
        return int(self.arguments[1] or self.server_us)

    @property
    def recovers(self) -> bool:
        """Whether the caller wants a grace period after a loss of state."""
        return len(self.present) > len(self.address.first_keys) + len(self.address.keys)

    @property
    def call(self) -> op.Operation:
        return call_of(self.mode, self.operation, self.arguments[4:], recovers=self.recovers)

    @property
    def reply(self) -> Any:
        return _read(self.raw_reply)


class Flushed(NamedTuple):
    """The server lost everything, and at what time: no script did it."""

    server_us: int


Entry = Record | Flushed


_replies = hiredis.Reader()
_records = hiredis.Reader(encoding="utf-8", errors="surrogateescape")


def _read(data: bytes) -> Any:
    _replies.feed(data)
    return _replies.gets()


def record_of(data: bytes) -> Record:
    _records.feed(data)
    said = cast("list[Any]", _records.gets())
    mode, operation, seconds, us, present, key, arguments, writes, reply = said
    return Record(
        mode,
        operation,
        int(seconds) * 1_000_000 + int(us),
        present,
        key,
        arguments,
        [Write(n, command, key, [*map(str, rest)]) for n, command, key, *rest in writes],
        reply.encode("utf-8", "surrogateescape"),
    )


def call_of(mode: Mode, operation: str, own: Sequence[str], *, recovers: bool) -> op.Operation:
    """The call that a script was given as arguments: what `Codec.command` does, undone."""
    slotted = mode.endswith("+slots")

    def introduced(who: str, no_push: str) -> HubInfo | None:
        return HubInfo(who, no_push == "1", recovers, no_push == "2") if who else None

    match operation:
        case "acquire":
            lease, limit, first, second, who, no_push, right, *asked = own
            numbers, options = _asked(asked)
            hub_info = introduced(who, no_push)
            most, slots = _listed(limit) if slotted else (int(limit), None)
            call = op.Acquire(numbers, int(lease), most, options, hub_info=hub_info)
            call = call._replace(right=_right(right), slots=slots)
            all_of_them, _, of_key = first.partition(":")
            return call._replace(
                max_waiters=None if all_of_them == "-1" else int(all_of_them),
                max_waiters_per_key=int(of_key) if of_key else None,
                after=int(second),
            )
        case "release":
            hold_ms = int(own[1]) if own[1] else None
            named = own[2].split(",") if len(own[2]) > 1 else ()
            numbers = [int(number) for number in own[3:]]
            waiting = [_request(text) for text in named]
            return op.Release(own[0], numbers, hold_ms, bool(own[2]), waiting)
        case "refresh":
            lease_ms, bound = _bounded(own[0])
            parts = [text.partition(":") for text in own[1:]]
            heavy = {int(n): int(permits) for n, _, permits in parts if permits}
            return op.Refresh([int(n) for n, _, _ in parts], lease_ms, heavy, bound)
        case "abandon":
            return op.Abandon([_request(text) for text in own[1:]], int(own[0]))
        case "heartbeat":
            lease, who, no_push, right, *rest = own
            hub_info = introduced(who, no_push)
            requests = [_request(text) for text in rest]
            return op.Heartbeat(int(lease), requests, hub_info=hub_info, right=_right(right))
        case "adopt":
            lease, who, no_push, owner, *rest = own
            old, new, number = map(int, rest[:3])
            longest = int(rest[3]) if rest[3:] and rest[3] else None
            slots = _listed(rest[4])[1] if slotted else None
            hub_info = introduced(who, no_push)
            return op.Adopt(owner, old, new, int(lease), hub_info, number, longest, slots)
        case "restore":
            timing, who, no_push, *back = own
            lease_ms, bound = _bounded(timing)
            slots = _listed(back.pop(0))[1] if slotted else None
            permits = [_permit(text) for text in back]
            return op.Restore(permits, lease_ms, introduced(who, no_push), slots, bound)
        case "detach":
            expires_ms, bound = _bounded(own[1])
            return op.Detach(int(own[0]), expires_ms, int(own[2]), bound)
        case "status":
            return op.Status(int(own[0]), unquote(own[1]) or None if own[1:] else None)
        case "set_limit":
            limits: dict[str, Any] = {"": None, "pause": "pause", "resume": "resume"}
            new = limits[own[0]] if own[0] in limits else int(own[0])
            return op.SetLimit(new, int(own[1]), unquote(own[2]) if own[2:] else None)
        case "reap":
            return op.Reap()
        case "clear":
            return op.Clear(int(own[0]))
        case _:
            raise AssertionError(f"no such operation: {operation}")


def _bounded(text: str) -> tuple[int, int | None]:
    """A lease, and the max_hold that bounds it."""
    lease, _, max_hold = text.partition(":")
    return int(lease), int(max_hold) if max_hold else None


def _listed(text: str) -> tuple[int, Sequence[str]]:
    """How many slots a client declares, and which."""
    length, _, slots = text.partition(":")
    return int(length), tuple(map(unquote, slots.split(",")))


def _right(text: str) -> op.RightRequest | None:
    return op.RightRequest(*map(int, text.split(":"))) if text else None


def _asked(texts: Iterator[str] | Sequence[str]) -> tuple[list[int], dict[int, op.RequestOptions]]:
    numbers: list[int] = []
    options: dict[int, op.RequestOptions] = {}
    for text in texts:
        number, *kind = text.split(":")
        numbers.append(int(number))
        if kind:
            permits, waits, ahead, *tail = *kind, *["0"] * (len(kind) == 2)
            asked = op.RequestOptions(int(permits), waits == "1", int(ahead), _terms(tail))
            options[int(number)] = asked
    return numbers, options


def _permit(text: str) -> op.RestoredPermit:
    number, token, weight, *tail = text.split(":")
    permits, _, slots = weight.partition("@")
    its = tuple(map(int, slots.split("+"))) if slots else ()
    return op.RestoredPermit(int(number), int(token), int(permits), _terms(tail), its)


def _request(text: str) -> op.Request:
    """A request as the queue has it."""
    number, *rest = text.split(":")
    lease, limit, permits = map(int, rest[:3])
    return op.Request(int(number), lease, limit, permits, key=_terms(rest[3:]))


def _terms(tail: Sequence[str]) -> op.KeyTerms | None:
    """The key of a request, by its tail; None where that is empty."""
    if not (tail and tail[-1]):
        return None
    limit, weight, patience_ms, key = tail
    declared = int(limit) if limit else None
    return op.KeyTerms(unquote(key), declared, float(weight), int(patience_ms))
