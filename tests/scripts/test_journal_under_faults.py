"""A soak of a few seconds, with faults all the time: the journal finds nothing wrong."""

import pytest

from redsem_async._core.keys import MODES
from tests.worlds.soak.plan import Fault, Plan
from tests.worlds.soak.run import soak

pytestmark = pytest.mark.release

FAULTS: tuple[Fault, ...] = (
    *("client kill", "script flush", "kill -9", "short stop"),
    *("lost reply", "dropped connection", "late duplicate", "flushall"),
)


@pytest.mark.timeout(180)
async def test_the_journal_keeps_the_rules_under_faults() -> None:
    """Every script, every message, every permit: in the order in which the server ran them."""
    report = await soak(
        Plan(seconds=6.0, processes=3, tasks=10, names=40, faults=FAULTS, pause=0.06, rest=0.01)
    )
    checker = report.checker
    assert not report.violations, "\n".join(report.violations)
    assert not report.never_happened, report.faults
    assert checker.operations > 500
    assert checker.history.joined > 100
    scripts = {f"{mode} {op}" for mode in MODES for op in ("acquire", "release")}
    assert scripts <= checker.scripts.keys()
    assert max(checker.history.most_inside.values()) > 3
