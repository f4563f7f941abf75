"""A quick path and the general path of the same script do the same to the same state.

The state is random, and each call is carried out in one database as it is, and in a copy of it by
the script without its quick path. Reply, messages and every member of every key have to agree.

One thing may differ: a key may expire earlier, though no earlier than it has to. An expiry is set
to three times what is needed.

The seeds are fixed, but for those of a ``REDSEM_STATEFUL_RUNS`` above the default: they are fresh.
"""

import functools
import os
import random
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode, channel
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, UNCOUNTED, HubInfo
from redsem_async._protocol.replies import Holding, Reply
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from redsem_async.testing._embedded import EmbeddedRedis
from tests.scripts.in_memory import HUBS, START_US
from tests.worlds.look import requests_of

FIXED = 12
RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", FIXED))
STEPS = 60
LEASES_MS = (10_000, 10_000, 30_000, 90_000)
INFO = HubInfo("x")
INFOS = (INFO, HubInfo("x", NO_PUSH), HubInfo("x", UNCOUNTED))
MODES = ("fair", "zset", "fair+keys", "fair+share")
KEYS = (None, "a", "a", "a0", "b")

QUICK = re.compile(r"^local reply = (\w+)\(\)\nif reply then return reply end$", re.MULTILINE)
NOTED = r"local reply = \1()\nif reply then call('INCR', 'quick') return reply end"
# The server's clock and who receives a message are keys, and so are the messages.
BEGINS = """
local function published(channel, message)
  redis.call('APPEND', 'told', channel .. ' ' .. message .. ';')
  return redis.call('HEXISTS', 'present', channel)
end
"""
COPY = """
redis.call('DEL', 'told')
redis.call('HSET', 'now', 's', ARGV[1], 'us', ARGV[2])
redis.call('SELECT', 1)
redis.call('FLUSHDB')
redis.call('SELECT', 0)
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', 1) end
"""
# Keys come closer to their expiry by so many milliseconds. None expires by itself during a call.
AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key) - ARGV[1]
  if left > 5000 then redis.call('PEXPIRE', key, left) end
  if left <= 5000 and redis.call('PTTL', key) > 0 then redis.call('DEL', key) end
end
"""
READ = """
local all = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind, found = redis.call('TYPE', key).ok
  if kind == 'zset' then found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  if kind == 'hash' then found = redis.call('HGETALL', key) end
  if kind == 'string' then found = { '', redis.call('GET', key) } end
  all[i] = { key, redis.call('PTTL', key), found }
