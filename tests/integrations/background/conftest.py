"""Where the jobs of a test run, and what must be left of them."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from redsem_async import FairSemaphore
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free
from tests.integrations.background.load import Load


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    """Two at a time."""
    return FairSemaphore(backend, "jobs", 2)


@pytest.fixture
def load() -> Load:
    """What runs at a time."""
    return Load()


@pytest.fixture
async def nothing_is_left(sem: FairSemaphore) -> AsyncIterator[None]:
    """No task runs on, and every permit is back."""
    before = asyncio.all_tasks()
    yield
    gc.collect()
    here = asyncio.current_task()
    after = {task for task in asyncio.all_tasks() - before if task is not here}
    assert [task for task in after if not task.get_name().startswith("redsem")] == []
    await all_free(sem)
