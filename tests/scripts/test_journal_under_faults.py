"""A soak of a few seconds, with faults all the time: the journal finds nothing wrong."""

import pytest

from redsem_async._core.keys import MODES
from tests.worlds.soak.plan import Plan
from tests.worlds.soak.run import Soak

pytestmark = pytest.mark.release

FAULTS = (
    *("client kill", "script flush", "kill -9", "stop"),
    *("lost reply", "refused connections", "late duplicate", "flushall"),
)


@pytest.mark.timeout(180)
async def test_the_journal_keeps_the_rules_under_faults() -> None:
    """Every script, every message, every permit: in the order in which the server ran them."""
    plan = Plan(6.0, processes=3, tasks=10, names=40, faults=FAULTS, pause=0.06, rest=0.01)
    soak = Soak(plan)
    await soak.run()
    assert not soak.checker.wrong, "\n".join(soak.checker.wrong)
    assert soak.complete, (soak.faults, soak.checker.scripts)
    assert soak.checker.scripts.total() > 500
    assert soak.checker.joined > 100
    assert {place.mode for place in soak.places} >= {m for m in MODES if "+rate" not in m}
