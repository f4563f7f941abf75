"""Under load no command or write becomes as large as a program asks for."""

import asyncio
from typing import Any

import pytest

from redsem_async import FairSemaphore
from redsem_async._hub.commands import MAX_REFRESHES
from redsem_async._hub.pipeline import MAX_WINDOW
from redsem_async._hub.state import MAX_BATCH, MAX_KEYED
from tests.harness.memory import Distant
from tests.harness.wait import give_back
from tests.worlds.simulated_time import simulated


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keys"])
async def test_batches_are_bounded(keyed: bool) -> None:
    """Redis runs one script at a time: thousands of ids are many short ones."""
    far, many = Distant(), 1300
    options: dict[str, Any] = {"key_limit": 1} if keyed else {}
    semaphore = FairSemaphore(far, "jobs", many, lease=30.0, **options)
    keys: list[dict[str, Any]] = [{"key": str(n)} if keyed else {} for n in range(many)]
    permits = await asyncio.gather(*(semaphore.acquire(**key) for key in keys))
    await asyncio.gather(*(permit.refresh() for permit in permits))
    await asyncio.gather(*(permit.release() for permit in permits))
    most = MAX_KEYED if keyed else MAX_BATCH
    bounds = {"acquire": most, "refresh": MAX_REFRESHES, "release": most}
    for operation, bound in bounds.items():
        commands: list[Any] = [each for each in far.sent if each.script == operation]
        sizes = [len(command.numbers) for command in commands]
        assert sum(sizes) >= many
        assert max(sizes) <= bound < many


@simulated
async def test_commands_in_flight_are_bounded() -> None:
    """What waits for a slow server waits here, and not in its buffers."""
    far = Distant()
    semaphores = [FairSemaphore(far, f"jobs {number}", 1) for number in range(100)]
    await asyncio.gather(*(semaphore.reap() for semaphore in semaphores))
    before = len(far.sent)
    far.delay = 0.1
    acquiring = [asyncio.ensure_future(semaphore.acquire()) for semaphore in semaphores]
    await asyncio.sleep(0.01)
    assert 0 < len(far.sent) - before <= MAX_WINDOW
    far.delay = 0.0
    await asyncio.gather(*map(give_back, acquiring))
