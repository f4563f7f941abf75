"""A quick path and the general path of the same script do the same to the same state.

The state is random, and each call is carried out in one database as it is, and in a copy of it by
the script without its quick path. Reply, messages and every member of every key have to agree.

Two things may differ. A key may expire earlier, though no earlier than it has to: an expiry that is
set is three times what is needed. And what ``passed`` says of the queue may be less, though not
untrue (see serve.lua).
"""

import functools
import os
import random
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Address, Mode, channel
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from tests.harness.servers import StartServer
from tests.scripts.comparison import HUBS, START_US
from tests.scripts.replay import plain

RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "20"))
STEPS = 60
LEASES_MS = (10_000, 10_000, 30_000, 90_000)
INFO = HubInfo("x")
INFOS = (*[None] * 20, INFO, HubInfo("x", no_push=True), HubInfo("x", uncounted=True))
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
redis.call('SELECT', 1)
redis.call('FLUSHDB')
redis.call('SELECT', 0)
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', 1) end
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


class Pair:
    """A semaphore in one database, and a copy of it in another before each call."""

    def __init__(self, clients: tuple[Redis, Redis], mode: Mode, clock: Clock, seed: int) -> None:
        self.here, self.copy = cast("tuple[Any, Any]", clients)
        self.address = Address(mode, "p", "n", clock)
        self.draw = draw = random.Random(seed)
        self.codec = codec.Codec(self.address, lambda: self.now_us)
        self.now_us, self.tag, self.calls = START_US, 0, 0
        self.limit = draw.choice((1, 2, 2, 3, 5))
        self.recovers = draw.random() < 0.2
        self.wild = draw.choice((0.0, 0.05, 0.3))  # how often something unusual happens
        self.numbers = dict.fromkeys(HUBS, 0)
        self.requests: dict[str, list[op.Request]] = {hub: [] for hub in HUBS}
        self.sent: list[tuple[str, op.Operation]] = []
        self.taken = Counter[type]()
        self.here.flushdb()
        self.here.hset("present", mapping={channel("p", hub): 1 for hub in HUBS})
        keys = self.address.keys
        self.holders, self.meta, self.queue = keys[0], keys[2], keys[6]

    def run(self, client: Any, text: str, arguments: Any, call: op.Operation) -> Any:
        try:
            raw = client.execute_command("EVAL", text, *arguments)
        except ResponseError as error:
            return str(error)
        return plain(self.codec.reply(call, raw))

    def call(self, hub: str, call: op.Operation) -> None:
        self.tag += 1
        self.sent = [*self.sent[-20:], (hub, call)]
        seconds, us = divmod(self.now_us, 1_000_000)
        self.here.hset("now", mapping={"s": seconds, "us": us})
        self.here.delete("told", "quick")
        used, arguments = self.codec.encode(call, self.tag, hub, self.recovers)
        self.here.eval(COPY, 0)
        reply = self.run(self.here, QUICK.sub(NOTED, used.text), arguments, call)
        if self.here.delete("quick"):
            self.taken[type(call)] += 1
            expected = self.run(self.copy, QUICK.sub("", used.text), arguments, call)
            self.agree((reply, self.read(self.here)), (expected, self.read(self.copy)), call)
        elif isinstance(call, op.Acquire) and "UNKNOWNHUB" in str(reply):
            self.call(hub, call._replace(hub_info=INFO))

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

    def agree(self, quick: tuple[Any, Any], general: tuple[Any, Any], call: op.Operation) -> None:
        assert quick[0] == general[0], call
        (one, expires), (other, latest) = quick[1], general[1]
        self.check_passed(one)
        passed = (self.meta, "passed")
        assert {**one, passed: ""} == {**other, passed: ""}, call
        for key, left in expires.items():
            assert (left < 0) == (latest[key] < 0) and 3 * left + 1000 >= latest[key], (call, key)

    def check_passed(self, found: dict[tuple[str, str], str]) -> None:
        """No request up to a ticket fits while so many permits are in use."""
        pairs = re.findall(r"(\d+):(\d+)", found.get((self.meta, "passed"), ""))
        for (key, request), score in found.items():
            if key != self.queue or float(score) < 0:
                continue
            limit, permits = map(int, request.split(":")[2:4])
            behind = [used for ticket, used in pairs if float(score) <= int(ticket)]
            assert all(int(used) + permits > limit for used in behind), (request, pairs)

    # -- steps

    def step(self) -> None:
        draw = self.draw
        if draw.random() < self.wild:
            unusual = (self.acquire, self.release, self.abandon, self.heartbeat, self.refresh)
            others = (self.set_limit, self.back_off, self.reap, self.repeat, self.go, self.evict)
            draw.choice((*unusual, *others))()
        else:
            acquire, release = self.acquire_plainly, self.release_plainly
            draw.choice((acquire, acquire, acquire, release, release, release, self.pass_time))()

    def ask(self, hub: str, count: int, options: op.RequestOptions | None = None) -> op.Acquire:
        draw = self.draw
        numbers = range(self.numbers[hub] + 1, self.numbers[hub] + 1 + count)
        self.numbers[hub] += count
        every: dict[int, op.RequestOptions] = {}
        for number in numbers:
            asked = self.terms() if options is None else options
            if asked != op.DEFAULT_OPTIONS:
                every[number] = asked
        limit = draw.choice((0, 1, 9)) if draw.random() < self.wild / 2 else self.limit
        call = op.Acquire(numbers, draw.choice(LEASES_MS), limit, every)
        self.requests[hub] += [
            op.Request(n, call.lease_ms, limit, *every.get(n, op.DEFAULT_OPTIONS)) for n in numbers
        ]
        return call

    def terms(self) -> op.RequestOptions:
        key = self.draw.choice(KEYS) if self.address.keyed else None
        if key is None:
            return op.DEFAULT_OPTIONS
        weight = self.draw.choice((1.0, 1.0, 2.5))
        return op.RequestOptions(
            key=op.KeyTerms(key, self.draw.choice((None, 1, 2)), weight, 2000)
        )

    def acquire_plainly(self) -> None:
        hub = self.draw.choice(HUBS)
        self.call(hub, self.ask(hub, self.draw.choice((1, 1, 1, 2, 3))))

    def acquire(self) -> None:
        draw, hub = self.draw, self.draw.choice(HUBS)
        terms = self.terms()._replace(permits=draw.choice((1, 2, 3)), waits=draw.random() < 0.7)
        if self.address.fair:
            terms = terms._replace(ahead_ms=draw.choice((0, 0, 2000)))
        call = self.ask(hub, draw.choice((1, 2)), draw.choice((terms, terms, None)))
        right = draw.choice((None, None, op.RightRequest(4000, self.limit)))
        bound = draw.choice((None, None, 2))
        info, after = draw.choice(INFOS), draw.choice((0, 0, 0, self.numbers[hub] + 1))
        self.call(hub, call._replace(hub_info=info, right=right, max_waiters=bound, after=after))

    def held(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for identity in self.members(self.holders):
            hub, number = identity.split(".")
            found.setdefault(hub, []).append(int(number))
        return found

    def release_plainly(self) -> None:
        held = self.held()
        if not held:
            return
        hub = self.draw.choice(sorted(held))
        numbers = sorted(held[hub])[: self.draw.choice((1, 1, 2))]
        line = {request.split(":")[0] for request in self.members(self.queue)}
        own = [each for each in self.requests[hub] if f"{hub}.{each.number}" in line]
        first = own[: len(numbers)] if self.address.mode == "zset" else ()
        self.call(hub, op.Release(hub, numbers, waits=bool(own), own=first))

    def release(self) -> None:
        draw = self.draw
        hub, caller, held = draw.choice(HUBS), draw.choice(HUBS), self.held()
        some = [*held.get(hub, []), draw.randint(1, self.numbers[hub] + 2)]
        numbers = draw.choices(some, k=draw.choice((1, 2, 3)))
        self.call(draw.choice((hub, caller)), op.Release(hub, numbers, draw.choice((None, 7))))

    def abandon(self) -> None:
        hub = self.draw.choice(HUBS)
        if self.requests[hub]:
            self.call(hub, op.Abandon([self.draw.choice(self.requests[hub])]))

    def heartbeat(self) -> None:
        hub = self.draw.choice(HUBS)
        info = self.draw.choice((None, INFO, *INFOS[-2:]))
        self.call(hub, op.Heartbeat(10_000, self.requests[hub][-3:], info))

    def refresh(self) -> None:
        for hub, numbers in self.held().items():
            self.call(hub, op.Refresh(numbers, self.draw.choice(LEASES_MS)))

    def set_limit(self) -> None:
        self.calls += 1
        key = self.draw.choice(KEYS) if self.address.keyed else None
        limit = self.draw.choice((None, None, None, 0, 1, 2, 6, "pause", "resume", "resume"))
        self.call(
            HUBS[0],
            op.SetLimit(
                cast("Any", limit) if not key or limit not in {"pause", "resume"} else None,
                self.calls,
                key,
            ),
        )

    def back_off(self) -> None:
        self.calls += 1
        pause_ms = self.draw.choice((0, 0, 900, 20_000))
        self.call(HUBS[0], op.BackOff(pause_ms, self.limit, None, self.calls))

    def reap(self) -> None:
        self.call(self.draw.choice(HUBS), op.Reap())

    def repeat(self) -> None:
        """A command arrives once more."""
        if self.sent:
            self.call(*self.draw.choice(self.sent))

    def pass_time(self) -> None:
        usual = (1000, 40_000, 1_000_000, 5_000_000)
        rare = (20_000_000, 200_000_000, -3_000_000)
        self.now_us += self.draw.choice(rare if self.draw.random() < self.wild else usual)

    def go(self) -> None:
        """A process stops receiving messages, or is back."""
        who = channel("p", self.draw.choice(HUBS))
        if not self.here.hdel("present", who):
            self.here.hset("present", who, 1)

    def evict(self) -> None:
        address = self.address
        keys = (*address.keys, *address.first_keys, *address.recovery_keys)
        self.here.delete(self.draw.choice((*keys, self.holders)))


@pytest.fixture
def databases(embedded: StartServer) -> Iterator[tuple[Redis, Redis]]:
    url = embedded().unix_url
    with (
        Redis.from_url(url, db=0) as one,
        Redis.from_url(url, db=1) as other,
    ):
        yield one, other


@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys", "fair+share"])
def test_a_quick_path_does_what_the_general_one_does(
    mode: Mode, clock: Clock, databases: tuple[Redis, Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a promise holds or not by how busy the semaphore happens to be."""
    monkeypatch.setattr(codec, "script", watched)
    taken = Counter[type]()
    for run in range(RUNS):
        seed = run if run % 2 else secrets.randbits(32)
        pair = Pair(databases, mode, clock, seed)
        try:
            for _ in range(STEPS):
                pair.step()
        except AssertionError as difference:
            difference.add_note(f"seed {seed}, calls: {pair.sent}")
            raise
        taken += pair.taken
    assert min(taken[op.Acquire], taken[op.Release]) > RUNS, taken
