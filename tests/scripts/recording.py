"""The journal: every script also writes down what it did, in the order in which Redis did it.

A switch for tests only. Redis runs scripts one at a time, so the journal is the linearization:
nobody has to search for one. `install` in each process that is to be recorded; what any of them
does then goes into one list, ``PREFIX:@journal``; in a cluster, where messages stay within a
shard, into one for each semaphore, ``PREFIX:{NAME}:@journal``.
"""

import functools
import hashlib
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import hiredis

import redsem_async._redis.codec as wire
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode, permit_id
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation, Argument
from redsem_async._protocol.pushes import Granted, push_of
from redsem_async._protocol.status import Status, Viewer
from redsem_async._redis.scripts import Script, script
from tests.worlds.look import Look, look_of

_WRAPPER = Path(__file__).with_name("journalled.lua").read_text(encoding="utf-8")
_LOOKED_UP = "script"  # the name in `_wire` by which scripts are looked up
_SLOT = "--[[ the script stands here ]]"


@functools.cache
def journalled(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script, and around it what writes down what it did."""
    before, after = _WRAPPER.split(_SLOT)
    kinds = [key.rpartition(":")[2] for key in Address(mode, "p", "n", "server").keys]
    place = "^(.-{.*}:)" if sharded else "^(.-){"
    facts = f"local MODE, OPERATION, PLACE = '{mode}', '{operation}', '{place}'\n"
    facts += f"local KINDS = {{ {str(kinds)[1:-1]} }}\n"
    text = f"{facts}{before}{script(mode, operation, sharded).text}{after}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def install() -> Callable[[], None]:
    """Let every script that this process runs write the journal. Returns what undoes it."""
    plain: object = getattr(wire, _LOOKED_UP)
    assert plain is script, "something else stands where the scripts are looked up"
    encode = wire.Codec.encode

    def with_call(
        codec: wire.Codec, call: AnyOperation, *others: Any
    ) -> tuple[Script, tuple[Argument, ...]]:
        """The wrapper takes the last argument: what was asked for, whatever became of it."""
        found, arguments = encode(codec, call, *others)
        return found, (*arguments, b64encode(pickle.dumps(_plain(call))).decode())

    setattr(wire, _LOOKED_UP, journalled)
    setattr(wire.Codec, "encode", with_call)  # noqa: B010 - no checker lets a method be replaced

    def undo() -> None:
        setattr(wire, _LOOKED_UP, plain)
        setattr(wire.Codec, "encode", encode)  # noqa: B010

    return undo


def _plain(call: AnyOperation) -> AnyOperation:
    """What is asked for, without what a hub knows beside it."""
    if isinstance(call, Status):
        return Status(
            call.max_entries, call.after, viewer=Viewer(rates={})
        )  # which can be pickled
    plain: Any = next(each for each in type(call).__mro__ if "script" in vars(each))
    copy: AnyOperation = plain(*(getattr(call, fact) for fact in plain.__match_args__))
    return copy


def journal_key(prefix: str) -> str:
    return f"{prefix}:@journal"


class Key(NamedTuple):
    """What a key has: scores or fields by member. A text is the field "" of its key."""

    kind: str
    left_ms: int  # or -1 where it does not expire
    members: Mapping[str, Any]


class Record(NamedTuple):
    """One script, as it ran, and the keys before and after it."""

    mode: Mode
    operation: str
    server_us: int
    base: str  # what the names of the semaphore's keys begin with
    arguments: Sequence[str]
    call: AnyOperation
    before: Sequence[Key]
    after: Sequence[Key]
    messages: Sequence[tuple[int, str, str]]  # each with how many heard it, and its channel
    raw_reply: bytes

    @property
    def address(self) -> Address:
        prefix, _, name = self.base.partition(":{")
        clock: Clock = "local" if self.arguments[2].endswith("local") else "server"
        return Address(self.mode, prefix, name[:-2], clock)

    @property
    def hub(self) -> str:
        return self.arguments[3]

    @property
    def ahead_us(self) -> int:
        """By how much the semaphore's clock is ahead of the server's."""
        meta = next((key.members for key in self.after if key.kind == "meta"), dict[str, str]())
        own = int(self.arguments[1] or self.server_us)  # as the script read it
        return own + int(meta.get("lead", 0)) - self.server_us

    def look(self, keys: Sequence[Key]) -> Look:
        """How the semaphore stood, by its own clock."""
        now_us = self.server_us + self.ahead_us
        contents = {key.kind: key.members for key in keys}
        ends = {k.kind: now_us // 1000 + k.left_ms if k.left_ms >= 0 else None for k in keys}
        return look_of(contents, self.address, now_us, ends)

    @property
    def told(self) -> set[str]:
        """The permits whose grant somebody heard of."""
        found = [
            (channel, push_of(text.encode())) for heard, channel, text in self.messages if heard
        ]
        return {
            permit_id(channel.rpartition(":@")[2], number)
            for channel, push in found
            if isinstance(push, Granted)
            for number, _ in push.grants
        }

    @property
    def answer(self) -> AnyReply | CommandError:
        _replies.feed(self.raw_reply)
        raw: Any = _replies.gets()
        if isinstance(raw, hiredis.ReplyError):
            return CommandError(ErrorKind.REFUSED, raw)
        answer: AnyReply = self.call.reply(raw, self.address)
        return answer


class Flushed(NamedTuple):
    """The server lost everything, and at what time: no script did it."""

    server_us: int


Entry = Record | Flushed

_replies = hiredis.Reader()
_records = hiredis.Reader(encoding="utf-8", errors="surrogateescape")


def record_of(data: bytes) -> Record:
    _records.feed(data)
    said = cast("list[Any]", _records.gets())
    mode, operation, seconds, us, base, arguments, call, before, after, messages, reply = said
    return Record(
        mode,
        operation,
        int(seconds) * 1_000_000 + int(us),
        base,
        arguments,
        pickle.loads(b64decode(call)),
        [_key(*key) for key in before],
        [_key(*key) for key in after],
        messages,
        reply.encode("utf-8", "surrogateescape"),
    )


def _key(kind: str, sort: str, left_ms: int, has: Sequence[str]) -> Key:
    value: Callable[[str], Any] = float if sort == "zset" else str
    return Key(kind, left_ms, {has[i]: value(has[i + 1]) for i in range(0, len(has), 2)})
