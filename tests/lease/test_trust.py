"""For how long a permit is trusted at the moment its caller gets it."""

import asyncio
from typing import Any

import pytest

from redsem_async import AnySemaphore, Permit
from tests.harness.clients import MakePair
from tests.harness.wait import give_back, queue_up
from tests.worlds.simulated_time import simulated

SLACK = 0.05  # seconds, for the margin of the clocks


async def grant(way: str, held: Permit, there: AnySemaphore) -> None:
    """Let the waiter have a permit, where another process holds one."""
    if way == "expiry":
        await held.detach(0.2)
    elif way == "a raised limit":
        await there.set_limit(2)
    else:
        await held.release()


@pytest.mark.parametrize("lease", [3.0, 0.6])
@pytest.mark.parametrize(
    "way", ["a release", "its own release", "expiry", "a raised limit", "a key", "a slot"]
)
@simulated
async def test_a_caller_gets_a_lease_less_a_refresh_interval(
    pair: MakePair, way: str, lease: float
) -> None:
    """A stall or an outage of that length must not lose what was just granted."""
    options: dict[str, Any] = {"lease": lease, "refresh_interval": 0.05}
    asks: dict[str, Any] = {"key": "a"} if way == "a key" else {}
    if way == "a key":
        options |= {"limit": 5, "key_limit": 1}
    elif way == "a slot":
        options |= {"limit": None, "slots": ["one"]}
    here, there = pair(**options)
    held = await (here if way == "its own release" else there).acquire(**asks)
    waiter = await queue_up(here, **asks)
    await asyncio.sleep(0.15)  # less than between two heartbeats
    await grant(way, held, there)
    permit = await waiter
    assert permit.expires_in >= lease - 0.05 - SLACK
    await give_back(permit, *([held] if way == "a raised limit" else []))
