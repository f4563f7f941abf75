"""Scripts that stop early, and are called again until they say that they are done.

The work of one call is bounded. So the scripts have bounds of two and three here. Each call is
judged by the rules of every run, and at rest nobody waits for what is free.
"""

import functools
import os
import re
from collections.abc import Sequence
from typing import ClassVar

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Mode
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from tests.scripts.in_memory import HUBS
from tests.scripts.random_calls import RandomCalls
from tests.worlds.judge import forgotten

BOUNDS = {"MAX_LOOKED": "2", "MAX_SCANNED": "3", "MAX_SERVED": "2"}
CALLS = 500  # in which the work of one has to be done
STEPS = 80
SEEDS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "8"))


@functools.cache
def bounded(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script with the bounds of this test."""
    text = script(mode, operation, sharded).text
    for name, bound in BOUNDS.items():
        old = rf"^( *(?:local )?{name} = )[\d, ]*\d"
        text = re.sub(old, rf"\g<1>{bound}", text, flags=re.MULTILINE)
    return Script(text, "")


class Bounded(RandomCalls):
    """Each call is carried out to its end, as by the hub that is told to go on."""

    batches: ClassVar[Sequence[int]] = (1, 2, 5)
    early = 0  # calls that stopped early

    def step(self) -> None:
        super().step()
        if self.draw.random() < 0.2:  # much is free at once
            self.calls += 1
            self.make(HUBS[0], op.SetLimit(self.draw.choice((0, None, 6)), self.calls))

    def make(self, hub: str, call: op.AnyOperation) -> None:
        if isinstance(call, op.Acquire):
            # A call that stops early refuses what does not wait, so what a new hub brings back
            # is back before.
            self.answer(hub, op.Heartbeat(10_000, hub_info=self.info(hub, 0, call.numbers)))
            self.rest(hub)
        super().make(hub, call)
        self.rest(hub)

    def rest(self, hub: str) -> None:
        for _ in range(CALLS):
            if self.call(hub, op.Reap()).next_ms != 0:
                break
            self.early += 1
        else:
            raise AssertionError("it is never done")
        assert not forgotten(self.look)


@pytest.mark.timeout(max(60, 2 * SEEDS))
@pytest.mark.parametrize(
    "mode", ["fair", "zset", "fair+keys", "fair+share", "fair+slots", "fair+keys+slots"]
)
def test_what_stops_early_goes_on_to_the_end(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise somebody would wait until the next heartbeat, or for ever."""
    monkeypatch.setattr(codec, "script", bounded)
    early = sum(Bounded(mode, seed).walk(STEPS).early for seed in range(SEEDS))
    assert early > 4 * SEEDS
