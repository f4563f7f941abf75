"""Where semaphores are kept that need no server."""

import pytest

from redsem_async.testing import MemoryBackend


@pytest.fixture
def backend() -> MemoryBackend:
    """Of one test alone."""
    return MemoryBackend()
