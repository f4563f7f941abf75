"""Every order of events within small bounds."""

from dataclasses import replace

import pytest

from redsem_async._hub.claim import Claim
from redsem_async._protocol.operations import Acquire, Release, Request
from redsem_async._protocol.replies import Answer, Reply
from redsem_async.testing._spec.fair import FairSpecification
from redsem_async.testing._spec.records import CallContext
from redsem_async.testing._spec.state import State
from redsem_async.testing._spec.zset import ZsetSpecification

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .search import Search

MOST = 100_000  # states of a scenario; the longer form has some with more, and says so


def scenario_called(name: str) -> Scenario:
    return next(s for s in SCENARIOS if f"{s.mode} {s.name}" == name)


def named(scenario: Scenario) -> str:
    return f"{scenario.mode} {scenario.name}"


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with an end to everything from every state."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


def test_what_is_said_to_commute_does() -> None:
    """What is left out, since it would lead to what is known, does lead there."""
    for name in ("fair a lost link and late commands", "zset mixed limits"):
        scenario = scenario_called(name)
        trusting, distrustful = Search(scenario), Search(scenario, distrustful=True)
        assert trusting.run().states == distrustful.run().states


# -- a search that finds nothing proves nothing, unless it finds what is there


def _nothing(*_: object) -> None:
    """Stands in for a rule that is taken out."""


class WithoutMark(FairSpecification):
    """An id that is not known is granted, however old its number is."""

    def _answer(self, context: CallContext, call: Acquire, request: Request, mark: int) -> Answer:
        known = self.state.current_grant(f"{context.hub}.{request.number}", context.now)
        in_line = self._is_in_line(context.hub, request)
        return super()._answer(context, call, request, mark if known or in_line else 0)


class ServesNobody(FairSpecification):
    """What is released is not given to who waits for it."""

    def _release(self, context: CallContext, call: Release) -> Reply:
        line, self.line = self.line, []
        try:
            return super()._release(context, call)
        finally:
            self.line = line


class HintsAnybody(ZsetSpecification):
    """A hint goes to who cannot use it, too, and is not passed on."""

    def _announce(self, context: CallContext, waits: int, highest_limit: int) -> None:
        context.freed = 0 if context.reply_has_room else context.freed
        super()._announce(context, waits, highest_limit + 100)


def test_a_late_letter_that_is_granted_is_found() -> None:
    found = Search(scenario_called("fair a lost link and late commands"), WithoutMark).run()
    assert "nobody has it" in (found.wrong or ""), str(found)


def test_a_waiter_that_is_not_served_is_found() -> None:
    found = Search(scenario_called("fair a cancellation"), ServesNobody).run()
    assert "waits for a permit that is free" in (found.wrong or ""), str(found)


def test_a_grant_too_many_is_found() -> None:
    scenario = scenario_called("fair a cancellation")
    found = Search(replace(scenario, most=0)).run()
    assert "permits are held, under a limit of 0" in (found.wrong or ""), str(found)


@pytest.mark.parametrize("name", ["a detach that is lost", "a detach, again"])
def test_trust_that_outlives_a_detach_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "shorten", _nothing)
    found = Search(scenario_called(f"fair {name}")).run()
    assert "is trusted for" in (found.wrong or ""), str(found)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("two limits", "the set limit is 3, after 2 was confirmed"),
        ("a clear", "is trusted for"),
        ("a pause", "the set limit is 0, after None was confirmed"),
    ],
)
def test_a_call_that_acts_twice_is_found(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(State, "is_spent", _nothing)
    found = Search(scenario_called(f"fair {name}")).run()
    assert wrong in (found.wrong or ""), str(found)


def test_a_hint_that_is_of_no_use_is_found() -> None:
    found = Search(scenario_called("zset mixed limits"), HintsAnybody).run()
    assert "waits for a permit that is free" in (found.wrong or ""), str(found)
