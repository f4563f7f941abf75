"""A script of which the server refuses a command tells no lie, and takes nothing for good.

Each script runs from prepared states, and is refused each of its commands in turn, each command
by its name, and all writes. Redis does not take back what the script did before. Afterwards

1. nothing was received where nothing was written;
2. who was told of a grant has it, with that token and these slots; who was told of an end, or of a
   deletion, does not have what it was about;
3. the rules of every run hold, but that keys may have no expiry yet and that somebody may wait;
   no more is in use than may be, and no token is held twice.

If the refusal is one that a server makes, the call is sent again or given up, each process sends a
heartbeat, asks again for what is gone, and refreshes what it holds, once nothing is refused any
more. Then all rules hold: who waits
meets what is free, as much as is free is granted and not more, and no facts stay behind. So it is
when the leases have ended.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, HubInfo
from redsem_async._protocol.pushes import Deleted, Granted, Revoked
from redsem_async._protocol.replies import GONE, AdoptReply, Reply
from redsem_async._protocol.status import Status
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from redsem_async.testing._embedded import EmbeddedRedis
from tests.scripts.in_memory import HUBS, INFO, SLOTS, InMemory
from tests.scripts.refusing import FOR_GOOD, REASONS, WRITES, Refusing, RefusingServer
from tests.scripts.test_quick_paths import ending
from tests.worlds.judge import LEFT, MEET, RATE, Judge
from tests.worlds.look import Look, Ran, requests_of
from tests.worlds.server import Memory, ScriptServer

A, B, C = HUBS
LEASE = 90_000
LIMIT = 2
DEBT = 5000  # ms, more than is left of any
# Costs of two rates. The first lets one go each half second, the second is in nobody's way.
EACH, MUCH, NOTHING = ":500000/500000+9/90", ":4000000/500000+9/90", ":0/500000+0/90"


def terms(key: str) -> op.KeyTerms:
    return op.KeyTerms(key, LIMIT, 1.0, 2000)


def ask(
    *numbers: int,
    limit: int = LIMIT,
    key: str = "k",
    lease_ms: int = LEASE,
    info: HubInfo = UNCHANGED,
    **more: Any,
) -> op.Acquire:
    every = dict.fromkeys(numbers, op.RequestOptions(key=terms(key), **more))
    return op.Acquire(numbers, lease_ms, limit, every, hub_info=info)


def waiter(number: int, key: str = "k") -> op.QueuedRequest:
    return op.QueuedRequest(number, LEASE, LIMIT, 1, terms(key))


def ask_rated(*numbers: int, costs: str = EACH, **more: Any) -> op.Acquire:
    return ask(*numbers, limit=3, costs=costs, **more)


Step = int | str | tuple[str, op.AnyOperation]
"""Milliseconds that pass, a hub that is gone or a key that is lost, or a call of a hub."""

KNOWN: list[Step] = [(hub, op.Heartbeat(LEASE, hub_info=INFO)) for hub in HUBS]
ONE: list[Step] = [*KNOWN, (A, ask(1))]
FULL: list[Step] = [*ONE, (B, ask(1, key="l"))]
LINE: list[Step] = [*FULL, (C, ask(1)), (A, ask(2, key="m")), (C, ask(2, key="l"))]
HEAVY: list[Step] = [*KNOWN, (A, ask(1, permits=2)), (C, ask(1)), (B, ask(1)), (A, ask(2))]
SHORT: list[Step] = [*KNOWN, (B, ask(1, 2, lease_ms=9000)), (C, ask(1, permits=2)), (A, ask(1))]
THREE: list[Step] = [*KNOWN, (A, ask(1, limit=3)), (A, ask(2, 3, limit=3, key="l"))]
MIXED: list[Step] = [*THREE, *[(h, ask(n, limit=3)) for h, n in ((B, 1), (C, 1), (A, 4))]]
SLOWED: list[Step] = [*LINE, (A, op.StartBackOff(900, None, 1)), 1000]
SLOWED_KEY: list[Step] = [*LINE, (A, op.StartBackOff(900, None, 1, "k")), 1000]
SPARSE: list[Step] = [*ONE, (C, ask(1, permits=2, key="l"))]
FREED: Step = (A, op.Release(A, [1]))
SILENT = HubInfo("x", NO_PUSH)

SPENT: list[Step] = [*KNOWN, (A, ask_rated(1))]
DUE: list[Step] = [*SPENT, (B, ask_rated(1))]
RATED: list[Step] = [*DUE, (C, ask_rated(1, key="l"))]

STATES: dict[str, tuple[Sequence[Step], str, op.AnyOperation]] = {
    "the first acquire": ([], A, ask(1, info=INFO)),
    "an acquire": (ONE, A, ask(2)),
    "an acquire that waits": (FULL, A, ask(2)),
    "an acquire behind others": (LINE, A, ask(3)),
    "an acquire beside others": (SPARSE, A, ask(2, lease_ms=9000)),
    "an acquire that does not wait": (SPARSE, B, ask(1, key="m", waits=False)),
    "an acquire with a head start": (LINE, B, ask(2, ahead_ms=5000)),
    "an acquire after an expiry": ([*SHORT, 9000], A, ask(2)),
    "an acquire after a loss": ([*LINE, "meta"], A, ask(3, info=INFO)),
    "a heavy acquire": (ONE, A, ask(2, permits=2, limit=3)),
    "a batch of which some wait": (ONE, A, ask(2, 3, 4)),
    "a release": (FULL, A, op.Release(A, [1])),
    "a release of some": (THREE, A, op.Release(A, [1, 3])),
    "a release of a heavy one": (HEAVY, A, op.Release(A, [1], waits=True)),
    "a release to its own": ([*FULL, (A, ask(2))], A, op.Release(A, [1], waits=True)),
    "a release that prefers its own": (LINE, A, op.Release(A, [1], None, True, [waiter(2, "m")])),
    "a release to another": (LINE, A, op.Release(A, [1])),
    "a release to several": (MIXED, A, op.Release(A, [1, 2, 3], waits=True)),
    "a release to a heavy one": (SHORT, B, op.Release(B, [1, 2])),
    "a release to a dead one": ([*MIXED, B], A, op.Release(A, [1, 2], waits=True)),
    "a release beside a dead one": ([*LINE, C], A, op.Release(A, [1])),
    "a release by another": (LINE, C, op.Release(A, [1], waits=True)),
    "a release in a ramp": (SLOWED, A, op.Release(A, [1], 7)),
    "a release under a set limit": ([*LINE, (B, op.SetLimit(2, 1))], A, op.Release(A, [1])),
    "a release without messages": ([*FULL, (C, ask(1, info=SILENT))], A, op.Release(A, [1])),
    "a release after a loss": ([*LINE, "holders"], B, op.Release(B, [1])),
    "a release with lost facts": ([*LINE, "facts"], B, op.Release(B, [1])),
    "a refresh": (FULL, A, op.Refresh([1], 200_000)),
    "a bounded refresh": (HEAVY, A, op.Refresh([1], 200_000, 250_000)),
    "an abandon of a request": (LINE, C, op.Abandon([waiter(1)])),
    "an abandon of a grant": (LINE, A, op.Abandon([waiter(1)], 3, 4)),
    "a heartbeat": (LINE, C, op.Heartbeat(LEASE, [waiter(1), waiter(2, "l")])),
    "a heartbeat after an expiry": ([*SHORT, 9000], A, op.Heartbeat(LEASE, [waiter(1)])),
    "a heartbeat of a new hub": ([*LINE, "hubs"], C, op.Heartbeat(LEASE, [waiter(1)], INFO)),
    "a heartbeat after a loss": ([*LINE, "queue"], C, op.Heartbeat(LEASE, [waiter(1)])),
    "an adoption": (LINE, C, op.Adopt(A, 1, 3, LEASE, call=1)),
    "an adoption of a heavy one": (HEAVY, B, op.Adopt(A, 1, 3, LEASE, call=1)),
    "a detach": (LINE, A, op.Detach(1, 10_000, 1)),
    "a status": (LINE, A, Status(9)),
    "a higher limit": (LINE, B, op.SetLimit(4, 1)),
    "a pause": (LINE, B, op.SetLimit("pause", 1)),
    "a resumption": ([*LINE, (A, op.SetLimit(0, 1)), FREED], A, op.SetLimit("resume", 2)),
    "a limit of a key": (LINE, B, op.SetLimit(1, 1, "k")),
    "no limit of a key": ([*LINE, (B, op.SetLimit(1, 1, "k"))], B, op.SetLimit(None, 2, "k")),
    "a back-off": (LINE, A, op.StartBackOff(900, None, 1)),
    "a cut": (LINE, A, op.StartBackOff(0, 1, 1)),
    "a cut of a key in a ramp": (SLOWED_KEY, B, op.StartBackOff(0, 2**52, 1, "k")),
    "the end of a back-off": ([*SLOWED, FREED], A, op.StartBackOff(0, None, 2)),
    "a back-off of a key": (LINE, A, op.StartBackOff(900, None, 1, "k")),
    "the end of that of a key": (
        [*SLOWED_KEY, FREED],
        A,
        op.StartBackOff(0, None, 2, "k"),
    ),
    "a reap": ([*SHORT, 9000], C, op.Reap()),
    "a reap of the dead": ([*LINE, 170_000, (A, op.Heartbeat(LEASE))], A, op.Reap()),
    "a deletion": (LINE, B, op.Delete(1)),
}
OF_RATES: dict[str, tuple[Sequence[Step], str, op.AnyOperation]] = {
    "an acquire that a rate holds up": (SPENT, B, ask_rated(1)),
    "an acquire that a rate refuses": (SPENT, B, ask_rated(1, waits=False)),
    "an acquire into debt": ([*SPENT, 500], B, ask_rated(1, 2, costs=MUCH)),
    "an acquire by the deputy": (DUE, C, ask_rated(1)),
    "an acquire when the head may go": ([*RATED, 500], C, ask_rated(2)),
    "a release beside the head": (RATED, A, op.Release(A, [1])),
    "a release that settles": (RATED, A, op.Release(A, [1], settled={1: "-300000+0"})),
    "a release that lets the head go": (RATED, A, op.Release(A, [1], settled={1: "-500000+-9"})),
    "a release that owes": (RATED, A, op.Release(A, [1], settled={1: "4000000+99"})),
    "a release after a loss": ([*RATED, "meta"], A, op.Release(A, [1], settled={1: "-9+0"})),
    "a heartbeat of the head": ([*RATED, 500], B, op.Heartbeat(LEASE, requests_of(ask_rated(1)))),
    "a heartbeat of the deputy": ([*RATED, 1500], C, op.Heartbeat(LEASE)),
    "a heartbeat when the next is gone": ([*RATED, C, 500], B, op.Heartbeat(LEASE)),
    "an abandon of the head": (RATED, B, op.Abandon(requests_of(ask_rated(1)))),
    "an abandon of what was granted": (RATED, A, op.Abandon(requests_of(ask_rated(1)))),
    "a higher limit and a rate": ([*RATED, (A, op.SetLimit(1, 1))], A, op.SetLimit(9, 2)),
    "a deletion in debt": ([*RATED, (B, op.Release(A, [1], settled={1: "9+9"}))], B, op.Delete(1)),
}
PLAIN = "fair", "zset", "zset+slots", "fair+keys", "fair+share"
LATER = LEFT, RATE  # what is charged may be granted to nobody, and what is settled be lost


class Walk(InMemory):
    """A call from a prepared state, of which commands are refused."""

    def __init__(self, mode: Mode, what: str, redis: Refusing, tried: Refusing) -> None:
        super().__init__(mode)
        redis.world = tried.world = self
        self.redis, self.tried, self.server._redis = redis, tried, redis
        redis.restore({})
        self.asked = {hub: dict[int, op.QueuedRequest]() for hub in HUBS}
        steps, self.hub, call = (OF_RATES if self.address.rated else STATES)[what]
        for step in [*steps, 1]:
            self.take(step)
        self.called = self.fitted(self.hub, call)
        # From here on what a call comes to in a state is remembered.
        self.memory = Memory()
        self.server = ScriptServer(self._deliver, self.memory, lambda: tried.refused)
        self.server._redis, self.server._stands = redis, -1
        self.server.state = self.memory.number_of(redis.snapshot())
        self.recovered = {self.server.state}
        self.start = self.server.state, self.judge, self.now_us, self.asked
        self.line, self.used = self.look.line, self.look.room().uses.total()

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

    def fitted(self, hub: str, call: op.AnyOperation) -> op.AnyOperation:
        """The call as this mode has it."""
        if isinstance(call, op.Adopt) and self.address.slotted:
            return replace(call, slots=SLOTS[:LIMIT])
        if not isinstance(call, op.Acquire):
            return call
        options = dict(call.options)
        for number, asked in call.options.items():
            key = asked.key if self.address.keyed else None
            options[number] = asked._replace(key=key, ahead_ms=asked.ahead_ms * self.address.fair)
            if options[number] == op.DEFAULT_OPTIONS:
                del options[number]  # as on a quick path
        slots = SLOTS[: call.limit] if self.address.slotted else None
        call = replace(call, options=options, slots=slots)
        self.asked[hub] |= {request.number: request for request in requests_of(call)}
        return call

    def walk(self) -> Iterator[str]:
        """What is wrong, and after which refusal, on the quick path and on the general one."""
        known = list[list[str]]()
        for path, scripts in ("", script), (" without quick path", functools.partial(ending, "")):
            self.memory.outcomes.clear()  # or nothing would run to be counted
            assert not (wrong := [*self.faults(self.refuse("", scripts))]), wrong
            if (names := self.tried.ran) in known:
                continue
            known.append(names)
            for refused in self.refusals(names):
                ran = self.refuse(refused, scripts)
                name = f"{names[refused - 1]} {refused}" if isinstance(refused, int) else refused
                heals = refused in FOR_GOOD
                for fault in [*self.faults(ran), *(self.recoveries() if heals else ())]:
                    yield f"{name}{path}: {fault}"

    def refusals(self, names: list[str]) -> Sequence[int | str]:
        places = range(1, len(names) + 1)
        if not isinstance(self.tried, RefusingServer):
            return *places, *sorted({*names}), "set_repl", "writes"
        return [why for why in REASONS if why in names or why not in WRITES]

    def back(self, start: tuple[int, Judge, int, Any]) -> None:
        self.server.state, judge, self.now_us, asked = start
        self.judge, self.asked = copy(judge), {hub: {**of} for hub, of in asked.items()}
        self.judge.granted_ms = {**judge.granted_ms}

    def refuse(self, refused: int | str, scripts: Callable[..., Script]) -> Ran:
        self.back(self.start)
        self.told.clear()
        setattr(codec, "script", scripts)  # noqa: B010
        self.tried.refused, self.server._redis, self.server._stands = refused, self.tried, -1
        ran = self.server.run(self.address, self.called, self.hub, self.now_us)
        self.tried.refused, self.server._redis, self.server._stands = "", self.redis, -1
        setattr(codec, "script", script)  # noqa: B010
        return ran

    def faults(self, ran: Ran) -> Iterator[str]:
        """What is wrong at once."""
        heard = [(hub, push) for hub, push in self.told if hub in self.present]
        if heard and self.server.state == self.start[0]:
            yield f"nothing was written, and this was received: {heard}"
        for hub, push in heard:
            live = ran.after.live.items()
            held = {int(i[33:]): permit for i, permit in live if i.startswith(hub)}
            match push:
                case Granted():
                    for number, (token, _, slots) in push.grants:
                        permit = held.get(number)
                        if permit is None or (permit.token, permit.slots) != (token, slots):
                            yield f"{hub} was told of {number} with {token}, and has {permit}"
                case Revoked() if ended := held.keys() & {*push.numbers}:
                    yield f"{hub} was told of the end of {ended}, and holds it"
                case Deleted() if held:
                    yield f"{hub} was told of a deletion, and holds {held}"
                case _:
                    pass
        # What was done has to be right, whatever is missing.
        judged = ran if ran.done else ran._replace(answer=AdoptReply(None))
        yield from (
            str(each) for each in self.judge.ran(judged) if ran.done or each.rule not in LATER
        )
        yield from self.excess(ran.after)

    def limit(self, look: Look) -> int:
        declared = [request.limit for of in self.asked.values() for request in of.values()]
        return max(declared, default=LIMIT) if look.set_limit is None else look.set_limit

    def excess(self, look: Look) -> Iterator[str]:
        """What no call may lead to, whatever it granted."""
        tokens = [permit.token for permit in look.live.values() if permit.token]
        if len({*tokens}) < len(tokens):
            yield f"a token is held twice: {look.live}"
        if (used := look.room().uses.total()) > max(self.limit(look), self.used):
            yield f"{used} are in use: {look.live}"

    def recoveries(self) -> Iterator[str]:
        """What is not right, once nothing is refused any more."""
        after = self.server.state, self.judge, self.now_us, self.asked
        if after[0] in self.recovered:
            return
        self.recovered.add(after[0])
        for again in (True, False):
            self.back(after)
            try:
                self.recover(again=again)
            except AssertionError as error:
                yield f"{'sent again' if again else 'given up'}: {error}"

    def recover(self, *, again: bool) -> None:
        call, line = self.called, self.line
        waits = {hub: {int(w.id[33:]) for w in line if w.id.startswith(hub)} for hub in HUBS}
        if isinstance(call, op.Abandon):
            waits[self.hub] -= {request.number for request in call.requests}
        if isinstance(call, op.Acquire) and again:
            waits[self.hub] |= {*call.numbers}
        elif isinstance(call, op.Acquire):
            call, again = op.Abandon(requests_of(call)), True
        if again or isinstance(call, op.Abandon):
            self.said(self.hub, call)
        hubs = [hub for hub in HUBS if hub in self.present]
        for hub in hubs:
            self.beat(hub, waits[hub])
        for hub in hubs:
            if held := self.held_by(hub):
                self.said(hub, op.Refresh(held, LEASE))
        self.said(hubs[-1], op.Heartbeat(LEASE), later=())
        if self.address.rated:
            self.pass_time(DEBT)
            self.said(hubs[-1], op.Heartbeat(LEASE), later=())
        look = self.look
        assert not (wrong := [*self.excess(look)]), wrong
        assert not look.leaked, f"these facts stayed: {look.leaked}"
        if not (look.line or look.has_lost_facts or look.room().ramps):
            self.use_up(look, self.limit(look))
        self.pass_time(LEASE + 1)
        self.said(hubs[0], op.Reap(), later=())

    def beat(self, hub: str, numbers: set[int]) -> None:
        """The heartbeat of a client that has reconnected, and asks again for what is gone."""
        requests = [self.asked[hub][number] for number in sorted(numbers)]
        reply = self.said(hub, op.Heartbeat(LEASE, requests, INFO))
        for request, answer in zip(requests, reply.answers, strict=True):
            if answer == GONE:
                number = max(self.asked[hub]) + 1
                again = op.RequestOptions(request.permits, key=request.key, asked_us=1)
                again = again._replace(costs=request.costs)
                call = op.Acquire([number], LEASE, request.limit, {number: again}, now_us=2)
                self.said(hub, self.fitted(hub, call))

    def use_up(self, look: Look, limit: int) -> None:
        """As much as is free is granted, and not more."""
        free = limit - look.room().uses.total()
        for number, permits in (900, free + 1), (901, free):
            if permits > 0:
                costs = NOTHING * self.address.rated
                options = op.RequestOptions(permits, waits=False, costs=costs)
                call = op.Acquire([number], LEASE, limit, {number: options})
                answer = self.said(A, self.fitted(A, call)).answers[0]
                granted = not isinstance(answer, int) or answer > 0
                assert granted is (permits == free), f"{permits}, with {free} free: {answer}"

    def said(self, hub: str, call: op.AnyOperation, later: Sequence[str] = (MEET, LEFT)) -> Any:
        """The answer, which is right but for what a heartbeat mends *later*."""
        ran = self.server.run(self.address, call, hub, self.now_us)
        if isinstance(ran.answer, CommandError) and isinstance(call, op.Adopt | op.Detach):
            return self.said(hub, replace(call, call=call.call + 1), later)  # it is void
        assert ran.done, f"{call} was answered {ran.answer}"
        wrong = [str(broken) for broken in self.judge.ran(ran) if broken.rule not in later]
        assert not wrong, wrong
        if isinstance(ran.answer, Reply) and ran.answer.next_ms == 0:
            self.said(hub, op.Reap(), later)
        return ran.answer


def walk(mode: Mode, tried: Refusing | None = None) -> None:
    redis, faults = _in_memory(), list[str]()
    for what, (steps, _, called) in (OF_RATES if "+rate" in mode else STATES).items():
        calls = [called, *(step[1] for step in steps if isinstance(step, tuple))]
        changes = [each for each in calls if isinstance(each, op.SetLimit | op.StartBackOff)]
        if "keys" in mode or "share" in mode or not any(each.key for each in changes):
            faults += [
                f"{what}: {each}" for each in Walk(mode, what, redis, tried or redis).walk()
            ]
    assert not faults, "\n" + "\n".join(faults)


@functools.cache
def _in_memory() -> Refusing:
    return Refusing()


@pytest.mark.parametrize("mode", [*PLAIN, "fair+rate", "fair+share+rate+slots"])
def test_a_refused_command_is_no_lie_and_no_loss(mode: Mode) -> None:
    walk(mode)


@pytest.mark.parametrize("mode", ["zset", "fair+share"])
def test_a_server_that_refuses_writes_makes_no_lie_and_no_loss(
    mode: Mode, server: EmbeddedRedis
) -> None:
    """It lacks replicas, or is one, or its memory is full, or a command is denied."""
    walk(mode, RefusingServer(server))
