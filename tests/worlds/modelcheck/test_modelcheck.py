"""Every order of events within small bounds."""

from unittest.mock import Mock

import pytest

from redsem_async._hub.model import Lease

from .scenarios import LONG, SCENARIOS, Scenario
from .search import Search

MOST = 100_000  # states of a scenario; the longer form has some with more, and says so
KNOWN = {str(scenario): scenario for scenario in SCENARIOS}


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.release if s.release else ()) for s in SCENARIOS],
    ids=str,
)
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with an end to everything from every state."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


def test_a_client_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing proves nothing, unless it finds what is there."""
    monkeypatch.setattr(Lease, "shorten", Mock())
    assert "is trusted as" in str(Search(KNOWN["fair a detach that is lost"]).run(MOST))
