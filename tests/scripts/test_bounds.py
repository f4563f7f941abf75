"""Scripts that stop early, and are called again until they say that they are done.

The work of one call is bounded, and the specification knows no bounds. So the scripts have bounds
of one to three here, and what they have come to at rest is compared with it.
"""

import os
import random
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.replies import Reply
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from redsem_async.testing._memory import SPECIFICATIONS
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import (
    CallContext,
    Reordered,
    SlotsInUse,
    UnknownHub,
    Void,
)
from tests.scripts.comparison import HUBS
from tests.scripts.test_spec import Agree, agree

__all__ = ["agree"]  # a fixture

BOUNDS = {
    "MAX_PURGED, MAX_SCANNED, MAX_SERVED": "50, 2, 1",
    "MAX_DROPPED": "1",
    "MAX_DROPPED_TEXTS": "2",
    "MAX_SCANNED": "3",
    "MAX_SERVED": "2",
}
CALLS = 500  # in which the work of one has to be done
LIMIT, KEY_LIMIT, STEPS = 4, 3, 80
SEEDS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "8"))
KEYS = ("a", "a", "b", "c", None)


def bounded(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script with the bounds of this test."""
    text = script(mode, operation, sharded).text
    for name, bound in BOUNDS.items():
        text = re.sub(
            rf"^( *(?:local )?{name} = )[\d, ]*\d", rf"\g<1>{bound}", text, flags=re.MULTILINE
        )
    return Script(text, "")


class OneByOne(KeyedSpecification):
    """Grants one request at a time, as the scripts do with the bounds of this test.

    While a grant that nobody will receive is not known to be lost, it holds up its key, and has
    its slots. So what else is granted depends on how many are granted at once.
    """

    def _next_key(self, context: CallContext) -> str | None:
        is_planned = any(queued.is_planned for queued in self.queue)
        return None if is_planned else super()._next_key(context)

    def _serve(self, context: CallContext, own: Sequence[op.Request] = ()) -> None:
        waiting = -1
        while waiting != self.waiting:
            waiting = self.waiting
            super()._serve(context, own)


class Twice:
    """Random calls, carried out by the scripts and by the specification."""

    def __init__(self, state: Any, seed: int) -> None:
        self.state: Any = state
        self.draw = random.Random(seed)
        self.requests: dict[str, list[op.Request]] = {hub: [] for hub in HUBS}
        self.numbers = dict.fromkeys(HUBS, 0)
        self.calls = 0
        self.caller = HUBS[0]
        state.limit = LIMIT

    def step(self) -> None:
        chosen = self.draw.choice(
            [self.acquire] * 5
            + [self.release] * 3
            + [self.abandon, self.set_limit, self.set_limit, self.pass_time]
            + [self.come_or_go] * ("share" not in self.state.mode)
            + [self.lose_one_key] * self.state.address.keyed
        )
        self.caller = HUBS[0]
        chosen()
        self.rest()

    def run(self, hub: str, call: op.Operation) -> None:
        state, self.caller = self.state, hub
        state._tags += 1
        said = state._run(hub, call)
        try:
            state.model.run(state.address, call, hub, state.now_us)
        except (Reordered, SlotsInUse, UnknownHub, Void):
            assert isinstance(said, CommandError), f"{call} was refused by the specification"
        else:
            assert not isinstance(said, CommandError), f"{call} was refused: {said}"

    def rest(self) -> None:
        """Call until everything is done, as the hub that was told to go on does."""
        state = self.state
        reap = op.Reap()
        for _ in range(CALLS):
            state._tags += 1
            said = state._run(self.caller, reap)
            if said.next_ms != 0:
                break
        else:
            raise AssertionError("it is never done")
        state.model.run(state.address, reap, self.caller, state.now_us)
        model = cast("QueueSpecification", state.model)
        assert isinstance(model, QueueSpecification)
        holders, _, _, _, _, _, line, *_ = state.keys
        held = {member.decode() for member in state.redis.zrange(holders, 0, -1)}
        waits = {member.decode().partition(":")[0] for member in state.redis.zrange(line, 0, -1)}
        assert held == model.state.holders.keys()
        assert waits == {queued.id for queued in model.queue}
        state._subscriber.ping()
        state._until_pong()
        state._published.clear()

    # -- steps

    def acquire(self) -> None:
        hub, draw = self.some_hub(), self.draw
        count = draw.choice((1, 1, 2, 5))
        numbers = range(self.numbers[hub] + 1, self.numbers[hub] + 1 + count)
        self.numbers[hub] += count
        options = {number: self.kind() for number in numbers}
        if not all(request.waits for request in options.values()):
            # A call that stops early refuses it, so what a new hub brings back is back before.
            self.run(hub, op.Heartbeat(10_000, hub_info=HubInfo("x")))
            self.rest()
        slots = tuple("abcdefgh"[:LIMIT]) if self.state.address.slotted else None
        # Without keys, requests of the dead may stay in line until their process is back.
        lease_ms = draw.choice((10_000, 60_000) if self.state.address.keyed else (3_600_000,))
        call = op.Acquire(numbers, lease_ms, LIMIT, options, hub_info=HubInfo("x"), slots=slots)
        self.requests[hub] += [
            op.Request(number, lease_ms, LIMIT, *options[number]) for number in numbers
        ]
        self.run(hub, call)

    def kind(self) -> op.RequestOptions:
        draw, key = self.draw, self.draw.choice(KEYS)
        terms = None
        if self.state.address.keyed and key is not None:
            terms = op.KeyTerms(key, KEY_LIMIT, 1.0, 3_600_000)
        return op.RequestOptions(draw.choice((1, 1, 2, 3)), draw.random() < 0.9, 0, terms)

    def some_hub(self) -> str:
        """One that receives messages."""
        present: set[str] = self.state._present
        return self.draw.choice(sorted(present))

    def release(self) -> None:
        hub = self.some_hub()
        held = [i for i in self.state.model.state.holders if i.startswith(hub)]
        if held:
            number = self.draw.choice(held).partition(".")[2]
            self.run(hub, op.Release(hub, [int(number)]))

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
        self.state.now_us += self.draw.choice((1000, 5_000_000, 20_000_000))

    def lose_one_key(self) -> None:
        """One key of Redis is evicted. What it was noted of is released."""
        state, kind = self.state, self.draw.choice(("keys", "queue"))
        state.redis.delete(f"{state.prefix}:{{{state.address.name}}}:{kind}")
        if kind == "queue":
            state.model.lose_queue()
            return
        state.model.lose_keys()
        self.rest()
        for hub in HUBS:
            if numbers := state._numbers_held(hub):
                self.run(hub, op.Release(hub, numbers))

    def come_or_go(self) -> None:
        self.state.come_or_go(self.draw.choice(HUBS[1:]))


# Where keys share, the turn of equals depends on when each key was looked at.
MODES: tuple[Mode, ...] = ("fair", "fair+keys", "fair+slots", "fair+keys+slots")


@pytest.mark.timeout(max(60, 2 * SEEDS))
@pytest.mark.parametrize("mode", MODES)
def test_what_stops_early_goes_on_to_the_end(
    mode: Mode, agree: Agree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "script", bounded)
    monkeypatch.setitem(SPECIFICATIONS, "fair+keys", OneByOne)
    for seed in range(SEEDS):
        twice = Twice(agree(mode), seed)
        for _ in range(STEPS):
            twice.step()


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share", "fair+keys+slots"])
@pytest.mark.parametrize("lost", ["keys", "queue"])
def test_a_long_line_that_is_lost_is_dropped_in_short_steps(
    mode: Mode, lost: str, agree: Agree
) -> None:
    """Each call has a bounded number of commands, and nothing of the line is left."""
    state = agree(mode)
    here, waiter = HUBS[:2]
    many, batch = 2000, 200
    slots = ("a",) if state.address.slotted else None

    def call(hub: str, operation: op.Operation) -> tuple[Reply, int]:
        """The reply, and how many commands the script has called."""
        state._tags += 1
        state.redis.config_resetstat()
        said = state._run(hub, operation)
        assert isinstance(said, Reply)
        calls: dict[str, Any] = state.redis.info("commandstats")
        return said, sum(each["calls"] for each in calls.values())

    def acquire(hub: str, numbers: range) -> Reply:
        every = {n: op.RequestOptions(key=op.KeyTerms(f"k{n % 1500}", 1)) for n in numbers}
        call_of = op.Acquire(numbers, 600_000, 1, every, hub_info=HubInfo("x"), slots=slots)
        return call(hub, call_of)[0]

    call(here, op.SetLimit("pause", 1))
    for first in range(1, many, batch):
        acquire(waiter, range(first, first + batch))
    state.redis.delete(f"{state.prefix}:{{{state.address.name}}}:{lost}")
    call(here, op.SetLimit("resume", 2))
    calls, more = 0, True
    while more:
        said, commands = call(here, op.Reap())
        assert commands < 5000
        calls, more = calls + 1, said.next_ms == 0
    assert calls >= (many / batch if lost == "queue" else 1)
    assert acquire(here, range(1, 2)).answers[0], "nobody is before it"
    gone, _ = call(waiter, op.Heartbeat(600_000, [op.Request(1, 600_000, 1)]))
    assert gone.answers == [-1]
