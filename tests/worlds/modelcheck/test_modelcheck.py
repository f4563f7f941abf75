"""Every order of events within small bounds."""

from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from redsem_async._hub.lease import Lease
from redsem_async._hub.right import ReuseRight
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Acquire, Release, Request
from redsem_async._protocol.replies import Answer, Reply
from redsem_async.testing._spec.passing import PassingSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import CallContext
from redsem_async.testing._spec.state import State

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .search import Search
from .world import Make

MOST = 100_000  # states of a scenario; the longer form has some with more, and says so


def scenario_called(name: str) -> Scenario:
    return next(s for s in SCENARIOS if f"{s.mode} {s.name}" == name)


def named(scenario: Scenario) -> str:
    return f"{scenario.mode} {scenario.name}"


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.release if s.release else ()) for s in SCENARIOS],
    ids=named,
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
        scenario = scenario_called(name)
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


@pytest.mark.parametrize(
    ("name", "make", "wrong"),
    [
        ("fair a lost link and late commands", WithoutMark, "nobody has it"),
        ("fair a cancellation", ServesNobody, "waits, and its limits have room"),
        ("zset mixed limits", LooksAtTheHead, "waits, and its limits have room"),
    ],
)
def test_a_server_that_is_wrong_is_found(name: str, make: Make, wrong: str) -> None:
    found = Search(scenario_called(name), make).run()
    assert wrong in (found.wrong or ""), str(found)


def test_a_grant_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "taken", Mock(return_value=0))
    found = Search(scenario_called("fair a cancellation")).run()
    assert "2 of 1 permits in use" in (found.wrong or ""), str(found)


@pytest.mark.parametrize(
    ("name", "rule", "wrong"),
    [
        ("a detach that is lost", (Lease, "shorten"), "is trusted as"),
        ("a detach, again", (Lease, "shorten"), "is trusted as"),
        ("two limits", (State, "is_spent"), "the set limit is 3, after 2 was confirmed"),
        ("a clear", (State, "is_spent"), "all was cleared, and nobody asks"),
        ("a pause", (State, "is_spent"), "the set limit is 0, after None was confirmed"),
        ("a lease that is used again", (ReuseRight, "recalled"), "another process waits"),
        ("a pause, and a kept lease", (ReuseRight, "recalled"), "the semaphore is paused"),
        ("a recall that is lost", (ReuseRight, "end"), "waits for a permit that is free"),
        ("weights, and a kept lease", (Lease, "fits"), "got 1 permits, not 2"),
        (
            "weights, and a kept lease",
            (SemaphoreState, "give_all_idle_back"),
            "waits for a permit that is free",
        ),
    ],
)
def test_a_rule_that_is_taken_out_is_found(
    name: str, rule: tuple[type, str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*rule, Mock(return_value=True if rule[1] == "fits" else None))
    found = Search(scenario_called(f"fair {name}")).run()
    assert wrong in (found.wrong or ""), str(found)
