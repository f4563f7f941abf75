"""For how long a permit is trusted at the moment its caller gets it."""

import time
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, Permit
from redsem_async._core.clock import now
from tests.harness.clients import Kind, MakePair
from tests.harness.inside import remote_of
from tests.harness.wait import give_back, queue_up, soon, until

QUIET = 0.4  # seconds, less than between two heartbeats
SLACK = 0.3  # seconds, for the margin of the clocks and the way to the caller


async def is_quiet(semaphore: AnySemaphore) -> None:
    """Wait until nothing was sent for a while to which *semaphore* got a reply."""
    link = remote_of(semaphore).route.link

    def nothing_was_sent() -> bool:
        return link.fresh_at is not None and now() - link.fresh_at >= QUIET

    await until(nothing_was_sent)


async def grant(way: str, held: Permit, there: AnySemaphore) -> None:
    """Let the waiter have a permit, where another process holds one."""
    if way == "expiry":
        await held.detach(0.2)
    elif way == "a raised limit":
        await there.set_limit(2)
    else:
        await held.release()


def options_of(way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the semaphores, and of an acquire."""
    if way == "a key":
        return {"limit": 5, "key_limit": 1}, {"key": "a"}
    return ({"limit": None, "slots": ["one"]} if way == "a slot" else {"limit": 1}), {}


@pytest.mark.parametrize("lease", [3.0, 0.6])
@pytest.mark.parametrize(
    "way", ["a release", "its own release", "expiry", "a raised limit", "a key", "a slot"]
)
async def test_a_caller_gets_a_lease_less_a_refresh_interval(
    kind: Kind, pair: MakePair, way: str, lease: float
) -> None:
    """A stall or an outage of that length must not lose what was just granted."""
    if way == "a key" and kind is not FairSemaphore:
        pytest.skip("only fair semaphores have keys")
    interval, (options, asks) = 0.05, options_of(way)
    here, there = pair(lease=lease, refresh_interval=interval, **options)
    held = await (here if way == "its own release" else there).acquire(**asks)
    waiter = await queue_up(here, **asks)
    if way != "its own release":
        await is_quiet(here)
    await grant(way, held, there)
    permit = await soon(waiter)
    assert permit.expires_in >= lease - interval - SLACK
    await give_back(permit, *([held] if way == "a raised limit" else []))


@pytest.mark.parametrize("blocked", [1.6, 3.5])
async def test_a_loop_that_is_blocked_after_a_hand_off(pair: MakePair, blocked: float) -> None:
    """For less than the lease without an interval, it loses nothing. Else the loss names it."""
    here, there = pair(1, lease=3.0)
    held = await there.acquire()
    waiter = await queue_up(here)
    await is_quiet(here)
    await held.release()
    permit = await soon(waiter)
    time.sleep(blocked)  # noqa: ASYNC251 - this is the fault
    if blocked < 2.0 - SLACK:
        permit.check()
        await give_back(permit)
    else:
        lost = await soon(permit.wait_lost())
        assert "the event loop was blocked for" in lost.reason
