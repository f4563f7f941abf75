"""Every order of events within small bounds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from redsem_async.testing._model import Model, Tell

from .checker import Search
from .mutants import (
    FairWithoutMark,
    HintsWithoutEnd,
    WithoutHeadsTime,
    WithoutNextMoment,
    ZsetWithoutMark,
    by_the_callers_limit,
)
from .scenario import Budget, Scenario
from .scenarios import SCENARIOS, asks

LEASES = (3, 3, 3)


DUPLICATE = Scenario("a late duplicate", "fair", ((1,), (), ()), (1, 1, 1), LEASES, Budget(cuts=1))
ZSET_DUPLICATE = replace(DUPLICATE, mode="zset", prompt=False)
HEAVY = Scenario("two heavy", "zset", ((2,), (2,), (1, 1)), (2, 2, 2), LEASES, Budget())
MOMENT = Scenario(
    *("a dead holder", "fair", ((1,), (1,), ()), (1, 1, 1), (1, 1, 1)),
    Budget(ticks=2, kills=1),
    tick_ms=500,
)
HEAD = Scenario(
    *("a dead head", "fair", ((1,), (2,), (1,)), (2, 2, 2), (18, 3, 3)),
    Budget(ticks=9, kills=1, half_open=1),
    tick_ms=500,
    # A holds and dies; B, whose two permits do not fit, is the head; C waits behind it.
    opening=(*asks(0), ("die", 0, 0), *asks(1), ("tick", 0, 0), *asks(2)),
)
LIMITS = Scenario("mixed limits", "fair", ((1,), (1,), (1,)), (2, 1, 2), LEASES, Budget())

TAKEN_OUT: list[tuple[Scenario, Callable[[Tell], Model], str]] = [
    (DUPLICATE, FairWithoutMark, "was given back, and is back"),
    (ZSET_DUPLICATE, ZsetWithoutMark, "was given back, and is back"),
    (MOMENT, WithoutNextMoment, "nothing but the slow heartbeat"),
    (HEAD, WithoutHeadsTime, "nothing but the slow heartbeat"),
    (HEAVY, HintsWithoutEnd, "commands beget commands"),
    (LIMITS, by_the_callers_limit(LIMITS), "under a limit of 1"),
]


@pytest.mark.parametrize(("scenario", "without", "wrong"), TAKEN_OUT)
def test_what_a_rule_is_for_is_found_without_it(
    scenario: Scenario, without: Callable[[Tell], Model], wrong: str
) -> None:
    """A search that finds nothing proves nothing, unless it finds what is there."""
    found = Search(scenario, without).run()
    print(found)
    assert wrong in (found.wrong or "")
    whole = Search(scenario).run()
    print(whole)
    assert whole.complete and whole.wrong is None, str(whole)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.mode} {s.name}")
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with a way out of every state."""
    found = Search(scenario).run()
    print(found)
    assert found.complete and found.wrong is None, str(found)
