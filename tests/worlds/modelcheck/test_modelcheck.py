"""Every order of events within small bounds."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from unittest.mock import Mock

import pytest

from redsem_async._core.keys import with_slots
from redsem_async._hub.lease import Lease
from redsem_async._protocol.operations import Acquire, Release, Request
from redsem_async._protocol.replies import Answer, Reply
from redsem_async.testing._spec import keyed, queue, serving
from redsem_async.testing._spec.keyed import KeyedSpecification, SharedSpecification
from redsem_async.testing._spec.passing import PassingSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import CallContext, HolderRecord, QueuedRequest
from redsem_async.testing._spec.slots import assign
from redsem_async.testing._spec.state import State

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .scenarios_of_keys import SCENARIOS_OF_KEYS
from .search import Search
from .world import Make

WAITS = "waits, and its limits have room"
PASSED = "before those who were granted"
MOST = 100_000  # states of a scenario; the longer form has some with more, and says so

WITH_SLOTS_TOO = {
    "fair a detach that is lost",
    "fair a lost link and late commands",
    "fair a pause",
    "fair an adoption that is cancelled",
    "fair mixed limits",
    "fair+keys a deletion, and keys",
    "fair+keys a heavy head of its key",
    "fair+keys a revoked permit, and a key",
    "fair+keys a link with keys is lost",
    "fair+keys a permit with a key expires",
    "fair+keys a process with a key dies",
    "fair+keys an adoption, and a key",
    "fair+keys the overall limit, and keys",
    "zset a lost link and late commands",
    "zset weights",
}

WITHOUT_SLOTS = (*SCENARIOS, *SCENARIOS_OF_KEYS)
KNOWN = {str(scenario): scenario for scenario in WITHOUT_SLOTS} | {
    f"{scenario} with slots": replace(scenario, mode=with_slots(scenario.mode), release=False)
    for scenario in WITHOUT_SLOTS
    if LONG or str(scenario) in WITH_SLOTS_TOO
}


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.release if s.release else ()) for s in KNOWN.values()],
    ids=str,
)
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with an end to everything from every state."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


@pytest.mark.release
def test_what_is_said_to_commute_does() -> None:
    for name in ("fair a lost link and late commands", "zset mixed limits"):
        scenario = KNOWN[name]
        trusting, distrustful = Search(scenario), Search(scenario, distrustful=True)
        assert trusting.run().states == distrustful.run().states


# -- a search that finds nothing proves nothing, unless it finds what is there


class WithoutMark(QueueSpecification):
    """An id that is not known is granted, however old its number is."""

    def _answer(self, context: CallContext, call: Acquire, request: Request, mark: int) -> Answer:
        known = self.state.current_grant(f"{context.hub}.{request.number}", context.now)
        in_line = self._is_queued(context.hub, request)
        return super()._answer(context, call, request, mark if known or in_line else 0)


class ServesNobody(QueueSpecification):
    """What is released is not given to who waits for it."""

    def _release(self, context: CallContext, call: Release) -> Reply:
        line, self.queue = self.queue, []
        try:
            return super()._release(context, call)
        finally:
            self.queue = line


class LooksAtTheHead(PassingSpecification):
    """Only the first in the queue is served."""

    def _serve(self, context: CallContext, own: Sequence[Request] = ()) -> None:
        queue, self.queue = self.queue, self.queue[:1]
        try:
            super()._serve(context, own)
        finally:
            self.queue += queue[1:]


class ForgetsTheEnded(KeyedSpecification):
    """A key is not looked at again when a permit of it ends."""

    def _removed(self, context: CallContext, holders: Sequence[HolderRecord]) -> None:
        pass


class ForgetsWhoLeaves(KeyedSpecification):
    """A key is not looked at again when its first request leaves the line."""

    def _line_changed(self, context: CallContext, requests: Sequence[QueuedRequest]) -> None:
        standing = [queued for queued in requests if queued in self.queue]
        super()._line_changed(context, standing)


class ForgetsNewLimits(KeyedSpecification):
    """A key is not looked at again when its limit changes."""

    def _look_at(self, context: CallContext, key: str) -> None:
        if key not in self.key_limits:
            super()._look_at(context, key)


class CountsHolders(KeyedSpecification):
    """A holder is one in use of its key, however many permits it has."""

    def _use(self, key: str) -> int:
        return sum(held.key == key for held in self.state.holders.values())


class LetsLightOnesPass(KeyedSpecification):
    """A newcomer goes by the limits alone, and not by who of its key waits."""

    def _held_up(self, context: CallContext, request: Request, limit: int) -> Answer | None:
        standing, self.queue = self.queue, []
        try:
            return super()._held_up(context, request, limit)
        finally:
            self.queue = standing


class LooksOnlyAtTheRoom(KeyedSpecification):
    """A newcomer passes who the overall limit holds up."""

    def _held_up(self, context: CallContext, request: Request, limit: int) -> Answer | None:
        context.line_is_blocked = False
        return super()._held_up(context, request, limit)


class KeysBlockAll(KeyedSpecification):
    """Whom its key holds up is in the way of other keys."""

    def _acquire(self, context: CallContext, call: Acquire) -> Reply:
        context.line_is_blocked = len(self.queue) > len(self.ready)
        return super()._acquire(context, call)


class OldestFirst(SharedSpecification):
    """The next permit goes to the oldest request, whatever its key has."""

    def _next_key(self, context: CallContext) -> str | None:
        return min(self.ready, key=lambda key: self.ready[key][0], default=None)


@pytest.mark.parametrize(
    ("name", "make", "wrong"),
    [
        ("fair a lost link and late commands", WithoutMark, "nobody has it"),
        ("fair a cancellation", ServesNobody, WAITS),
        ("zset mixed limits", LooksAtTheHead, WAITS),
        ("fair+keys a key that is full", ForgetsTheEnded, WAITS),
        ("fair+keys a revoked permit, and a key", ForgetsTheEnded, WAITS),
        (
            "fair+keys a permit with a key expires",
            ForgetsTheEnded,
            WAITS,
        ),
        ("fair+keys a heavy head of its key", ForgetsWhoLeaves, WAITS),
        ("fair+keys limits of a key", ForgetsNewLimits, WAITS),
        ("fair+keys a heavy head of its key", CountsHolders, "permits of 'a' in use"),
        ("fair+keys a heavy head of its key", LetsLightOnesPass, "of the same key"),
        (
            "fair+keys the overall limit, and keys",
            LooksOnlyAtTheRoom,
            PASSED,
        ),
        ("fair+keys a key that is full", KeysBlockAll, WAITS),
        ("fair+share shares", OldestFirst, PASSED),
    ],
)
def test_a_server_that_is_wrong_is_found(name: str, make: Make, wrong: str) -> None:
    found = Search(KNOWN[name], make).run()
    assert wrong in (found.wrong or ""), str(found)


def test_a_grant_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "taken", Mock(return_value=0))
    found = Search(KNOWN["fair a cancellation"]).run()
    assert "2 of 1 permits in use" in (found.wrong or ""), str(found)


@pytest.mark.parametrize(
    ("name", "rule", "wrong"),
    [
        ("a detach that is lost", (Lease, "shorten"), "is trusted as"),
        ("a detach, again", (Lease, "shorten"), "is trusted as"),
        ("two limits", (State, "is_changed"), "the set limit is 3, after 2 was confirmed"),
        ("a back-off that is ended", (State, "is_changed"), "nobody met another overload"),
        ("a deletion", (State, "is_changed"), "all was deleted, and nobody asks"),
        ("a pause", (State, "is_changed"), "the set limit is 0, after None was confirmed"),
    ],
)
def test_a_rule_that_is_taken_out_is_found(
    name: str, rule: tuple[type, str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*rule, Mock(return_value=None))
    found = Search(KNOWN[f"fair {name}"]).run()
    assert wrong in (found.wrong or ""), str(found)


def lowest(_state: State, permits: int, *_planned: object) -> Sequence[int]:
    return range(permits)


def planned_are_free(state: State, permits: int, *_planned: object) -> Sequence[int]:
    return assign(state, permits)


@pytest.mark.parametrize(
    ("name", "module", "instead"),
    [
        ("fair+keys the overall limit, and keys", queue, lowest),
        ("fair+keys the overall limit, and keys", keyed, lowest),
        ("fair mixed limits", serving, planned_are_free),
    ],
)
def test_a_server_that_gives_a_slot_twice_is_found(
    name: str, module: ModuleType, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "assign", instead)
    found = Search(KNOWN[f"{name} with slots"]).run()
    assert "have one slot" in (found.wrong or ""), str(found)
