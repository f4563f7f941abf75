"""Every order of events within small bounds, where requests have keys."""

from collections.abc import Sequence

import pytest

from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Acquire, Request, RightRequest
from redsem_async._protocol.replies import Answer, Reply
from redsem_async.testing._spec.keyed import KeyedSpecification, SharedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import CallContext, HolderRecord, QueuedRequest

from .scenario import Scenario
from .scenarios import LONG
from .scenarios_of_keys import SCENARIOS_OF_KEYS
from .search import Search
from .test_modelcheck import MOST, named
from .world import Make


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.release if s.release else ()) for s in SCENARIOS_OF_KEYS],
    ids=named,
)
def test_every_order_of_events_with_keys(scenario: Scenario) -> None:
    """No key above its limit, and nobody waits whose limits have room and whose turn it is."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


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


class GivesTheRight(KeyedSpecification):
    """A process may reuse leases although limits of keys are set."""

    def _answer_right(
        self, context: CallContext, asked: RightRequest | None, *, allowed: bool = True
    ) -> bool:
        return QueueSpecification._answer_right(self, context, asked, allowed=allowed)


class OldestFirst(SharedSpecification):
    """The next permit goes to the oldest request, whatever its key has."""

    def _next_key(self, context: CallContext) -> str | None:
        return min(self.ready, key=lambda key: self.ready[key][0], default=None)


@pytest.mark.parametrize(
    ("name", "make", "wrong"),
    [
        ("a key that is full", ForgetsTheEnded, "waits, and its limits have room"),
        ("a kick, and a key", ForgetsTheEnded, "waits, and its limits have room"),
        ("a permit with a key expires", ForgetsTheEnded, "waits, and its limits have room"),
        ("a heavy head of its key", ForgetsWhoLeaves, "waits, and its limits have room"),
        ("limits of a key", ForgetsNewLimits, "waits, and its limits have room"),
        ("a heavy head of its key", CountsHolders, "permits of 'a' in use"),
        ("a heavy head of its key", LetsLightOnesPass, "of the same key"),
        ("the overall limit, and keys", LooksOnlyAtTheRoom, "before those who were granted"),
        ("a key that is full", KeysBlockAll, "waits, and its limits have room"),
        ("shares", OldestFirst, "before those who were granted"),
        ("a kept lease, and the limit of a key", GivesTheRight, "and the limit of a key is set"),
    ],
)
def test_a_server_that_is_wrong_about_keys_is_found(name: str, make: Make, wrong: str) -> None:
    scenario = next(s for s in SCENARIOS_OF_KEYS if s.name == name)
    found = Search(scenario, make).run()
    assert wrong in (found.wrong or ""), str(found)


def test_a_lease_that_is_passed_past_another_turn_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SemaphoreState, "oldest_is_first", True)
    scenario = next(s for s in SCENARIOS_OF_KEYS if s.name == "a kept lease, and shares")
    found = Search(scenario).run()
    assert "past a turn of its own" in (found.wrong or ""), str(found)
