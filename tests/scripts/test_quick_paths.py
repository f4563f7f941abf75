"""A quick path and the general path of the same script do the same to the same state.

The state is random. Each call is judged, and what a quick path did is compared with what the
script without it does from the same state: reply, messages and every member of every key.

One thing may differ: a key may expire earlier, though no earlier than it has to. An expiry is set
to three times what is needed.

The seeds are fixed, but for those of a ``REDSEM_STATEFUL_RUNS`` above the default: they are fresh.
"""

import functools
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.replies import Holding, Reply
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from redsem_async.testing._redis import Snapshot, SortedSet, Value
from tests.scripts.in_memory import HUBS, INFO, START_US
from tests.scripts.random_calls import RandomCalls

FIXED = 12
RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", FIXED))
STEPS = 60
MODES = ("fair", "zset", "fair+keys", "fair+share")
RATED = ("fair+rate", "fair+keys+rate", "fair+share+rate")  # which the server's clock keeps
KINDS = [*product(MODES, ("server", "local")), *product(RATED, ("server",))]

QUICK = re.compile(r"^local reply = (\w+)\(\)\nif reply then return reply end$", re.MULTILINE)
NOTED = r"local reply = \1()\nif reply then call('SET', 'quick', '1') return reply end"


@functools.cache
def ending(end: str, mode: Mode, operation: str, sharded: bool = False) -> Script:
    """A script whose quick path ends so."""
    return Script(QUICK.sub(end, script(mode, operation, sharded).text), "")


def plain(answer: object) -> object:
    """Sequences of any kind as lists: the two paths may choose."""
    if isinstance(answer, Reply | Holding):
        return {name: plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple | range):
        return [plain(item) for item in cast("Sequence[Any]", answer)]
    return answer


def members(value: Value) -> object:
    return value.scores if isinstance(value, SortedSet) else value


class Compared(RandomCalls):
    """Every call that takes a quick path is made once more without it, from the same state.

    Attributes:
        taken: how often a call took one.
    """

    def __init__(self, mode: Mode, seed: int, clock: Clock = "server") -> None:
        super().__init__(mode, seed, clock)
        self.taken = Counter[type]()

    def answer(self, hub: str, call: op.AnyOperation) -> AnyReply | CommandError:
        redis = self.server._redis
        before = redis.snapshot()
        setattr(codec, "script", functools.partial(ending, NOTED))  # noqa: B010
        said = super().answer(hub, call)
        after = redis.snapshot()
        if after.pop(b"quick", None) is not None:
            self.taken[type(call)] += 1
            redis.restore(after)
            stopped = isinstance(said, Reply) and said.next_ms == 0
            ended = self.end(hub, said) if stopped else said
            told, ends = [*self.told], redis.snapshot()
            redis.restore(before)
            setattr(codec, "script", functools.partial(ending, ""))  # noqa: B010
            self.told.clear()
            expected = self.server.run(self.address, call, hub, self.now_us).answer
            expected = self.end(hub, expected) if stopped else expected
            assert (plain(ended), told) == (plain(expected), self.told), call
            self.agree(ends, redis.snapshot(), call)
        redis.restore(after)
        self.server.forget()
        return said

    def end(self, hub: str, said: AnyReply | CommandError) -> Reply:
        """What came of a call that nobody received a message of, once the next one ended it."""
        rest = self.server.run(self.address, op.Reap(), hub, self.now_us).answer
        assert isinstance(said, Reply)
        assert isinstance(rest, Reply)
        return rest._replace(answers=said.answers, granted=[*said.granted, *rest.granted])

    def agree(self, quick: Snapshot, general: Snapshot, call: op.AnyOperation) -> None:
        values = ({k: members(v) for k, (v, _) in found.items()} for found in (quick, general))
        assert next(values) == next(values), call
        for key, (_, at) in quick.items():
            latest = general[key][1]
            now = self.now_us // 1000
            assert (at is None) == (latest is None), (call, key)
            assert not at or not latest or 3 * (at - now) + 1000 >= latest - now, (call, key)


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script does can be watched; afterwards it is as it was."""
    monkeypatch.setattr(codec, "script", script)


@pytest.mark.timeout(60 + RUNS)
@pytest.mark.parametrize(("mode", "clock"), KINDS)
def test_a_quick_path_does_what_the_general_one_does(mode: Mode, clock: Clock) -> None:
    """Otherwise a promise holds or not by how busy the semaphore happens to be."""
    taken = Counter[type]()
    for run in range(RUNS):
        seed = run if run < FIXED else secrets.randbits(32)
        taken += Compared(mode, seed, clock).walk(STEPS).taken
    both = taken[op.Acquire], taken[op.Release]
    assert both[1] > RUNS / 2 if mode in RATED[1:] else min(both) > RUNS / 2, taken


def test_permits_that_a_loss_set_free_are_granted_by_the_next_call() -> None:
    """A busy semaphore would use less than its limit until somebody's heartbeat."""
    state = Compared("zset", 0)
    one, other, third = HUBS
    state.acquire(one, 1, limit=3, permits=3)
    state.acquire(other, 1, limit=3)
    state.call(third, op.Heartbeat(10_000, hub_info=INFO))
    state.lose("holders")
    state.acquire(third, 1)
    assert [state.held_by(hub) for hub in HUBS] == [[], [1], []]
    state.release(other, 1)
    assert state.held_by(third) == [1]