end
return all
"""


@functools.cache
def watched(mode: Mode, operation: str, sharded: bool = False) -> Script:
    text = script(mode, operation, sharded).text
    text = text.replace("redis.pcall('TIME')", "redis.call('HMGET', 'now', 's', 'us')")
    text = text.replace("redis.pcall('PUBLISH',", "published(")
    return Script(BEGINS + text, "")


@functools.cache
def edited(text: str, end: str) -> str:
    """A script whose quick path ends so."""
    return QUICK.sub(end, text)


def plain(answer: object) -> object:
    """Sequences of any kind as lists: the two paths may choose."""
    if isinstance(answer, Reply | Holding):
        return {name: plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple | range):
        return [plain(item) for item in cast("Sequence[Any]", answer)]
    return answer


class Pair:
    """A semaphore in one database, and a copy of it in another before each call."""

    def __init__(self, clients: tuple[Redis, Redis], mode: Mode, clock: Clock, seed: int) -> None:
        self.here, self.copy = cast("tuple[Any, Any]", clients)
        self.address = Address(mode, "p", "n", clock)
        self.draw = draw = random.Random(seed)
        self.load = functools.cache(self.here.script_load)
        self.codec = codec.Codec(self.address, lambda: self.now_us)
        self.now_us, self.tag, self.calls = START_US, 0, 0
        self.limit = draw.choice((1, 2, 2, 3, 5)) * (3 if self.address.keyed else 1)
        self.wild = draw.choice((0.03, 0.1, 0.3))  # how often something unusual happens
        self.numbers = dict.fromkeys(HUBS, 0)
        self.requests: dict[str, list[op.QueuedRequest]] = {hub: [] for hub in HUBS}
        self.sent: list[tuple[str, op.AnyOperation]] = []
        self.taken = Counter[type]()
        self.here.flushdb()
        self.here.hset("present", mapping={channel("p", hub): 1 for hub in HUBS})
        keys = self.address.keys
        self.holders, self.facts, self.meta = keys[:3]
        self.queue = keys[5]

    def call(self, hub: str, call: op.AnyOperation) -> None:
        self.tag += 1
        self.sent = [*self.sent[-20:], (hub, call)]
        used, arguments = self.codec.encode(call, self.tag, hub)
        here = self.here.pipeline(transaction=False)
        here.eval(COPY, 0, *divmod(self.now_us, 1_000_000))
        here.evalsha(self.load(edited(used.text, NOTED)), *arguments)
        here.getdel("quick")
        _, raw, is_quick = here.execute(raise_on_error=False)
        reply = str(raw) if isinstance(raw, ResponseError) else call.reply(raw, self.address)
        if is_quick:
            self.taken[type(call)] += 1
            expected = self.copy.evalsha(self.load(edited(used.text, "")), *arguments)
            self.agree(plain(reply), plain(call.reply(expected, self.address)), call)
        elif isinstance(call, op.Acquire) and "UNKNOWNHUB" in str(reply):
            self.call(hub, replace(call, hub_info=INFO))

    def read(self, client: Any) -> tuple[dict[tuple[str, str], str], dict[str, int]]:
        """What each key has, and in how many milliseconds it expires."""
        found: dict[tuple[str, str], str] = {}
        expires: dict[str, int] = {}
        for name, left, members in client.eval(READ, 0):
            key = name.decode()
            expires[key] = left
            for i in range(0, len(members), 2):
                found[key, members[i].decode()] = members[i + 1].decode()
        return found, expires

    def members(self, key: str) -> list[str]:
        return [each.decode() for each in self.here.zrange(key, 0, -1)]

    def agree(self, reply: object, expected: object, call: op.AnyOperation) -> None:
        assert reply == expected, call
        (one, expires), (other, latest) = self.read(self.here), self.read(self.copy)
        self.check_passed(one)
        assert one == other, call
        for key, left in expires.items():
            assert (left < 0) == (latest[key] < 0) and 3 * left + 1000 >= latest[key], (call, key)

    def check_passed(self, found: dict[tuple[str, str], str]) -> None:
        """No request up to a ticket fits while so many permits are in use."""
        ticket, used, of = found.get((self.meta, "passed"), "0:0:-").split(":")
        for (key, request), score in found.items():
            if key == self.queue and float(score) <= float(ticket):
                limit, permits = map(int, request.split(":")[2:4])
                most = limit if of == "-" else int(of)
                assert int(used) + permits > most, (request, ticket, used)

    # -- steps

    def step(self) -> None:
        hub = self.draw.choice(HUBS)
        if self.is_wild():
            self.draw.choice((self.call_another, self.call_another, self.go, self.evict))(hub)
        else:
            steps = (self.acquire, self.release, self.pass_time)
            self.draw.choices(steps, (3, 3, 1))[0](hub)

    def is_wild(self) -> bool:
        return self.draw.random() < self.wild

    def acquire(self, hub: str) -> None:
        draw, wild, first = self.draw, self.is_wild(), self.numbers[hub] + 1
        numbers = range(first, first + draw.choice((1, 1, 1, 2, 3)))
        self.numbers[hub] = numbers[-1]
        drawn = {number: self.options() for number in numbers}
        options = {n: asked for n, asked in drawn.items() if asked != op.DEFAULT_OPTIONS}
        limit = draw.choice((0, 0, 1, 9)) if self.is_wild() else self.limit
        call = op.Acquire(numbers, draw.choice(LEASES_MS), limit, options)
        self.requests[hub] += requests_of(call)
        if wild:
            bound, after = draw.choice((None, 2)), draw.choice((0, 0, numbers[-1]))
            info = draw.choice((UNCHANGED, *INFOS))
            call = replace(call, max_waiters=bound, after=after, hub_info=info)
        self.call(hub, call)

    def options(self) -> op.RequestOptions:
        draw, asked = self.draw, op.DEFAULT_OPTIONS
        if self.is_wild():
            asked = op.RequestOptions(draw.choice((1, 2, 3)), draw.random() < 0.7)
            asked = asked._replace(ahead_ms=draw.choice((0, 2000)) if self.address.fair else 0)
        key = draw.choice(KEYS) if self.address.keyed else None
        if key is None:
            return asked
        terms = op.KeyTerms(key, draw.choice((None, 1, 2)), draw.choice((1.0, 1.0, 2.5)), 2000)
        return asked._replace(key=terms)

    def release(self, caller: str) -> None:
        draw, wild, ids = self.draw, self.is_wild(), self.members(self.holders)
        hub = draw.choice(ids)[:32] if ids else caller
        held = sorted(int(identity[33:]) for identity in ids if identity.startswith(hub))
        numbers = held[: draw.choice((1, 1, 2))]
        if wild:
            numbers = draw.choices([*held, self.numbers[hub], self.numbers[hub] + 1], k=2)
        else:
            caller = hub
        line = {request.split(":")[0] for request in self.members(self.queue)}
        own = [each for each in self.requests[caller] if f"{caller}.{each.number}" in line]
        first = own[: len(numbers)] if self.address.mode == "zset" else ()
        hold_ms = 7 if self.is_wild() else None
        if numbers:
            self.call(caller, op.Release(hub, numbers, hold_ms, waits=bool(own), own=first))

    def call_another(self, hub: str) -> None:
        draw, requests = self.draw, self.requests[hub]
        held = [int(i[33:]) for i in self.members(self.holders) if i.startswith(hub)]
        self.calls += 1
        limit: Any = draw.choice((None, None, None, 0, 1, 2, 6, "pause", "resume", "resume"))
        pause_ms = draw.choice((0, 900, 20_000))
        calls: list[tuple[str, op.AnyOperation]] = [
            (hub, op.Heartbeat(10_000, requests[-3:], draw.choice((UNCHANGED, *INFOS)))),
            (hub, op.Reap()),
            (HUBS[0], op.SetLimit(limit, self.calls)),
            (HUBS[0], op.StartBackOff(pause_ms, None, self.calls)),
            *[(hub, op.Abandon([each])) for each in requests[-1:]],
            *[(hub, op.Refresh(held, draw.choice(LEASES_MS)))] * bool(held),
            *self.sent[-5:],  # a command arrives once more
        ]
        if self.address.keyed:
            calls += [(HUBS[0], op.SetLimit(draw.choice((None, 0, 1)), self.calls, "a"))]
        self.call(*draw.choice(calls))

    def pass_time(self, _: str) -> None:
        usual, rare = (1, 40, 1000, 5000, 11_000), (200_000, -3000)
        ms = self.draw.choice(rare if self.is_wild() else usual)
        self.now_us += 1000 * ms
        self.here.eval(AGE, 0, max(ms, 0))

    def go(self, hub: str) -> None:
        """A process stops receiving messages, or is back."""
        if not self.here.hdel("present", channel("p", hub)):
            self.here.hset("present", channel("p", hub), 1)

    def evict(self, _: str) -> None:
        address = self.address
        often = address.keys[:3] * 3
        self.here.delete(self.draw.choice((*often, *address.keys)))


@pytest.fixture
def databases(server: EmbeddedRedis) -> Iterator[tuple[Redis, Redis]]:
    with Redis.from_url(server.unix_url) as one, Redis.from_url(server.unix_url, db=1) as other:
        yield one, other


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script does can be watched."""
    monkeypatch.setattr(codec, "script", watched)


