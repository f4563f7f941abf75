"""What pytest is run with: Hypothesis from a fixed seed and without shrinking, failures noted."""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

FAILED = "REDSEM_MUTANTS_FAILED"
"""The file in which the names of tests that failed are noted, one a line."""

# Who breaks a promise is asked for once; the shortest way to it is for people to read.
settings.register_profile(
    "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mutants")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The workers of xdist report to the one who started them, which notes it.
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FAILED]).open("a", encoding="utf-8") as file:
            file.write(report.nodeid + "\n")
