"""The journal against the executable specification: call by call, at the journal's time.

The answer, the messages, and then what is held, who is in line and what is known of the caller
have to be the same.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, cast

from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import Reap
from redsem_async._protocol.pushes import Granted, Push
from redsem_async._protocol.replies import AdoptReply, AnyReply, Holding, Reply, StatusReply
from redsem_async._redis.codec import push_of
from redsem_async.testing._memory import SPECIFICATIONS
from redsem_async.testing._spec.base import Specification
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import (
    ModeInUse,
    Reordered,
    SlotsInUse,
    UnknownHub,
    Void,
)
from redsem_async.testing._spec.state import Counter
from tests.scripts.recording import Record, Write
from tests.scripts.violations import Findings
from tests.scripts.writes import Keys
from tests.worlds.judge import Look, look_at

_ERRORS: dict[type[Exception], str] = {
    Reordered: "REORDERED",
    UnknownHub: "UNKNOWNHUB",
    Void: "VOID",
    ModeInUse: "MODE",
    SlotsInUse: "SLOTS",
}


class Replay:
    """One semaphore of the specification, which follows the journal."""

    def __init__(self, mode: Mode, findings: Findings) -> None:
        self.model: Specification = SPECIFICATIONS[mode.removesuffix("+slots")](self._publish)
        self.broken = False  # it went another way: what follows would say nothing more
        self._findings = findings
        self._published: deque[tuple[str, Push | None, int]] = deque()
        self._astray: list[str] = []

    def follow(self, record: Record, gone: Sequence[str]) -> None:
        """Carry out what *record* says was asked, when the keys *gone* had expired before."""
        if self.broken:
            return
        for kind in gone:
            self._forget(kind)
        uncounted = 0  # by a reap: with their key it does not see that they were there
        if "holders" in gone and isinstance(record.call, Reap):
            uncounted = len(self.model.state.holders)
        published = map(_message, (w for w in record.writes if w.command in _PUBLISH))
        self._published.extend(joined(published))
        call, answer = record.call, record.answer
        try:
            expected: AnyReply | str = self.model.run(
                record.address, call, record.hub, record.now_us
            )
        except tuple(_ERRORS) as error:
            expected = _ERRORS[type(error)]
        if uncounted:
            assert isinstance(expected, Reply)
            expected = expected._replace(answers=[cast("int", expected.answers[0]) - uncounted])
        if isinstance(answer, CommandError):
            agree = isinstance(expected, str) and expected in str(answer.error)
        else:
            tag = str(record.reply[0], "utf-8")
            if tag != record.arguments[0]:
                self._differ(record, f"the reply to {call} has another tag: {tag}")
            agree = not isinstance(expected, str) and plain(answer) == plain(expected)
        if not agree:
            self._differ(record, f"{call} was answered {answer}, not {expected}")
        for astray in self._astray:
            self._differ(record, f"{call}: {astray}")
        if self._published:
            self._differ(record, f"{call} published too much: {list(self._published)}")
        self._astray.clear()
        self._published.clear()

    def compare(self, record: Record, keys: Keys, look: Look) -> None:
        """Whether what is held and who is in line are the same in the keys."""
        if self.broken:
            return
        model = self.model
        assert isinstance(model, QueueSpecification)
        expected = look_at(model, record.now_us)
        for field in fields(Look):
            found, other = getattr(look, field.name), getattr(expected, field.name)
            if field.compare and found != other:
                detail = f"{field.name} is {found}, not {other}"
                self._differ(record, f"after {record.call} {detail}")
        if isinstance(model, KeyedSpecification):
            self._compare_keys(record, keys, model)
        self._compare_meta(record, keys)

    def _compare_keys(self, record: Record, keys: Keys, model: KeyedSpecification) -> None:
        """Whether the keys that are ready are the same."""
        ready = keys.ready()
        expected = {key: ticket for key, (ticket, _) in model.ready.items()}
        if ready != expected:
            self._differ(record, f"after {record.call} {ready} are ready, not {expected}")

    def _compare_meta(self, record: Record, keys: Keys) -> None:
        """Whether the counter, and what is known of the caller's hub, are the same in the keys."""
        model, hub, meta = self.model, record.hub, keys["meta"]
        state, known = model.state, model.state.look_up(hub)
        limit = None if state.set_limit is None else str(state.set_limit)
        if state.paused_limit is not None:
            limit = f"0 {state.paused_limit}"
        facts: dict[str, tuple[object, object]] = {
            "counter": (int(meta.get("counter", 0)), state.counter.last),
            "mark": (int(meta.get(hub, 0)), known.mark),
            "calls": (int(meta.get(f"{hub}:calls", 0)), known.last_call),
            "changes": (int(meta.get(f"{hub}:changes", 0)), known.last_change),
            "unreachable": (f"{hub}:unreachable" in meta, known.unreachable),
            "no push": (meta.get(f"{hub}:no_push") == "1", known.no_push),
            "hold": (int(meta["hold"]) if "hold" in meta else None, state.hold_ms),
            "uncounted": (meta.get(f"{hub}:no_push") == "2", known.uncounted),
            "limit": (keys["limit"].get(""), limit),
        }
        assert isinstance(model, QueueSpecification)
        facts["returns"] = ("returns" in meta, model.parked_return)
        looked_at = meta.get("looked")
        facts["looked"] = (looked_at and int(looked_at.partition(":")[0]), state.looked_at)
        for what, (found, expected) in facts.items():
            if found != expected:
                self._differ(record, f"{record.call}: {what} is kept as {found}, not {expected}")

    def _differ(self, record: Record, detail: str) -> None:
        self.broken = True
        self._findings.add("agrees with the specification", record.base, detail)

    def _publish(self, owner: str, push: Push) -> int:
        """Take the next message of the record, which has to be this one."""
        if not self._published:
            self._astray.append(f"{push} was not published to {owner}")
            return 1
        hub, published, receivers = self._published.popleft()
        if hub != owner or plain(published) != plain(push):
            self._astray.append(f"{published} was published to {hub}, and not {push} to {owner}")
        return abs(receivers)

    def _forget(self, kind: str) -> None:
        model, state = self.model, self.model.state
        match kind:
            case "holders":
                # With keys, the next call finds that they expired, and looks at their keys: also
                # where a local clock says that they have not.
                if isinstance(model, KeyedSpecification):
                    for holder in state.holders.values():
                        holder.expiry_ms = 0
                else:
                    state.holders.clear()
            case "meta":
                state.hubs.clear()
                state.kind = state.hold_ms = None
                state.counter = Counter()
                if isinstance(model, KeyedSpecification):
                    model.virtual_time = 0.0
                if isinstance(model, QueueSpecification):
                    model.parked_return = False
                state.looked_at = None
            case "hubs":
                for known in state.hubs.values():
                    known.alive_until = 0
            case "slots":
                state.lose_slots()
            case "keys":
                assert isinstance(model, KeyedSpecification)
                model.lose_keys()
            case "queue":
                assert isinstance(model, QueueSpecification)
                model.queue.clear()
            case _:
                pass


_PUBLISH = ("PUBLISH", "SPUBLISH")


def _message(write: Write) -> tuple[str, Push | None, int]:
    return write.key.rpartition("@")[2], push_of(write.arguments[0].encode()), write.receivers


def joined(
    messages: Iterable[tuple[str, Push | None, int]],
) -> list[tuple[str, Push | None, int]]:
    """The same, with a hub's grants in a row as one message: a script reads the line in parts."""
    found: list[tuple[str, Push | None, int]] = []
    for hub, push, receivers in messages:
        before = found[-1] if found else None
        if (
            before is not None
            and isinstance(push, Granted)
            and isinstance(before[1], Granted)
            and (hub, bool(receivers)) == (before[0], bool(before[2]))
        ):
            grants = [*before[1].grants, *push.grants]
            found[-1] = hub, before[1]._replace(grants=grants), receivers
        else:
            found.append((hub, push, receivers))
    return found


def plain(answer: object) -> object:
    """Sequences of any kind as lists: the two sides may choose."""
    if isinstance(answer, Reply | AdoptReply | StatusReply | Holding | Granted):
        return {name: plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple | range):
        return [plain(item) for item in cast("Sequence[Any]", answer)]
    return answer
