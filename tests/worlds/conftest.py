"""Simulated time: nothing that a busy machine could disturb."""

import pytest


@pytest.fixture(autouse=True)
def patience() -> None:
    """GRACE stays as it is."""