@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("mode", MODES)
def test_a_quick_path_does_what_the_general_one_does(
    mode: Mode, clock: Clock, databases: tuple[Redis, Redis]
) -> None:
    """Otherwise a promise holds or not by how busy the semaphore happens to be."""
    taken = Counter[type]()
    for run in range(RUNS):
        seed = run if run < FIXED else secrets.randbits(32)
        pair = Pair(databases, mode, clock, seed)
        try:
            for _ in range(STEPS):
                pair.step()
        except AssertionError as difference:
            difference.add_note(f"seed {seed}, calls: {pair.sent}")
            raise
        taken += pair.taken
    assert min(taken[op.Acquire], taken[op.Release]) > RUNS, taken


def test_permits_that_a_loss_set_free_are_granted_by_the_next_call(
    databases: tuple[Redis, Redis],
) -> None:
    """A busy semaphore would use less than its limit until somebody's heartbeat."""
    pair = Pair(databases, "zset", "server", 0)
    one, other, third = HUBS
    pair.call(one, op.Acquire([1], 10_000, 3, {1: op.RequestOptions(3)}))
    pair.call(other, op.Acquire([1], 10_000, 3))
    pair.call(third, op.Heartbeat(10_000, [], INFO))
    pair.here.delete(pair.holders)
    pair.call(third, op.Acquire([1], 10_000, 1))
    assert pair.members(pair.holders) == [f"{other}.1"]
    pair.call(other, op.Release(other, [1]))
    assert pair.members(pair.holders) == [f"{third}.1"]


