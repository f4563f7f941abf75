"""Memory and Redis, driven with the same steps, give the same answers and the same messages.

The scripts are given the time here, so the steps decide how it passes, and set the clock back as
they like; everything else is as in production: real scripts on a real server, and real
subscriptions that decide whether a hub is there to be told.
"""

import os
import time
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis
from redis.exceptions import ResponseError

from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode, channel
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    Clear,
    Detach,
    Heartbeat,
    Operation,
    Reap,
    Refresh,
    Release,
    Request,
    Restore,
    SetLimit,
    Status,
)
from redsem_async._protocol.pushes import Granted, Push
from redsem_async._protocol.replies import AdoptReply, AnyReply, Holding, Reply, StatusReply
from redsem_async._redis.codec import Argument, Codec, push_of
from redsem_async._redis.faults import command_error
from redsem_async._redis.scripts import Script
from redsem_async.testing._spec.fair import FairSpecification
from redsem_async.testing._spec.records import Reordered, UnknownHub, Void, requests_of
from redsem_async.testing._spec.zset import ZsetSpecification

HUBS: tuple[str, ...] = ("a" * 32, "b" * 32, "c" * 32)
LEASES_MS = (1000, 4000, 10_000)
LONGEST_MS = 60_000
START_US = 1_800_000_000_000_000
RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "60"))
MIN_LEFT_MS = 30_000


class TimedWire(Codec):
    """Says what time it is, also in the server's stead."""

    def encode(
        self,
        operation: Operation,
        tag: int,
        hub: str,
        recovers: bool = False,
        sharded: bool = False,
    ) -> tuple[Script, tuple[Argument, ...]]:
        script, arguments = super().encode(operation, tag, hub, recovers, sharded)
        keys, after = int(arguments[0]) + 1, int(arguments[0]) + 3
        return script, (*arguments[:keys], tag, self._wall_clock(), *arguments[after:])


