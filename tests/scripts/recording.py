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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import hiredis

import redsem_async._redis.codec as wire
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation, Argument
from redsem_async._protocol.status import Status
from redsem_async._redis.scripts import Script, script

_WRAPPER = Path(__file__).with_name("journalled.lua").read_text(encoding="utf-8")
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
        return Status(call.max_entries, call.after)
    plain: Any = next(each for each in type(call).__mro__ if "script" in vars(each))
    copy: AnyOperation = plain(*(getattr(call, fact) for fact in plain.__match_args__))
    return copy


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
    call: AnyOperation
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
    def reply(self) -> Any:
        return _read(self.raw_reply)

    @property
    def answer(self) -> AnyReply | CommandError:
        raw = self.reply
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


def _read(data: bytes) -> Any:
    _replies.feed(data)
    return _replies.gets()


def record_of(data: bytes) -> Record:
    _records.feed(data)
    said = cast("list[Any]", _records.gets())
    mode, operation, seconds, us, present, key, arguments, call, writes, reply = said
    return Record(
        mode,
        operation,
        int(seconds) * 1_000_000 + int(us),
        present,
        key,
        arguments,
        pickle.loads(b64decode(call)),
        [Write(n, command, key, [*map(str, rest)]) for n, command, key, *rest in writes],
        reply.encode("utf-8", "surrogateescape"),
    )