def test_a_request_is_served_although_the_clock_was_set_back_at_a_loss(
    databases: tuple[Redis, Redis],
) -> None:
    """Requests that were passed over have later tickets, and hid it for as long as they waited."""
    pair = Pair(databases, "zset", "server", 0)
    one, other, _ = HUBS
    heavy = op.QueuedRequest(2, 10_000, 3, 3)
    pair.call(one, op.Acquire([1, 2], 10_000, 3, {2: op.RequestOptions(3)}))
    pair.here.delete(pair.meta)
    pair.now_us -= 3_000_000
    pair.call(one, op.Heartbeat(10_000, [heavy], INFO))
    pair.call(other, op.Acquire([1, 2, 3], 10_000, 3))
    pair.call(other, op.Release(other, [1], hold_ms=7))
    assert {*pair.members(pair.holders)} == {f"{one}.1", f"{other}.2", f"{other}.3"}


@pytest.mark.parametrize("mode", MODES)
def test_a_set_limit_that_is_lost_after_meta_holds_nobody_up(
    mode: Mode, databases: tuple[Redis, Redis]
) -> None:
    """The requests that it held up would wait for as long as nobody sets a limit again."""
    pair = Pair(databases, mode, "server", 0)
    hub = HUBS[0]
    pair.call(hub, op.SetLimit(1, 1))
    pair.call(hub, op.Acquire([1, 2], 10_000, 3, {2: op.RequestOptions(2)}))
    pair.here.delete(pair.meta)
    pair.call(hub, op.Heartbeat(10_000, [op.QueuedRequest(2, 10_000, 3, 2)], INFO))
    pair.here.delete(pair.address.keys[4])
    pair.call(hub, op.Reap())
    assert pair.members(pair.holders) == [f"{hub}.1", f"{hub}.2"]


def dies(pair: Pair) -> None:
    pair.now_us += 2_000_000
    pair.here.zadd(pair.address.keys[3], {"d" * 32: pair.now_us // 1000 - 500})


def expires(pair: Pair) -> None:
    pair.now_us += 11_000_000


def comes(limit: int) -> Callable[[Pair], None]:
    return lambda pair: pair.call(HUBS[2], op.Acquire([2], 10_000, limit))


def notes(field: str, value: str) -> Callable[[Pair], None]:
    return lambda pair: pair.here.hset(pair.meta, field, value)


UNUSUAL: dict[str, Callable[[Pair], None]] = {
    "a holder has expired": expires,
    "the request behind fits": comes(9),
    "the request behind never fits": comes(0),
    "no message reaches the next": notes(f"{HUBS[2]}:no_push", "1"),
    "a hub died": dies,
    "facts were lost": lambda pair: pair.here.delete(pair.facts),
    "the set limit is lost": notes("passed", "inf:0:2"),
    "permits were lost": notes("passed", f"{START_US}:3:-"),
    "the queue was not looked through": notes("looked", f"{START_US // 1000}:1"),
}


@pytest.mark.parametrize("unusual", [None, *UNUSUAL])
def test_a_release_is_quick_only_where_nothing_is_unusual(
    unusual: str | None, databases: tuple[Redis, Redis]
) -> None:
    """Random states come to some of this once in thousands of steps."""
    pair = Pair(databases, "fair", "server", 0)
    one, other, third = HUBS
    for hub, lease_ms in ((one, 90_000), (other, 10_000), (third, 10_000)):
        pair.call(hub, op.Acquire([1], lease_ms, 2))
    pair.call(one, op.Reap())
    if unusual is not None:
        UNUSUAL[unusual](pair)
    pair.call(one, op.Release(one, [1]))
    assert pair.taken[op.Release] == (unusual is None)
