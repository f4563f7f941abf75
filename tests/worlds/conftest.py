"""Simulated time: nothing that a busy machine could disturb."""

import pytest


@pytest.fixture(autouse=True)
def overtime() -> None:
    """GRACE stays as it is."""
