"""Every order of events within small bounds."""

from unittest.mock import Mock

import pytest

from redsem_async._hub.model import Lease

from .scenarios import LONG, SCENARIOS, Scenario
from .search import Search

MOST = 100_000  # states of a scenario; the longer form has some with more, and says so


def searched(scenario: Scenario) -> Search:
    search = Search(scenario)
    search.run(MOST)
    print(search)
    return search


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=[pytest.mark.release] * s.release) for s in SCENARIOS.values()],
    ids=str,
)
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with an end to everything from every state."""
    search = searched(scenario)
    assert search.wrong is None, search.wrong
    assert search.complete or LONG


def test_a_client_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing proves nothing, unless it finds what is there."""
    monkeypatch.setattr(Lease, "shorten", Mock())
    assert "is trusted as" in str(searched(SCENARIOS["fair a detach that is lost"]).wrong)
