"""The pure rules: leases, refreshes, delays, names."""

import asyncio
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redsem_async._core.backoff import delays
from redsem_async._core.cancellation import finish
from redsem_async._core.config import Terms
from redsem_async._core.keys import Address, new_hub_id, parse_permit_id, permit_id
from redsem_async._core.lease import (
    Lost,
    Outcome,
    after_refresh,
    ahead_in_turns,
    clock_margin,
    heartbeat_interval,
    liveness_timeout,
    retry_after,
    trusted_until,
)
from redsem_async._hub.model import Lease, Request, WrongTransition
from redsem_async._hub.refresher import refresh_due
from tests.worlds.simulated_time import simulated

leases = st.floats(0.05, 10_000)


@simulated
async def test_a_verb_that_is_not_in_the_table_says_of_what_it_was_called() -> None:
    """A request that is granted twice would be two permits: rather no permit."""
    loop, address = asyncio.get_running_loop(), Address("fair", "redsem", "jobs", "server")
    request = Request(address, Terms(1), 1, 0.0, True, loop)
    with pytest.raises(WrongTransition, match="told_to_wait is not for what is NEW"):
        request.told_to_wait()
    request.written()
    request.serve(lease := Lease(request, 1, (), 1.0, 0.0))
    with pytest.raises(WrongTransition, match="serve is not for what is DONE"):
        request.serve(lease)
    lease.end()
    with pytest.raises(WrongTransition, match="lose is not for what is ENDED"):
        lease.lose("gone")


@given(leases, st.floats(0, 1e6))
def test_trust_ends_before_the_server_lets_go(lease: float, sent_at: float) -> None:
    """The server counts from when the command ran, which is not before it was sent."""
    assert trusted_until(lease, sent_at=sent_at, left=lease) < sent_at + lease
    assert clock_margin(lease) < lease


@given(leases)
def test_a_process_outlives_three_heartbeats(lease: float) -> None:
    """One or two lost heartbeats must not cost a place in line."""
    assert liveness_timeout(lease) >= 3 * heartbeat_interval(lease)
    assert liveness_timeout(lease) >= lease


def test_what_a_refresh_says_of_trust() -> None:
    """GONE is a fact; UNKNOWN changes nothing; RENEWED counts from sending, and never shortens."""
    assert isinstance(after_refresh(100, 10, Outcome.GONE, sent_at=1, now=2), Lost)
    assert after_refresh(100, 10, Outcome.UNKNOWN, sent_at=1, now=99) == 100
    assert isinstance(after_refresh(100, 10, Outcome.UNKNOWN, sent_at=1, now=100), Lost)
    renewed = after_refresh(50, 10, Outcome.RENEWED, sent_at=60, now=61)
    assert renewed == trusted_until(10, sent_at=60, left=10)
    assert after_refresh(500, 10, Outcome.RENEWED, sent_at=60, now=61) == 500
    assert isinstance(after_refresh(50, 10, Outcome.RENEWED, sent_at=60, now=75), Lost)


@given(st.floats(0, 1e6), st.floats(0.01, 1000))
def test_refreshes_are_due_on_a_shared_grid(now: float, interval: float) -> None:
    """On a grid they travel together; and never later than the interval."""
    due = refresh_due(now, interval)
    assert now + interval / 2 < due <= now + interval


@given(st.one_of(st.none(), st.floats(-5, 100)), leases, st.integers(0, 1000), st.integers(0, 100))
def test_retry_after_without_a_measurement(
    moment: float | None, lease: float, ahead: int, limit: int
) -> None:
    """It goes into a header."""
    assert 0 <= retry_after(ahead, limit, None, moment, lease) <= lease


def test_retry_after_is_the_length_of_the_line_by_the_usual_hold() -> None:
    assert retry_after(20, 2, 0.05, 9.0, 10.0) == pytest.approx(21 * 0.05 / 2)
    assert retry_after(3, 0, 0.05, None, 10.0) == 10.0  # paused: nobody knows for how long


def test_each_request_of_its_own_key_costs_a_round_of_all_keys() -> None:
    assert ahead_in_turns(4, keys=3, limit=8) == 12
    assert ahead_in_turns(0, keys=3, limit=8) == 0
    assert ahead_in_turns(0, keys=3, limit=1) == 2, "keys that hold nothing have their turns"


def test_delays_grow_and_are_bounded() -> None:
    """Neither a stampede nor a minute's silence after an outage."""
    source = random.Random(1)
    some = list(itertools.islice(delays(source.random), 20))
    assert all(0.005 <= delay <= 1 for delay in some)
    assert some[-1] > some[0]


def test_permit_ids_are_told_from_other_text() -> None:
    """release() is given what came through a queue, or from a user."""
    hub = new_hub_id()
    assert parse_permit_id(permit_id(hub, 12)) == (hub, 12)
    for text in ("", "x", hub, f"{hub}.", f"{hub}.0", f"{hub}.1\n", f"{hub}.-1", f"{hub}.1.2"):
        assert parse_permit_id(text) is None


def test_hub_ids_have_128_bits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guessed id releases the permit, whatever a program has seeded."""
    assert len({new_hub_id() for _ in range(1000)}) == 1000
    monkeypatch.setattr("secrets.token_hex", "{} bytes".format)
    assert new_hub_id() == "16 bytes"


# -- finish: something is finished first, and then the task ends as cancelled


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
