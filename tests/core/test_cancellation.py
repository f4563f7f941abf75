"""`finish`: something is finished first, and then the task ends as cancelled."""

import asyncio

import pytest

from redsem_async._core.cancellation import finish
from tests.worlds.simulated_time import simulated


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_finish_passes_a_cancellation_on_when_the_future_is_done(cancellations: int) -> None:
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(finish(future, 5.0))
    await asyncio.sleep(0)
    for _ in range(cancellations):
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    future.set_result(None)
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@simulated
async def test_finish_passes_a_cancellation_on_when_its_time_is_over() -> None:
    """In simulated time, because to begin may take a slow machine longer than any timeout."""
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(finish(future, 0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert not future.done()