class Agreement(RuleBasedStateMachine):
    """Every rule is one call, carried out by both."""

    mode: Mode
    clock: Clock
    url: str
    prefix: str
    quick: Counter[type]  # calls that took the quick path of their script

    def __init__(self) -> None:
        super().__init__()
        self.redis = Redis.from_url(self.url, protocol=2)
        self.address = Address(self.mode, self.prefix, "agreed", self.clock)
        self.keys = (*self.address.keys, *self.address.recovery_keys)
        self.redis.delete(*self.keys)
        self.now_us = START_US
        self.wire = TimedWire(self.address, lambda: self.now_us)
        self.recovers = False
        self.lost: list[tuple[str, tuple[int, int, int]]] = []
        self.said: list[tuple[str, Push]] = []
        self.model = (FairSpecification if self.mode == "fair" else ZsetSpecification)(self.tell)
        self.present: dict[str, bool] = dict.fromkeys(HUBS, True)
        self.numbers: dict[str, int] = dict.fromkeys(HUBS, 0)
        self.calls: dict[str, int] = dict.fromkeys(HUBS, 0)
        self.requests: dict[str, list[Request]] = {hub: [] for hub in HUBS}
        self.sent: list[tuple[str, Operation]] = []
        self.expiring: list[str] = []  # keys that were seen to have an expiry, if they exist
        self.tags = 0
        self.tokens: set[int] = set()
        client: Any = self.redis
        self.ears: Any = client.pubsub(ignore_subscribe_messages=True)
        self.ears.subscribe("always")  # a connection without a subscription is no subscriber
        self.ears.subscribe(*(channel(self.prefix, hub) for hub in HUBS))
        self._settle()

    def teardown(self) -> None:
        self.redis.delete(*self.keys)
        self.ears.close()
        self.redis.close()

    # -- the two sides

    def tell(self, owner: str, told: Push) -> int:
        if not self.present[owner]:
            return 0
        self.said.append((owner, told))
        return 1

    def call(self, hub: str, call: Operation) -> AnyReply | CommandError:
        self.tags += 1
        self.said.clear()
        began = self._age_meta()
        real = self._run(hub, call)
        try:
            expected: AnyReply | CommandError = self.model.run(
                self.address, call, hub, self.now_us
            )
        except (Reordered, UnknownHub, Void):
            assert isinstance(real, CommandError) and real.kind is ErrorKind.RETRY_NOW
            return real
        assert _plain(real) == _plain(expected), (call, real, expected)
        heard = self._heard()
        assert heard == self.said, (call, heard, self.said)
        self._compare_meta(call, began)
        self._learn(call, real)
        return real

    def _run(self, hub: str, call: Operation) -> AnyReply | CommandError:
        client: Any = self.redis
        script, arguments = self.wire.encode(call, self.tags, hub, self.recovers)
        try:
            raw = client.execute_command("EVAL", script.text, *arguments)
        except ResponseError as error:
            return command_error(error)
        raw = cast("list[Any]", raw)
        assert int(raw[0]) == self.tags
        if len(raw) == (3 if isinstance(call, Acquire) else 1):
            self.quick[type(call)] += 1
        return self.wire.reply(call, raw)

    def _age_meta(self) -> float:
        """Have the key `meta` expire as the model says, since Redis counts expiries by itself.

        It is used before it expires: `MIN_LEFT_MS` is more than any call takes. The other keys
        are kept for longer than a test takes, once it is seen that they have an expiry.
        """
        now_ms = self.now_us // 1000
        pipeline = self.redis.pipeline(transaction=False)
        state = self.model.state
        if state.kept_until:
            state.kept_until = max(state.kept_until, now_ms + MIN_LEFT_MS)
            pipeline.pexpire(self.keys[2], int(state.kept_until) - now_ms)
        for key in self.expiring:
            pipeline.expire(key, 3600)
        self.expiring = []
        pipeline.execute()
        return time.monotonic()

    def _compare_meta(self, call: Operation, began: float) -> None:
        left = self.redis.pttl(self.keys[2])
        passed = (time.monotonic() - began) * 1000
        kept_until = self.model.state.kept_until
        expected = kept_until and kept_until - self.now_us // 1000
        if left < 0:
            assert not expected, (call, "meta is not there, or has no expiry", left, expected)
        else:
            # The server caches its clock for some milliseconds.
            assert -500 - passed <= left - expected <= 500, (call, left, expected, passed)

    def _heard(self) -> list[tuple[str, Push]]:
        self.ears.ping()
        heard: list[tuple[str, Push]] = []
        for item in self._until_pong():
            owner = item["channel"].decode().rpartition("@")[2]
            told = push_of(item["data"])
            assert told is not None
            heard.append((owner, told))
        return heard

    def _until_pong(self) -> list[dict[str, Any]]:
        """What was published before a PING on the subscriber's connection is answered."""
        items: list[dict[str, Any]] = []
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            item = cast("dict[str, Any] | None", self.ears.get_message(timeout=1))
            if item is not None and item["type"] == "pong":
                return items
            if item is not None:
                items.append(item)
        raise AssertionError("no PONG came")

    def _listen(self, hub: str) -> None:
        self.ears.subscribe(channel(self.prefix, hub))
        self._settle()

    def _settle(self) -> None:
        self.ears.ping()
        assert not self._until_pong()

    def _learn(self, call: Operation, answer: AnyReply | CommandError) -> None:
        new: list[int] = []
        if isinstance(answer, Reply) and isinstance(call, Acquire):
            new += [token for token in answer.answers if isinstance(token, int) and token > 0]
        if isinstance(answer, Reply):
            new += [token for _, token in answer.granted]
        for _, told in self.said:
            if isinstance(told, Granted):
                new += [holding.token for _, holding in told.grants]
        assert len(new) == len(set(new)) and not self.tokens & set(new), "a token was used twice"
        if new and self.tokens:
            assert min(new) > max(self.tokens), "a token is lower than an earlier one"
        self.tokens |= set(new)

    # -- steps

    @initialize(limit=st.sampled_from((1, 2, 3)), recovers=st.booleans(), plain=st.booleans())
    def choose(self, limit: int, recovers: bool, plain: bool) -> None:
        self.plain = plain  # room for most, and nothing but what most do: the quick paths' case
        self.limit = self.ceiling = 2 * limit if plain else limit
        self.recovers = recovers
        if recovers:
            self.model.recovers = True

    @precondition(lambda self: not self.plain)
    @rule(
        hub=st.sampled_from(HUBS),
        weights=st.lists(st.sampled_from((1, 1, 1, 2, 3)), min_size=1, max_size=4),
        waits=st.lists(st.sampled_from((True, True, False)), min_size=4, max_size=4),
        lease_ms=st.sampled_from(LEASES_MS),
        more=st.sampled_from((0, 0, 0, 1)),
        max_waiters=st.sampled_from((None, None, 2)),
        beside=st.sampled_from((0, 0, 1, 3)),
        hub_info=st.sampled_from((None, None, None, HubInfo("x"), HubInfo("x", True))),
    )
    def acquire(
        self,
        hub: str,
        weights: list[int],
        waits: list[bool],
        lease_ms: int,
        more: int,
        max_waiters: int | None,
        beside: int,
        hub_info: HubInfo | None,
    ) -> None:
        limit = self.limit + more
        self.ceiling = max(self.ceiling, limit)
        first = self.numbers[hub] + 1
        numbers = range(first, first + len(weights))
        self.numbers[hub] = numbers[-1]
        kinds = [
            (min(permits, limit), stays) for permits, stays in zip(weights, waits, strict=False)
        ]
        unusual = {n: kind for n, kind in zip(numbers, kinds, strict=True) if kind != (1, True)}
        if hub_info is not None:
            hub_info = hub_info._replace(recovers=self.recovers)
        call = Acquire(
            *(numbers, lease_ms, limit, unusual, max_waiters),
            waits=beside,
            highest=limit + more,
            hinted=beside,
            hub_info=hub_info,
        )
        self.requests[hub] += requests_of(call)
        self.sent.append((hub, call))
        self.call(hub, call)

    @rule(
        hub=st.sampled_from(HUBS),
        counts=st.lists(st.sampled_from((1, 1, 2)), min_size=1, max_size=4),
        lease_ms=st.sampled_from(LEASES_MS),
        times=st.sampled_from((1, 2)),
        keeps=st.booleans(),
    )
    def use_plainly(
        self, hub: str, counts: list[int], lease_ms: int, times: int, keeps: bool
    ) -> None:
        """As most do, and that more than once: nothing is said but what is asked for."""
        for time_left in reversed(range(times)):
            for count in counts:
                self._acquire_plainly(hub, count, lease_ms)
            while (not keeps or time_left) and (held := self._numbers_held(hub)):
                self.sent.append((hub, Release(hub, held[: counts[0]])))
                self.call(*self.sent[-1])

    def _acquire_plainly(self, hub: str, count: int, lease_ms: int) -> None:
        known = hub in self.model.state.hubs and self.model.state.hubs[hub].description
        hub_info = None if known else HubInfo("x", recovers=self.recovers)
        numbers = range(self.numbers[hub] + 1, self.numbers[hub] + 1 + count)
        self.numbers[hub] = numbers[-1]
        call = Acquire(numbers, lease_ms, self.limit, hub_info=hub_info)
        self.requests[hub] += requests_of(call)
        self.sent.append((hub, call))
        self.call(hub, call)

    def _numbers_held(self, hub: str) -> list[int]:
        return sorted(int(i[33:]) for i in self.model.state.holders if i.startswith(hub))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A command arrives once more, as it does when its reply was lost."""
        hub, call = data.draw(st.sampled_from(self.sent))
        self.call(hub, call)

    @rule(hub=st.sampled_from(HUBS), ahead=st.sampled_from((1, 5)))
    def acquire_out_of_order(self, hub: str, ahead: int) -> None:
        """The batch before this one has not run."""
        number = self.numbers[hub] + 10
        call = Acquire([number], 1000, self.limit, after=self.numbers[hub] + ahead)
        if self.mode == "fair":
            self.call(hub, call)

    @rule(hub=st.sampled_from(HUBS), caller=st.sampled_from(HUBS), data=st.data())
    def release(self, hub: str, caller: str, data: st.DataObject) -> None:
        numbers = data.draw(self._some_numbers(hub, unique=data.draw(st.booleans())))
        kept = data.draw(st.sampled_from((0, 0, 1))) if self.mode == "zset" else 0
        call = Release(hub, numbers, kept)
        self.sent.append((caller, call))
        self.call(caller, call)

    @rule(hub=st.sampled_from(HUBS), lease_ms=st.sampled_from(LEASES_MS), data=st.data())
    def refresh(self, hub: str, lease_ms: int, data: st.DataObject) -> None:
        numbers = data.draw(self._some_numbers(hub))
        held = self.model.state.holders
        heavy = {
            number: held[identity].permits
            for number in numbers
            if (identity := f"{hub}.{number}") in held and held[identity].permits > 1
        }
        self.call(hub, Refresh(numbers, lease_ms, heavy))

    @precondition(lambda self: any(self.requests.values()))
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        hub = data.draw(st.sampled_from([hub for hub in HUBS if self.requests[hub]]))
        some = st.lists(st.sampled_from(self.requests[hub]), min_size=1, max_size=3, unique=True)
        void = data.draw(st.sampled_from((0, 0, self.calls[hub], self.calls[hub] + 1)))
        call = Abandon(data.draw(some), void)
        self.sent.append((hub, call))
        self.call(hub, call)

    @rule(
        hub=st.sampled_from(HUBS),
        lease_ms=st.sampled_from(LEASES_MS),
        waits=st.sampled_from((0, 1, 2)),
        hinted=st.sampled_from((0, 1)),
        data=st.data(),
    )
    def heartbeat(
        self, hub: str, lease_ms: int, waits: int, hinted: int, data: st.DataObject
    ) -> None:
        asked: list[Request] = []
        if self.mode == "fair" and self.requests[hub]:
            asked = data.draw(st.lists(st.sampled_from(self.requests[hub]), max_size=4))
        self.numbers[hub] += self.mode == "zset"
        number = self.numbers[hub] if self.mode == "zset" else 0
        call = Heartbeat(lease_ms, asked, self.limit, waits, hinted, number=number)
        self.sent.append((hub, call))
        self.call(hub, call)

    @rule(hub=st.sampled_from(HUBS), owner=st.sampled_from(HUBS), data=st.data())
    def adopt(self, hub: str, owner: str, data: st.DataObject) -> None:
        old = data.draw(self._some_numbers(owner))[0]
        self.numbers[hub] += 1
        call = Adopt(owner, old, self.numbers[hub], 4000, call=self._next_call(hub))
        self.sent.append((hub, call))
        self.call(hub, call)

    @precondition(lambda self: not self.plain)
    @rule(hub=st.sampled_from(HUBS), expires_ms=st.sampled_from((500, LONGEST_MS)), data=st.data())
    def detach(self, hub: str, expires_ms: int, data: st.DataObject) -> None:
        number = data.draw(self._some_numbers(hub))[0]
        self.sent.append((hub, Detach(number, expires_ms, self._next_call(hub))))
        self.call(*self.sent[-1])

    @precondition(lambda self: not self.plain)
    @rule(limit=st.sampled_from((None, None, 0, 1, 2, 4)))
    def set_limit(self, limit: int | None) -> None:
        self.ceiling = max(self.ceiling, limit or 0)
        self.sent.append((HUBS[0], SetLimit(limit, self._next_call(HUBS[0]))))
        self.call(*self.sent[-1])

    @rule(most=st.sampled_from((0, 1, 100)))
    def status(self, most: int) -> None:
        self.call(HUBS[1], Status(most))

    @rule()
    def reap(self) -> None:
        self.call(HUBS[2], Reap())

    @precondition(lambda self: not self.plain)
    @rule()
    def lose_everything(self) -> None:
        """A flush, or a restart of a server that keeps nothing."""
        self._note_what_is_held()
        self.redis.delete(*self.keys)
        self.model.lose_everything()
        # Or tokens would be drawn again: the outage lasts for as long as the clock was behind.
        self.now_us = max(self.now_us, *self.tokens, 0) + 1_000_000

    @precondition(lambda self: self.recovers)
    @rule(hub=st.sampled_from(HUBS))
    def fail_over(self, hub: str) -> None:
        """Another server takes over: to the scripts, the marker names one that is not theirs.

        On a new connection a hub introduces itself before it says anything else.
        """
        self._note_what_is_held()
        if self.redis.exists(self.keys[-2]):
            self.redis.set(self.keys[-2], "another")
            self.model.state.marker = "another"
        self.call(hub, Heartbeat(1000, hub_info=HubInfo("x", recovers=True)))

    def _note_what_is_held(self) -> None:
        holders = self.model.state.holders.items()
        self.lost = [
            (identity[:32], (int(identity[33:]), held.token, held.permits))
            for identity, held in holders
            if held.expiry_ms > self.now_us // 1000
        ]

    @precondition(lambda self: self.recovers and self.lost)
    @rule(lease_ms=st.sampled_from(LEASES_MS), introduced=st.booleans(), data=st.data())
    def restore(self, lease_ms: int, introduced: bool, data: st.DataObject) -> None:
        hub, _ = data.draw(st.sampled_from(self.lost))
        permits = [permit for owner, permit in self.lost if owner == hub]
        hub_info = HubInfo("x", recovers=True) if introduced else None
        self.call(hub, Restore(permits, lease_ms, hub_info))

    @precondition(lambda self: len(self.sent) > 8)
    @rule()
    def clear(self) -> None:
        self.sent.append((HUBS[0], Clear(self._next_call(HUBS[0]))))
        self.call(*self.sent[-1])
        self.lost.clear()

    def _next_call(self, hub: str) -> int:
        """For a call that acts once: the server takes each number once, and none below it."""
        self.calls[hub] += 1
        return self.calls[hub]

    @rule(ms=st.sampled_from((1, 300, 1001, 4000, 15_000, 80_000)))
    def pass_time(self, ms: int) -> None:
        self.now_us += ms * 1000

    @precondition(lambda self: self.clock == "server" and self.counter_is_known())
    @rule(seconds=st.sampled_from((0.5, 2, 60, 3600)))
    def set_the_clock_back(self, seconds: float) -> None:
        """Somebody corrects it. No lease may seem to have grown by that."""
        self.now_us -= int(seconds * 1_000_000)

    def counter_is_known(self) -> bool:
        """A clock that is set back after a loss of state, and before a grant, is too much."""
        return self.model.state.counter.last >= max(self.tokens, default=0)

    @precondition(lambda self: not self.plain)
    @rule(hub=st.sampled_from(HUBS))
    def come_or_go(self, hub: str) -> None:
        """A process dies, or comes back."""
        self.present[hub] = not self.present[hub]
        if self.present[hub]:
            self._listen(hub)
        else:
            self.ears.unsubscribe(channel(self.prefix, hub))
            self._settle()

    def _some_numbers(self, hub: str, *, unique: bool = True) -> st.SearchStrategy[list[int]]:
        one = st.integers(1, max(1, self.numbers[hub]))
        if held := self._numbers_held(hub):
            one = st.sampled_from(held) | one  # or most would be of nobody
        return st.lists(one, min_size=1, max_size=4, unique=unique)

    # -- what holds after every step

    @invariant()
    def never_more_than_the_limit(self) -> None:
        counter = self.model.state.counter
        now_us = max(self.now_us + counter.ahead_us, counter.last - counter.offset_us)
        assert self.model.state.used(now_us // 1000) <= self.ceiling

    @invariant()
    def no_lease_is_longer_than_was_asked_for(self) -> None:
        """Counted from the time last noted, to which the clock may be set back."""
        counter = self.model.state.counter
        end = (counter.last - counter.offset_us) // 1000 + LONGEST_MS + 1001
        assert all(held.expiry_ms <= end for held in self.model.state.holders.values())

    @invariant()
    def nobody_holds_and_waits(self) -> None:
        if isinstance(self.model, FairSpecification):
            waiting = {waiter.id for waiter in self.model.line}
            assert not waiting & self.model.state.holders.keys()

    @invariant()
    def nothing_is_kept_for_longer_than_it_has_to_be(self) -> None:
        """Every key expires but a set limit, and of who holds nothing there is nothing."""
        holders, tokens, _, _, extra, *_ = self.keys
        look = self.redis.pipeline(transaction=False)
        look.zrange(holders, 0, -1)
        look.hkeys(tokens)
        look.zrange(extra, 0, -1)
        kept = [key for key in self.keys if not key.endswith((":limit", ":marker"))]
        for key in kept:
            look.pttl(key)
        answers: list[Any] = look.execute()
        held, with_token, heavy, *lifetimes = answers
        assert {*with_token, *(entry.rpartition(b":")[0] for entry in heavy)} <= {*held}
        assert -1 not in lifetimes, self.keys
        self.expiring = [key for key in kept if not key.endswith(":meta")]


def _plain(answer: object) -> object:
    """Sequences of any kind as lists: the two sides may choose."""
    if isinstance(answer, Reply | AdoptReply | StatusReply | Holding):
        return {name: _plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple | range):
        return [_plain(item) for item in cast("list[object]", answer)]
    return answer


def machine(mode: Mode, clock: Clock, url: str, prefix: str) -> type[Agreement]:
    """The state machine for one mode and clock, on one server."""
    facts: dict[str, object] = {"mode": mode, "clock": clock, "url": url, "prefix": prefix}
    facts["quick"] = Counter[type]()
    return type("Agreement", (Agreement,), facts)


@pytest.mark.fault(36)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_memory_and_redis_agree(mode: Mode, clock: Clock, server_url: str, prefix: str) -> None:
    """The memory backend is the specification only for as long as the scripts follow it."""
    agreement = machine(mode, clock, server_url, prefix)
    run_state_machine_as_test(
        agreement,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert agreement.quick[Acquire] and agreement.quick[Release], agreement.quick


@pytest.mark.parametrize("clock", ["server", "local"])
def test_a_request_of_a_forgotten_hub_is_in_line_once(
    clock: Clock, server_url: str, prefix: str
) -> None:
    """Nobody is served while others may put permits back: what is dead stays in line for so long.

    The machine above found it.
    """
    here, there = HUBS[:2]
    state = machine("fair", clock, server_url, prefix)()
    try:
        state.choose(limit=1, recovers=True, plain=False)
        state.use_plainly(hub=here, counts=[1], lease_ms=1000, times=1, keeps=False)
        state.pass_time(ms=80_000)
        state.fail_over(hub=there)
        assert here not in state.model.state.hubs, "it is remembered"
        assert state.model.waiting == 1
        for _ in range(2):
            answer = state.call(*state.sent[0])
            assert isinstance(answer, Reply)
            assert answer.waiting == 1
    finally:
        state.teardown()


@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_nothing_is_left_of_a_hub_that_is_silent_for_long(
    mode: Mode, server_url: str, prefix: str
) -> None:
    """Its numbers and who it was are forgotten once nothing of it can arrive any more."""
    here, there = HUBS[:2]
    state = machine(mode, "server", server_url, prefix)()
    try:
        state.choose(limit=1, recovers=False, plain=True)
        state.use_plainly(hub=here, counts=[1], lease_ms=1000, times=1, keeps=False)
        state.pass_time(ms=80_000)
        state.use_plainly(hub=there, counts=[1], lease_ms=1000, times=1, keeps=False)
        fields = cast("list[bytes]", state.redis.hkeys(state.keys[2]))
        assert any(field.startswith(there.encode()) for field in fields)
        assert not any(field.startswith(here.encode()) for field in fields)
        assert state.redis.zscore(state.keys[3], here) is None
    finally:
        state.teardown()