def test_a_request_is_served_although_the_clock_was_set_back_at_a_loss() -> None:
    """Requests that were passed over have later tickets, and hid it for as long as they waited."""
    state = Compared("zset", 0)
    one, other, _ = HUBS
    state.acquire(one, 1, 2, limit=3, options={2: op.RequestOptions(3)})
    state.lose("meta")
    state.pass_time(-3000)
    state.call(one, op.Heartbeat(10_000, [op.QueuedRequest(2, 10_000, 3, 3)], INFO))
    state.acquire(other, 1, 2, 3, limit=3)
    state.release(other, 1, hold_ms=7)
    assert (state.held_by(one), state.held_by(other)) == ([1], [2, 3])


@pytest.mark.parametrize("mode", MODES)
def test_a_set_limit_that_is_lost_after_meta_holds_nobody_up(mode: Mode) -> None:
    """The requests that it held up would wait for as long as nobody sets a limit again."""
    state, hub = Compared(mode, 0), HUBS[0]
    state.call(hub, op.SetLimit(1, 1))
    state.acquire(hub, 1, 2, limit=3, options={2: op.RequestOptions(2)})
    state.lose("meta")
    state.call(hub, op.Heartbeat(10_000, [op.QueuedRequest(2, 10_000, 3, 2)], INFO))
    state.lose("limit")
    state.call(hub, op.Reap())
    assert state.held_by(hub) == [1, 2]


def dies(state: Compared) -> None:
    state.pass_time(2000)
    key = next(key for key in state.address.keys if key.endswith("hubs"))
    state.server._redis.command("ZADD", key, state.now_us // 1000 - 500, "d" * 32)


def notes(field: str, value: str) -> Callable[[Compared], None]:
    def note(state: Compared) -> None:
        state.server._redis.command("HSET", state.address.keys[2], field, value)

    return note


UNUSUAL: dict[str, Callable[[Compared], Any]] = {
    "a holder has expired": lambda state: state.pass_time(11_000),
    "the request behind fits": lambda state: state.acquire(HUBS[2], 2, limit=9),
    "the request behind never fits": lambda state: state.acquire(HUBS[2], 2, limit=0),
    "no message reaches the next": notes(f"{HUBS[2]}:no_push", "1"),
    "a hub died": dies,
    "facts were lost": lambda state: state.lose("facts"),
    "the set limit is lost": notes("passed", "inf:0:2"),
    "permits were lost": notes("passed", f"{START_US}:3:-"),
    "the queue was not looked through": notes("looked", f"{START_US // 1000}:1"),
}


@pytest.mark.parametrize("unusual", [None, *UNUSUAL])
def test_a_release_is_quick_only_where_nothing_is_unusual(unusual: str | None) -> None:
    """Random states come to some of this once in thousands of steps."""
    state = Compared("fair", 0)
    one, other, third = HUBS
    for hub, lease_ms in ((one, 90_000), (other, 10_000), (third, 10_000)):
        state.acquire(hub, 1, limit=2, lease_ms=lease_ms)
    state.call(one, op.Reap())
    if unusual is not None:
        UNUSUAL[unusual](state)
    state.release(one, 1)
    assert state.taken[op.Release] == (unusual is None)
