"""Simulated time: nothing that a busy machine could disturb."""

import pytest


@pytest.fixture(autouse=True)
def patience() -> None:
    """Nothing has to be changed."""
