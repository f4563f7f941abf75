"""One semaphore twice: real scripts on a real server, and the specification of them.

The scripts are given the time here; everything else is as in production, with real subscriptions
that decide whether a message reaches a hub.
"""

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import unquote

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from redis import Redis
from redis.exceptions import ResponseError

from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode, channel
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Acquire, Heartbeat, Operation, Reap
from redsem_async._protocol.pushes import Granted, Push
from redsem_async._protocol.replies import AnyReply, Reply
from redsem_async._redis.codec import Argument, Codec, push_of
from redsem_async._redis.faults import command_error
from redsem_async._redis.scripts import Script
from redsem_async.testing._memory import SPECIFICATIONS
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.records import Reordered, SlotsInUse, UnknownHub, Void
from tests.scripts.replay import joined, plain

HUBS: tuple[str, ...] = ("a" * 32, "b" * 32, "c" * 32)
START_US = 1_800_000_000_000_000
MIN_LEFT_MS = 30_000
SERVING = (Acquire, Heartbeat, Reap)


class TimedCodec(Codec):
    """Sends the time, also in the server's stead."""

    def encode(
        self,
        operation: Operation,
        tag: int,
        hub: str,
        sharded: bool = False,
    ) -> tuple[Script, tuple[Argument, ...]]:
        script, arguments = super().encode(operation, tag, hub, sharded)
        keys, after = int(arguments[0]) + 1, int(arguments[0]) + 3
        return script, (*arguments[:keys], tag, self._wall_clock(), *arguments[after:])


