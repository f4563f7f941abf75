"""Simulated time: nothing that a busy machine could disturb."""

import pytest


@pytest.fixture(autouse=True)
def overtime() -> None:
    """OVERTIME stays as it is shipped."""
