"""Under load no command or write becomes as large as a program asks for."""

import asyncio
from typing import Any

import pytest

from redsem_async import FairSemaphore
from redsem_async._hub.commands import MAX_REFRESHES
from redsem_async._hub.state import MAX_BATCH, MAX_KEYED
from tests.harness.memory import Distant


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
