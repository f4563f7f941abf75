"""What semaphores tell is decided above any server, and alike in both classes: fair, in memory."""

import pytest

from redsem_async import FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Kind


@pytest.fixture
def kind() -> Kind:
    """Of `make` and `pair`."""
    return FairSemaphore


@pytest.fixture
def client() -> MemoryBackend:
    """Of one test alone."""
    return MemoryBackend()