class Comparison(RuleBasedStateMachine):
    """Carries out every call on both sides, and compares what came of it."""

    mode: Mode
    clock: Clock
    url: str
    prefix: str
    quick: Counter[type]  # calls that took the quick path of their script

    def __init__(self) -> None:
        super().__init__()
        self.redis = Redis.from_url(self.url, protocol=2)
        self.address = Address(self.mode, self.prefix, "agreed", self.clock)
        self.keys = self.address.keys
        self.redis.delete(*self.keys, *self.address.first_keys)
        self.now_us = START_US
        self.tokens: set[int] = set()
        self.model = SPECIFICATIONS[self.mode.removesuffix("+slots")](self._publish)
        self._codec = TimedCodec(self.address, lambda: self.now_us)
        self._tags = 0
        self._published: list[tuple[str, Push]] = []
        self._expiring: list[str] = []  # keys that were seen to have an expiry, if they exist
        self._present = set(HUBS)
        self.called_at_us = START_US
        self.served = False  # the last call gave what was free to waiters
        client: Any = self.redis
        self._subscriber: Any = client.pubsub(ignore_subscribe_messages=True)
        # A connection without a subscription is no subscriber.
        self._subscriber.subscribe("always", *(channel(self.prefix, hub) for hub in HUBS))
        self._settle()

    def teardown(self) -> None:
        self.redis.delete(*self.keys, *self.address.first_keys)
        self._subscriber.close()
        self.redis.close()

    def come_or_go(self, hub: str) -> None:
        subscriber = self._subscriber
        change = subscriber.unsubscribe if hub in self._present else subscriber.subscribe
        change(channel(self.prefix, hub))
        self._present ^= {hub}
        self._settle()

    def _publish(self, owner: str, push: Push) -> int:
        if owner not in self._present:
            return 0
        self._published.append((owner, push))
        return 1

    def call(self, hub: str, call: Operation) -> AnyReply | CommandError:
        self._tags += 1
        self.called_at_us, self.served = self.now_us, False
        self._published.clear()
        before, began = self._age_meta()
        real = self._run(hub, call)
        in_use: Sequence[str] | None = None
        expected: AnyReply | CommandError | None = None
        try:
            expected = self.model.run(self.address, call, hub, self.now_us)
        except (Reordered, UnknownHub, Void):
            assert isinstance(real, CommandError) and real.kind is ErrorKind.RETRY_NOW
            return real
        except SlotsInUse as refused:
            in_use = list(refused.slots)
        if expected is None:
            assert isinstance(real, CommandError) and real.slots == in_use
            return real
        assert plain(real) == plain(expected), (call, real, expected)
        received = self._received()
        one, other = ([(h, push, 1) for h, push in sent] for sent in (received, self._published))
        assert joined(one) == joined(other), (call, received, self._published)
        self._compare_meta(call, before, began)
        self._learn(call, real)
        self.served = isinstance(call, SERVING)
        return real

    def _run(self, hub: str, call: Operation) -> AnyReply | CommandError:
        client: Any = self.redis
        script, arguments = self._codec.encode(call, self._tags, hub)
        try:
            raw = client.execute_command("EVAL", script.text, *arguments)
        except ResponseError as error:
            return command_error(error)
        raw = cast("list[Any]", raw)
        assert int(raw[0]) == self._tags
        if len(raw) == (2 if isinstance(call, Acquire) else 1):
            self.quick[type(call)] += 1
        return self._codec.reply(call, raw)

    def _age_meta(self) -> tuple[float, float]:
        """Have the key `meta` expire as the model says, since Redis counts expiries by itself.

        Returns in how many milliseconds it expires, and since when at most.

        It is used before it expires: `MIN_LEFT_MS` is more than any call takes. The other keys
        are kept for longer than a test takes, once it is seen that they have an expiry.
        """
        began = time.monotonic()  # before the server's count begins: this process may be stopped
        now_ms = self.now_us // 1000
        pipeline = self.redis.pipeline(transaction=False)
        state = self.model.state
        if state.kept_until:
            state.kept_until = max(state.kept_until, now_ms + MIN_LEFT_MS)
            pipeline.pexpire(self.keys[2], int(state.kept_until) - now_ms)
        for key in self._expiring:
            pipeline.expire(key, 3600)
        self._expiring = []
        pipeline.execute()
        return state.kept_until - now_ms, began

    def _compare_meta(self, call: Operation, before: float, began: float) -> None:
        left = self.redis.pttl(self.keys[2])
        passed = (time.monotonic() - began) * 1000
        kept_until = self.model.state.kept_until
        expected = kept_until and kept_until - self.now_us // 1000
        # An expiry is renewed, to three times what is needed, once less than twice that is left:
        # one of the two did that, and the other did not, because real time passes in Redis only.
        if left > 0 and abs(before - max(left, expected) * 2 / 3) <= passed + 10:
            self.model.state.kept_until = self.now_us // 1000 + left
        elif left < 0:
            assert not expected, (call, "meta is not there, or has no expiry", left, expected)
        else:
            # The server caches its clock for some milliseconds.
            assert -500 - passed <= left - expected <= 500, (call, left, expected, passed)

    def _received(self) -> list[tuple[str, Push]]:
        self._subscriber.ping()
        received: list[tuple[str, Push]] = []
        for item in self._until_pong():
            owner = item["channel"].decode().rpartition("@")[2]
            push = push_of(item["data"])
            assert push is not None
            received.append((owner, push))
        return received

    def _until_pong(self) -> list[dict[str, Any]]:
        """What was published before a PING on the subscriber's connection is answered."""
        items: list[dict[str, Any]] = []
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            item = cast("dict[str, Any] | None", self._subscriber.get_message(timeout=1))
            if item is not None and item["type"] == "pong":
                return items
            if item is not None:
                items.append(item)
        raise AssertionError("no PONG came")

    def _settle(self) -> None:
        self._subscriber.ping()
        assert not self._until_pong()

    def _learn(self, call: Operation, answer: AnyReply | CommandError) -> None:
        new: list[int] = []
        if isinstance(answer, Reply) and isinstance(call, Acquire):
            new += [token for token in answer.answers if isinstance(token, int) and token > 0]
        if isinstance(answer, Reply):
            new += [token for _, token in answer.granted]
        for _, push in self._published:
            if isinstance(push, Granted):
                new += [holding.token for _, holding in push.grants]
        assert len(new) == len(set(new)) and not self.tokens & set(new), "a token was used twice"
        if new and self.tokens:
            assert min(new) > max(self.tokens), "a token is lower than an earlier one"
        self.tokens |= set(new)

    @invariant()
    def nothing_is_kept_for_longer_than_it_has_to_be(self) -> None:
        """Every key expires but a set limit, and of who holds nothing there is nothing."""
        holders, tokens, _, _, extra, *_ = self.keys
        look = self.redis.pipeline(transaction=False)
        look.zrange(holders, 0, -1)
        look.hkeys(tokens)
        look.zrange(extra, 0, -1)
        keys = (*self.keys, *self.address.first_keys)
        kept = [key for key in keys if not key.endswith((":limit", ":key-limits"))]
        for key in kept:
            look.pttl(key)
        answers: list[Any] = look.execute()
        held, with_token, heavy, *lifetimes = answers
        assert {*with_token, *(entry.rpartition(b":")[0] for entry in heavy)} <= {*held}
        assert -1 not in lifetimes, list(zip(kept, lifetimes, strict=True))
        self._expiring = [key for key in kept if not key.endswith(":meta")]
        if isinstance(self.model, KeyedSpecification):
            self._compare_texts(self.model)

    def _compare_texts(self, model: KeyedSpecification) -> None:
        """Of keys there is what is said of who holds and waits, and nothing else."""
        name, use = self.address.first_keys[-2], Counter[str]()
        counter = cast("bytes | None", self.redis.hget(self.keys[2], "counter"))
        assert int(counter or 0) == model.state.counter.last
        found = [
            re.split("[:!]", text.decode())
            for text in cast("list[bytes]", self.redis.zrange(name, 0, -1))
        ]
        texts = {kind: [rest for first, *rest in found if first == kind] for kind in "iulagrkvsbt"}
        for key, power, _ in texts["u"]:
            use[unquote(key)] += 2 ** int(power)
        held = Counter[str]()
        for holder in model.state.holders.values():
            if holder.key is not None:
                held[holder.key] += holder.permits
        assert use == held
        holders = model.state.holders.items()
        told = {identity for identity, *_ in texts["i"]}
        assert {i for i, holder in holders if holder.known} <= told <= {i for i, _ in holders}
        back_offs = {unquote(key): [*map(int, facts)] for key, *facts in texts["b"]}
        assert back_offs == {
            key: [at, each.ends, each.began, each.step]
            for key, (at, each) in model.back_offs.items()
        }
        timers = {unquote(key): int(at) for at, key in texts["t"]}
        assert timers == {key: at for key, (at, _) in model.back_offs.items()}
        standing = [queued.key or "" for queued in model.queue if not queued.parked]
        line = [queued for queued in model.queue if queued.parked]
        aside = [queued.key or "" for queued in line if not queued.unreachable]
        gone = [queued.key or "" for queued in line if queued.unreachable]
        assert sorted(unquote(key) for key, *_ in texts["l"]) == sorted(standing)
        assert sorted(unquote(key) for key, *_ in texts["a"]) == sorted(aside)
        assert sorted(unquote(key) for key, *_ in texts["g"]) == sorted(gone)
        ready = {unquote(key): int(ticket) for ticket, key in texts["r"]}
        assert ready == {key: ticket for key, (ticket, _) in model.ready.items()}
        assert {unquote(key) for key, *_ in texts["k"]} == ready.keys()
        ranks = {
            unquote(key): (float(use), float(at), int(ticket))
            for use, at, ticket, key in texts["s"]
        }
        expected = {key: rank for key, (_, rank) in model.ready.items()} if model.shares else {}
        assert {*ranks} == {*expected}
        assert all(ranks[key] == pytest.approx(expected[key]) for key in ranks), (ranks, expected)
        times = {unquote(key): float(at) for key, at in texts["v"]}
        assert times == pytest.approx(model.virtual_times)
        assert times.keys() <= {*held, *standing}
