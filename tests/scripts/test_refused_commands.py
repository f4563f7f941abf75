"""A script of which the server refuses a command tells no lie, and takes nothing for good.

Each script runs from prepared states, and is refused each of its commands in turn, each command by
its name, and all writes. Redis does not roll back what came before. Afterwards

1. nothing was sent where nothing was written;
2. who was told of a grant holds it, and nobody was told of the loss of what he holds;
3. the rules of every run hold, but that a key may have no expiry yet and that somebody may wait;
4. once nothing is refused any more, the call that is sent again (or given up) and a heartbeat of each
   process make all of it right: who waits meets what is free, and as much as is free is granted.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import MODES, Mode, permit_id
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, HubInfo
from redsem_async._protocol.pushes import Deleted, Granted, Revoked
from redsem_async._protocol.replies import GONE, AdoptReply, Reply
from redsem_async._protocol.status import Status
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from redsem_async.testing._redis import MemoryRedis, RawArgument, Snapshot
from tests.scripts.in_memory import HUBS, INFO, SLOTS, InMemory
from tests.scripts.test_quick_paths import ending
from tests.worlds.judge import LEFT, MEET, Judge
from tests.worlds.look import Look, Ran, requests_of
from tests.worlds.server import Memory, ScriptServer

A, B, C = HUBS
WRITES = {"HSET", "HDEL", "ZADD", "ZREM", "PEXPIRE", "SET", "DEL", "UNLINK"}
REFUSING = Path(__file__).with_name("refusing.lua").read_text(encoding="utf-8")
LEASE = 90_000


# -- prepared states


class Asks(NamedTuple):
    """An acquire, whatever the mode is."""

    numbers: Sequence[int]
    limit: int = 2
    key: str = "k"
    lease_ms: int = LEASE
    info: HubInfo = UNCHANGED
    options: Mapping[str, Any] = {}

    def request(self, mode: Mode) -> op.RequestOptions:
        options = dict(self.options)
        if mode.startswith("zset"):
            options.pop("ahead_ms", None)
        keyed = self.key and ("keys" in mode or "share" in mode)
        return op.RequestOptions(**options, key=op.KeyTerms(self.key, 2, 1.0, 2000) if keyed else None)

    def call(self, mode: Mode) -> op.Acquire:
        every = dict.fromkeys(self.numbers, self.request(mode))
        slots = SLOTS[: self.limit] if "slots" in mode else None
        return op.Acquire(
            self.numbers, self.lease_ms, self.limit, every, hub_info=self.info, slots=slots
        )


def ask(*numbers: int, **terms: Any) -> Asks:
    known = {name: terms.pop(name) for name in Asks._fields if name in terms}
    return Asks(numbers, **known, options=terms)


def waiter(number: int, key: str = "k") -> op.QueuedRequest:
    return op.QueuedRequest(number, LEASE, 2, 1, op.KeyTerms(key, 2, 1.0, 2000))


Step = int | str | tuple[str, Asks | op.AnyOperation]
"""Milliseconds that pass, a hub that is gone or a key that is lost, or a call."""

KNOWN: list[Step] = [(hub, op.Heartbeat(LEASE, hub_info=INFO)) for hub in HUBS]
ONE: list[Step] = [*KNOWN, (A, ask(1))]
FULL: list[Step] = [*ONE, (B, ask(1, key="l"))]
LINE: list[Step] = [*FULL, (C, ask(1)), (A, ask(2, key="m")), (C, ask(2, key="l"))]
HEAVY: list[Step] = [*KNOWN, (A, ask(1, permits=2)), (C, ask(1)), (B, ask(1)), (A, ask(2))]
SHORT: list[Step] = [*KNOWN, (B, ask(1, 2, lease_ms=10_000)), (C, ask(1, permits=2)), (A, ask(1))]
EXPIRED: list[Step] = [*SHORT, 11_000]
THREE: list[Step] = [*KNOWN, (A, ask(1, limit=3)), (A, ask(2, 3, limit=3, key="l"))]
MIXED: list[Step] = [*THREE, (B, ask(1, limit=3)), (C, ask(1, limit=3)), (A, ask(4, limit=3, key="l"))]
PAUSED: list[Step] = [*FULL, (C, ask(1)), (A, op.SetLimit("pause", 1))]
SLOWED: list[Step] = [*LINE, (A, op.StartBackOff(900, None, 1)), 1000]
SPARSE: list[Step] = [*KNOWN, (A, ask(1)), (C, ask(1, permits=2, key="l"))]

STATES: dict[str, tuple[Sequence[Step], str, Asks | op.AnyOperation]] = {
    "the first acquire": ([], A, ask(1, info=INFO)),
    "an acquire": (ONE, A, ask(2)),
    "an acquire that waits": (FULL, A, ask(2)),
    "an acquire behind others": (LINE, A, ask(3)),
    "a batch of which some wait": (ONE, A, ask(2, 3, 4)),
    "a heavy acquire": (ONE, A, ask(2, permits=2, limit=3)),
    "an acquire after an expiry": (EXPIRED, A, ask(2)),
    "an acquire with a head start": (LINE, B, ask(2, ahead_ms=5000)),
    "an acquire beside a heavy one": (SPARSE, A, ask(2, lease_ms=10_000)),
    "an acquire that does not wait": (SPARSE, B, ask(1, key="m", waits=False)),
    "an acquire after a loss": ([*LINE, "meta"], A, ask(3, info=INFO)),
    "a release": (FULL, A, op.Release(A, [1])),
    "a release of some": (THREE, A, op.Release(A, [1, 3])),
    "a release to its own": ([*FULL, (A, ask(2))], A, op.Release(A, [1], waits=True)),
    "a release to another": (LINE, A, op.Release(A, [1])),
    "a release that prefers its own": (
        LINE,
        A,
        op.Release(A, [1], waits=True, own=[waiter(2, "m")]),
    ),
    "a release to several": (MIXED, A, op.Release(A, [1, 2, 3], waits=True)),
    "a release of a heavy one": (HEAVY, A, op.Release(A, [1], waits=True)),
    "a release to a heavy one": (SHORT, B, op.Release(B, [1, 2])),
    "a release to a dead one": ([*MIXED, B], A, op.Release(A, [1, 2], waits=True)),
    "a release beside a dead one": ([*LINE, C], A, op.Release(A, [1])),
    "a release by another": (LINE, C, op.Release(A, [1], waits=True)),
    "a release in a ramp": (SLOWED, A, op.Release(A, [1], 7)),
    "a release under a set limit": ([*LINE, (B, op.SetLimit(2, 1))], A, op.Release(A, [1])),
    "a release without messages": (
        [*FULL, (C, ask(1, info=HubInfo("x", NO_PUSH)))],
        A,
        op.Release(A, [1]),
    ),
    "a release after a loss": ([*LINE, "holders"], B, op.Release(B, [1])),
    "a release with lost facts": ([*LINE, "facts"], B, op.Release(B, [1])),
    "a refresh": (FULL, A, op.Refresh([1], 200_000)),
    "a bounded refresh": (HEAVY, A, op.Refresh([1], 200_000, 250_000)),
    "an abandon of a request": (LINE, C, op.Abandon([waiter(1)])),
    "an abandon of a grant": (LINE, A, op.Abandon([waiter(1)], 3, 4)),
    "a heartbeat": (LINE, C, op.Heartbeat(LEASE, [waiter(1), waiter(2, "l")])),
    "a heartbeat after an expiry": (EXPIRED, A, op.Heartbeat(LEASE, [waiter(1)])),
    "a first heartbeat": ([*LINE, "hubs"], C, op.Heartbeat(LEASE, [waiter(1)], INFO)),
    "a heartbeat without a queue": ([*LINE, "queue"], C, op.Heartbeat(LEASE, [waiter(1)])),
    "an adoption": (LINE, C, op.Adopt(A, 1, 3, LEASE, call=1)),
    "an adoption of a heavy one": (HEAVY, B, op.Adopt(A, 1, 3, LEASE, call=1)),
    "a detach": (LINE, A, op.Detach(1, 10_000, 1)),
    "a status": (LINE, A, Status(9)),
    "a higher limit": (LINE, B, op.SetLimit(4, 1)),
    "a pause": (LINE, B, op.SetLimit("pause", 1)),
    "the end of a pause": ([*PAUSED, (A, op.Release(A, [1]))], A, op.SetLimit("resume", 2)),
    "a limit of a key": (LINE, B, op.SetLimit(1, 1, "k")),
    "no limit of a key": ([*LINE, (B, op.SetLimit(1, 1, "k"))], B, op.SetLimit(None, 2, "k")),
    "a back-off": (LINE, A, op.StartBackOff(900, None, 1)),
    "the end of a back-off": ([*SLOWED, (A, op.Release(A, [1]))], A, op.StartBackOff(0, None, 2)),
    "a back-off of a key": (LINE, A, op.StartBackOff(900, None, 1, "k")),
    "the end of that of a key": (
        [*LINE, (A, op.StartBackOff(900, None, 1, "k")), (A, op.Release(A, [1])), 1000],
        A,
        op.StartBackOff(0, None, 2, "k"),
    ),
    "a reap": (EXPIRED, C, op.Reap()),
    "a reap of the dead": ([*LINE, 170_000, (A, op.Heartbeat(LEASE))], A, op.Reap()),
    "a deletion": (LINE, B, op.Delete(1)),
}


class Refusing(MemoryRedis):
    """Refuses commands of each script.

    Attributes:
        refused: the position of the command in its script, a command's name, or ``writes``.
        ran: the commands of the last script, if its reply was no error.
    """

    world: InMemory

    def __init__(self) -> None:
        super().__init__(
            lambda: self.world.server.now_us, lambda *message: self.world.server.published(*message)
        )
        self.refused: int | str = ""
        self.ran: list[str] = []

    def eval(self, script: str, *keys_and_arguments: RawArgument) -> Any:
        self.ran, us = [], self.world.server.now_us
        said, ran = super().eval(wrapped(script), *keys_and_arguments, us, self.refused)
        self.ran = [name.decode() for name in ran]
        return said


@functools.cache
def wrapped(text: str) -> str:
    return REFUSING.replace("--[[ the script stands here ]]", text)


@functools.cache
def refusing() -> Refusing:
    return Refusing()


class Walk(InMemory):
    """A call from a prepared state, of which commands are refused."""

    def __init__(self, mode: Mode, redis: Refusing, what: str) -> None:
        super().__init__(mode)
        self.mode: Mode = mode
        self.redis, self.server._redis = redis, redis
        redis.world, redis.refused = self, ""
        redis.restore({})
        self.asked: dict[str, dict[int, op.QueuedRequest]] = {hub: {} for hub in HUBS}
        steps, self.hub, call = STATES[what]
        for step in [*steps, 1]:
            self.take(step)
        self.called = self.fitted(self.hub, call)
        # From here on the same call from the same state is made once.
        self.server = ScriptServer(self._deliver, Memory(), lambda: redis.refused)
        self.server._redis = redis
        self.server.state = self.server._stands = self.server._memory.number_of(redis.snapshot())
        self.recovered = {self.server.state}
        self.start = self.server.state, self.judge, self.now_us, self.asked
        self.before = self.look

    def take(self, step: Step) -> None:
        match step:
            case int():
                self.pass_time(step)
            case str() if step in HUBS:
                self.present.discard(step)
            case str():
                self.lose(step)
            case hub, call:
                self.call(hub, self.fitted(hub, call))

    def fitted(self, hub: str, call: Asks | op.AnyOperation) -> op.AnyOperation:
        """What the mode makes of *call*."""
        if isinstance(call, Asks):
            call = call.call(self.mode)
            self.asked[hub] |= {request.number: request for request in requests_of(call)}
        if isinstance(call, op.Adopt) and self.address.slotted:
            call = replace(call, slots=SLOTS[:2])
        return call

    def back(self, start: tuple[int, Judge, int, Any]) -> None:
        self.server.state, judge, self.now_us, asked = start
        self.judge, self.asked = copy(judge), {hub: dict(of) for hub, of in asked.items()}
        self.judge.granted_ms = dict(judge.granted_ms)

    def walk(self) -> Iterator[str]:
        """What is wrong, and after which refusal, on the quick path and on the general one."""
        known = list[list[str]]()
        for general in (False, True):
            script_of = functools.partial(ending, "") if general else script
            plain = self.refuse("", script_of)
            assert not [*self.faults(plain)], [*self.faults(plain)]
            names = self.redis.ran
            if names not in known:
                known.append(names)
                for refused in [*range(1, len(names) + 1), *sorted({*names}), "set_repl", "writes"]:
                    where = f"{names[refused - 1]} {refused}" if isinstance(refused, int) else refused
                    ran = self.refuse(refused, script_of)
                    for fault in [*self.faults(ran), *self.recoveries()]:
                        yield f"{where}{' without quick path' * general}: {fault}"

    def refuse(self, refused: int | str, script_of: Callable[..., Script]) -> Ran:
        self.back(self.start)
        self.told.clear()
        self.redis.refused = refused
        setattr(codec, "script", script_of)  # noqa: B010
        ran = self.server.run(self.address, self.called, self.hub, self.now_us)
        setattr(codec, "script", script)  # noqa: B010
        self.redis.refused = ""
        return ran

    def faults(self, ran: Ran) -> Iterator[str]:
        """What is wrong at once."""
        after, heard = ran.after, [each for each in self.told if each[0] in self.present]
        if self.told and self.server.state == self.start[0]:
            yield f"nothing was written, and this was told: {self.told}"
        for hub, push in heard:
            held = {int(i[33:]): permit for i, permit in after.live.items() if i.startswith(hub)}
            match push:
                case Granted():
                    for number, (token, _, slots) in push.grants:
                        permit = held.get(number)
                        if permit is None or (permit.token, permit.slots) != (token, slots):
                            yield f"{hub} was told of {number} with {token}, and has {permit}"
                case Revoked():
                    if lost := held.keys() & {*push.numbers}:
                        yield f"{hub} was told of the end of {lost}, which it holds"
                case Deleted():
                    if held:
                        yield f"{hub} was told of a deletion, and holds {held}"
                case _:
                    pass
        # What was done has to be right, but for what is missing.
        judged = ran if ran.done else ran._replace(answer=AdoptReply(None))
        yield from (str(each) for each in self.judge.ran(judged) if ran.done or each.rule != LEFT)
        yield from self.excess(after)

    def excess(self, look: Look) -> Iterator[str]:
        """What no call may lead to, whatever it granted."""
        tokens = [permit.token for permit in look.live.values() if permit.token]
        if len({*tokens}) < len(tokens):
            yield f"a token is held twice: {look.live}"
        most = max([r.limit for of in self.asked.values() for r in of.values()], default=0)
        changed = self.called.limit if isinstance(self.called, op.SetLimit) else 0
        most = max(most, look.set_limit or 0, changed if isinstance(changed, int) else 0)
        if (used := look.room().uses.total()) > max(most, self.before.room().uses.total()):
            yield f"{used} of {most} are in use: {look.live}"

    def recoveries(self) -> Iterator[str]:
        """What is not right, once nothing is refused any more. Known states are left out."""
        after = self.server.state, self.judge, self.now_us, self.asked
        if self.server.state in self.recovered:
            return
        self.recovered.add(self.server.state)
        for again in (True, False):
            self.back(after)
            try:
                self.recover(again=again)
            except AssertionError as error:
                yield f"{'sent again' if again else 'given up'}: {error}"

    def recover(self, *, again: bool) -> None:
        call = self.called
        waits = {hub: {int(w.id[33:]) for w in self.before.line if w.id.startswith(hub)} for hub in HUBS}
        if isinstance(call, op.Acquire):
            waits[self.hub] |= {*call.numbers} if again else set()
        elif isinstance(call, op.Abandon):
            waits[self.hub] -= {request.number for request in call.requests}
        if again or isinstance(call, op.Abandon):
            self.said(self.hub, call)
        elif isinstance(call, op.Acquire):
            self.said(self.hub, op.Abandon(requests_of(call)))
        hubs = [hub for hub in HUBS if hub in self.present]
        for hub in hubs:
            self.beat(hub, waits[hub])
        for hub in hubs:
            if held := self.held_by(hub):
                self.said(hub, op.Refresh(held, LEASE))
        self.said(hubs[-1], op.Heartbeat(LEASE), later=())
        look = self.look
        assert not [*self.excess(look)], [*self.excess(look)]
        assert not look.leaked, f"these facts stayed: {look.leaked}"
        self.probe(look)
        self.pass_time(LEASE + 1)
        self.said(hubs[0], op.Reap(), later=())

    def beat(self, hub: str, numbers: set[int]) -> None:
        """A heartbeat of a client that has reconnected, and asks again for what is gone."""
        requests = [self.asked[hub][number] for number in sorted(numbers)]
        reply = self.said(hub, op.Heartbeat(LEASE, requests, INFO))
        for request, answer in zip(requests, reply.answers, strict=True):
            if answer == GONE:
                new = self.asked[hub][max(self.asked[hub]) + 1] = request._replace(number=max(self.asked[hub]) + 1)
                options = op.RequestOptions(request.permits, key=request.key, again=True)
                slots = SLOTS[: request.limit] if self.address.slotted else None
                every = {new.number: options}
                self.said(hub, op.Acquire([new.number], LEASE, request.limit, every, slots=slots))

    def said(self, hub: str, call: op.AnyOperation, later: Sequence[str] = (MEET, LEFT)) -> Any:
        """The answer, which is right but for what a heartbeat mends *later*."""
        ran = self.server.run(self.address, call, hub, self.now_us)
        if isinstance(ran.answer, CommandError) and isinstance(call, op.Adopt | op.Detach):
            return self.said(hub, replace(call, call=call.call + 1))  # it is void
        wrong = [str(broken) for broken in self.judge.ran(ran) if broken.rule not in later]
        assert not wrong, wrong
        assert ran.done, f"{call} was answered {ran.answer}"
        if isinstance(ran.answer, Reply) and ran.answer.next_ms == 0:
            self.said(hub, op.Reap(), later)
        return ran.answer

    def probe(self, look: Look) -> None:
        """As much as is free is granted, and not more."""
        limit = 2 if look.set_limit is None else look.set_limit
        free = limit - look.room().uses.total()
        if look.line or look.has_lost_facts or look.room().ramps:
            return
        for number, permits in (900, free + 1), (901, free):
            if permits > 0:
                call = ask(number, permits=permits, limit=limit, waits=False, key="").call(self.mode)
                answer = self.said(A, call).answers[0]
                granted = not isinstance(answer, int) or answer > 0
                assert granted is (permits == free), f"{permits}, with {free} free: {answer}"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "script", script)


@pytest.mark.parametrize("mode", ["fair", "zset", "zset+slots", "fair+keys", "fair+share"])
def test_a_refused_command_is_no_lie_and_no_loss(mode: Mode) -> None:
    faults = list[str]()
    for what, (steps, _, call) in STATES.items():
        of_keys = any(isinstance(getattr(c, "key", None), str) for c in _changes(steps, call))
        if "+keys" in mode or "+share" in mode or not of_keys:
            walk = Walk(mode, refusing(), what)
            faults += [f"{what}: {fault}" for fault in walk.walk()]
    assert not faults, "\n" + "\n".join(faults)


def _changes(steps: Sequence[Step], call: Asks | op.AnyOperation) -> list[object]:
    """The calls that may be of a key, which not every mode has."""
    calls = [call, *(step[1] for step in steps if isinstance(step, tuple))]
    return [each for each in calls if isinstance(each, op.SetLimit | op.StartBackOff)]
