"""Scripts that stop early, and are called again until they say that they are done.

The work of one call is bounded. So the scripts have bounds of one to three here. Each call is
judged by the rules of every run, and at rest nobody waits for what is free.
"""

import functools
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Address, Mode
from redsem_async._protocol.replies import Reply
from redsem_async._redis import codec
from redsem_async._redis.codec import Codec
from redsem_async._redis.scripts import Script, script
from tests.scripts.in_memory import HUBS, INFO, InMemory
from tests.worlds.judge import forgotten

BOUNDS = {
    "MAX_LOOKED": "2",
    "MAX_SCANNED": "3",
    "MAX_SERVED": "2",
}
CALLS = 500  # in which the work of one has to be done
LIMIT, KEY_LIMIT, STEPS = 4, 3, 80
SEEDS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "8"))
KEYS = ("a", "a", "b", "c", None)


@functools.cache
def bounded(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script with the bounds of this test."""
    text = script(mode, operation, sharded).text
    for name, bound in BOUNDS.items():
        text = re.sub(
            rf"^( *(?:local )?{name} = )[\d, ]*\d", rf"\g<1>{bound}", text, flags=re.MULTILINE
        )
    return Script(text, "")


class Walk:
    """Random calls, each carried out to its end."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.state = InMemory(mode)
        self.draw = random.Random(seed)
        self.requests: dict[str, list[op.QueuedRequest]] = {hub: [] for hub in HUBS}
        self.numbers = dict.fromkeys(HUBS, 0)
        self.calls = 0
        self.early = 0  # calls that stopped early

    def step(self) -> None:
        chosen = self.draw.choice(
            [self.acquire] * 5
            + [self.release] * 3
            + [self.abandon, self.set_limit, self.set_limit, self.pass_time]
            + [self.come_or_go] * ("share" not in self.state.address.mode)
            + [self.lose_one_key] * self.state.address.keyed
        )
        chosen()
        self.rest(HUBS[0])

    def run(self, hub: str, call: op.AnyOperation) -> None:
        self.state.call(hub, call)
        self.rest(hub)

    def rest(self, hub: str) -> None:
        """Call until everything is done, as the hub that was told to go on does."""
        for _ in range(CALLS):
            if self.state.call(hub, op.Reap()).next_ms != 0:
                break
            self.early += 1
        else:
            raise AssertionError("it is never done")
        assert not forgotten(self.state.look)
        assert not self.state.without_expiry

    # -- steps

    def acquire(self) -> None:
        hub, draw = self.some_hub(), self.draw
        first = self.numbers[hub] + 1
        numbers = range(first, first + draw.choice((1, 1, 2, 5)))
        self.numbers[hub] = numbers[-1]
        options = {number: self.options() for number in numbers}
        if not all(request.waits for request in options.values()):
            # A call that stops early refuses it, so what a new hub brings back is back before.
            self.run(hub, op.Heartbeat(10_000, hub_info=INFO))
        slots = tuple("abcdefgh"[:LIMIT]) if self.state.address.slotted else None
        lease_ms = draw.choice((10_000, 60_000))
        call = op.Acquire(numbers, lease_ms, LIMIT, options, hub_info=INFO, slots=slots)
        self.requests[hub] += [op.QueuedRequest(n, lease_ms, LIMIT, *options[n]) for n in numbers]
        self.run(hub, call)

    def options(self) -> op.RequestOptions:
        draw, key = self.draw, self.draw.choice(KEYS)
        terms = None
        if self.state.address.keyed and key is not None:
            terms = op.KeyTerms(key, KEY_LIMIT, 1.0, 3_600_000)
        return op.RequestOptions(draw.choice((1, 1, 2, 3)), draw.random() < 0.9, 0, terms)

    def some_hub(self) -> str:
        """One that receives messages."""
        return self.draw.choice(sorted(self.state.present))

    def release(self) -> None:
        hub = self.some_hub()
        if held := self.state.held_by(hub):
            self.run(hub, op.Release(hub, [self.draw.choice(held)]))

    def abandon(self) -> None:
        hub = self.some_hub()
        if self.requests[hub]:
            self.run(hub, op.Abandon([self.draw.choice(self.requests[hub])]))

    def set_limit(self) -> None:
        self.calls += 1
        key = self.draw.choice(KEYS) if self.state.address.keyed else None
        limit = self.draw.choice((None, None, 0, 1, 2, 3, 6))
        self.run(HUBS[0], op.SetLimit(limit, self.calls, key))

    def pass_time(self) -> None:
        self.state.pass_time(self.draw.choice((1, 5000, 20_000)))

    def lose_one_key(self) -> None:
        """One key of Redis is evicted. Nothing is granted until all that it was of has ended."""
        state, turns = self.state, ["turns"] * ("share" in self.state.address.mode)
        kind = self.draw.choice(["lines", "queue", "ready", "uses", "facts", *turns])
        state.server.lose(state.address, kind)
        for hub in HUBS if kind == "facts" else ():
            if held := state.held_by(hub):
                state.call(hub, op.Release(hub, held))

    def come_or_go(self) -> None:
        self.state.present ^= {self.draw.choice(HUBS[1:])}


MODES: tuple[Mode, ...] = ("fair", "zset", "fair+keys", "fair+share", "fair+slots")


@pytest.mark.timeout(max(60, 2 * SEEDS))
@pytest.mark.parametrize("mode", [*MODES, "fair+keys+slots"])
def test_what_stops_early_goes_on_to_the_end(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise somebody would wait until the next heartbeat, or for ever."""
    monkeypatch.setattr(codec, "script", bounded)
    early = 0
    for seed in range(SEEDS):
        walk = Walk(mode, seed)
        for _ in range(STEPS):
            walk.step()
        early += walk.early
    assert early > SEEDS


@pytest.fixture
def client(server_url: str) -> Iterator[Any]:
    with Redis.from_url(server_url) as client:
        yield client


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share", "fair+keys+slots"])
@pytest.mark.parametrize("lost", ["lines", "queue"])
def test_a_long_line_that_is_lost_is_dropped(
    mode: Mode, lost: str, client: Any, prefix: str
) -> None:
    """Both of what is kept of it go, and nobody waits behind what is left."""
    address = Address(mode, prefix, "lost", "server")
    here, waiter = HUBS[:2]
    many, batch = 2000, 200
    slots = ("a",) if address.slotted else None
    scripts = Codec(address)

    def call(hub: str, operation: op.AnyOperation) -> Reply:
        used, arguments = scripts.encode(operation, 1, hub)
        said = operation.reply(client.eval(used.text, *arguments), address)
        assert isinstance(said, Reply)
        return said

    def acquire(hub: str, numbers: range) -> Reply:
        every = {n: op.RequestOptions(key=op.KeyTerms(f"k{n % 1500}", 1)) for n in numbers}
        call_of = op.Acquire(numbers, 600_000, 1, every, hub_info=INFO, slots=slots)
        return call(hub, call_of)

    call(here, op.SetLimit("pause", 1))
    for first in range(1, many, batch):
        acquire(waiter, range(first, first + batch))
    client.delete(f"{prefix}:{{{address.name}}}:{lost}")
    call(here, op.SetLimit("resume", 2))
    assert call(here, op.Reap()).waiting == 0
    assert acquire(here, range(1, 2)).answers[0], "nobody is before it"
    gone = call(waiter, op.Heartbeat(600_000, [op.QueuedRequest(1, 600_000, 1)]))
    assert gone.answers == [-1]
