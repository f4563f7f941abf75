"""Rates, as a user of semaphores meets them."""

import asyncio
import copy
import logging
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from redsem_async import (
    AcquireTimeout,
    FairSemaphore,
    ModeMismatch,
    Mutex,
    Permit,
    Rate,
    Semaphore,
)
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client
from tests.harness.wait import give_back, queue_up, soon
from tests.worlds.simulated_time import simulated

TWO = {"requests": Rate(500, per=60), "tokens": Rate(90_000, per=60)}


def test_a_rate_is_shown_as_written_compared_and_copied() -> None:
    rate = Rate(500, per=60)
    assert repr(rate) == "Rate(500, per=60)"
    assert repr(Rate(5, burst=2)) == "Rate(5, burst=2)"
    assert rate == Rate(500, 60.0) != Rate(500)
    assert pickle.loads(pickle.dumps(rate)) == copy.copy(rate) == rate
    with pytest.raises(AttributeError):
        rate.amount = 3  # type: ignore[misc]


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Rate(0), "amount of a rate must be a finite number > 0"),
    (lambda: Rate(math.nan), "amount of a rate must be a number, not NaN"),
    (lambda: Rate(True), "amount of a rate must be a number, not bool"),
    (lambda: Rate(10**400), "amount of a rate is too large"),
    (lambda: Rate(5, per=math.inf), "per of a rate must be a finite number > 0"),
    (lambda: Rate(5, per=86_400), "a budget for a day or a month is kept where it is billed"),
    (lambda: Rate(5, burst=-1), "burst of a rate must be a finite number > 0"),
    (lambda: Rate(1, per=3600, burst=100), "takes more than a day to come back"),
    (lambda: semaphore(rate=5), "rate must be a Rate, or a dict of Rates by their names"),
    (lambda: semaphore(rate={}), "rate may name 1 to 4 rates, not 0"),
    (lambda: semaphore(rate=dict.fromkeys("abcde", Rate(1))), "rate may name 1 to 4 rates"),
    (lambda: semaphore(rate={1: Rate(1)}), "the name of a rate must have .* not 1"),
    (lambda: semaphore(rate={"a b": Rate(1)}), "the name of a rate must have 1 to 64 letters"),
    (lambda: semaphore(rate=Rate(5), clock="local"), "rate needs clock='server'"),
    (lambda: Semaphore(MemoryBackend(), "n", 1, rate=Rate(5)), "rate needs a FairSemaphore"),  # type: ignore[call-arg]
    (lambda: Mutex(MemoryBackend(), "n", rate=Rate(5)), "rate needs a FairSemaphore"),  # type: ignore[call-arg]
    (lambda: FairSemaphore(MemoryBackend(), "n", rate=Rate(5)), "missing argument 'limit'"),
    (lambda: semaphore(rate=None).acquire(cost=1), "a cost needs a FairSemaphore with rate="),
    (lambda: semaphore().acquire(cost={}), "cost must say what the request takes from .*tokens"),
    (lambda: semaphore().acquire(cost=1), "cost must be a dict, because there are several rates"),
    (lambda: semaphore().acquire(cost={"token": 1}), "cost names 'token', and there is no such"),
    (
        lambda: semaphore().acquire(cost={"tokens": -1}),
        "a cost of -1 is below 0: 'tokens' is Rate",
    ),
    (lambda: semaphore().acquire(cost={"tokens": math.nan}), "cost of 'tokens' must be a number"),
    (lambda: semaphore().acquire(cost={"tokens": 1e12}), "takes more than a day"),
]


def semaphore(rate: Any = TWO, limit: int = 9, **options: Any) -> FairSemaphore:
    return FairSemaphore(MemoryBackend(), "n", limit, rate=rate, **options)


@pytest.mark.parametrize(("made", "says"), WRONG)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    made: Callable[[], object], says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        made()


async def test_a_forgotten_cost_is_an_error_at_each_door() -> None:
    sem = semaphore()
    for ask in (sem.acquire, sem.try_acquire):
        with pytest.raises(TypeError, match="cost must say"):
            await ask()
    with pytest.raises(TypeError, match="cost must say"):
        async with sem:
            pass


async def test_requests_go_by_the_rate_in_their_order() -> None:
    sem, order = semaphore(Rate(100, burst=5)), list[int]()

    async def work(number: int) -> float:
        async with sem.acquire() as permit:
            order.append(number)
            return permit.waited

    waited = await asyncio.gather(*map(work, range(10)))
    assert order == [*range(10)]
    assert max(waited[:5]) < min(waited[5:])
    assert 0.045 <= waited[9]


async def test_a_refusal_says_that_the_rate_is_used_up_and_when_to_ask() -> None:
    backend = MemoryBackend()
    sem = FairSemaphore(backend, "n", 9, rate=Rate(1, per=10, burst=1))
    held = await sem.acquire()
    with pytest.raises(AcquireTimeout, match="the rate is used up") as refused:
        await sem.acquire(timeout=0, cost=0.5)
    assert refused.value.blocked_by == "rate"
    assert refused.value.retry_after == pytest.approx(5, abs=0.2)
    assert await sem.try_acquire() is None
    waiting = asyncio.create_task(sem.acquire(timeout=0.05))
    with pytest.raises(AcquireTimeout) as refused:
        await waiting
    assert (refused.value.blocked_by, round(refused.value.retry_after)) == ("rate", 10)
    await held.release()


async def test_a_status_tells_what_is_left_and_when_it_is_full() -> None:
    sem = semaphore({"requests": Rate(2, per=10, burst=2), "tokens": Rate(10, burst=100)})
    async with sem.acquire(cost={"tokens": 150}):
        rates = (await sem.status()).rates
    assert [*rates] == ["requests", "tokens"]
    assert rates["requests"][:3] == (2, 10, 2)
    assert rates["requests"].available == pytest.approx(1, abs=0.1)
    assert rates["tokens"].available == pytest.approx(-50, abs=2)
    assert all(each.available == round(each.available, 6) for each in rates.values())
    assert rates["tokens"].full_in == pytest.approx(15, abs=0.2)
    assert next(iter((await semaphore().status()).rates.values())).full_in == 0


async def test_settling_gives_back_what_the_work_did_not_cost() -> None:
    sem = semaphore({"tokens": Rate(10, burst=100)})
    async with sem.acquire(cost={"tokens": 100}) as permit:
        permit.settle({"tokens": 90})
        permit.settle({"tokens": 10})  # the last call counts
    assert (await sem.status()).rates["tokens"].available == pytest.approx(90, abs=2)
    with pytest.raises(RuntimeError, match="settle it before its block ends"):
        permit.settle(5)


async def test_only_the_process_that_acquired_a_permit_may_settle_it() -> None:
    sem = semaphore(Rate(10))
    permit = await sem.acquire()
    async with sem.adopt(await permit.detach(5)) as adopted:
        with pytest.raises(TypeError, match="an adopted permit cannot be settled"):
            adopted.settle(1)
    async with FairSemaphore(MemoryBackend(), "n", 1).acquire() as plain:
        with pytest.raises(TypeError, match="a cost needs a FairSemaphore with rate="):
            plain.settle(1)


@pytest.mark.parametrize("other", [None, {"requests": Rate(1)}, {"x": Rate(1), "tokens": Rate(1)}])
async def test_clients_with_other_rates_on_one_name_are_refused(
    other: Mapping[str, Rate] | None,
) -> None:
    backend = MemoryBackend()
    async with FairSemaphore(backend, "n", 9, rate=TWO).acquire(cost={"tokens": 1}):
        with pytest.raises(ModeMismatch, match="rates 'requests', 'tokens'"):
            cost = dict.fromkeys(other, 1) if other else None
            await FairSemaphore(backend, "n", 9, rate=other).acquire(cost=cost)


async def test_other_amounts_are_a_deployment_and_no_mismatch() -> None:
    backend = MemoryBackend()
    slow, fast = (FairSemaphore(backend, "n", 9, rate=Rate(each)) for each in (1, 50))
    async with slow.acquire(), fast.acquire(timeout=2):
        pass


async def test_a_wait_that_is_given_up_costs_nothing() -> None:
    sem = semaphore(Rate(20, burst=1))
    held = await sem.acquire()
    waiting = asyncio.create_task(sem.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with held, sem.acquire() as permit:
        assert permit.waited < 0.09


async def test_a_permit_that_its_caller_never_had_costs_nothing() -> None:
    sem, had = semaphore(Rate(1, per=100, burst=99)), 0
    for turns in range(20):
        waiting = asyncio.create_task(sem.acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        for permit in await asyncio.gather(waiting, return_exceptions=True):
            if isinstance(permit, Permit):
                await permit.release()
                had += 1
    assert 0 < had < 19
    assert (await sem.status()).rates["requests"].available == pytest.approx(99 - had, abs=0.1)


@simulated
async def test_no_process_waits_for_a_heartbeat_where_another_was_the_head_before(
    client: Client, other: Client
) -> None:
    """Heartbeats are ten seconds apart, and each waiter goes when the rate lets it go."""
    here, there = (FairSemaphore(each, "n", 9, rate=Rate(2), lease=30) for each in (client, other))
    held = [await here.acquire(), await there.acquire()]
    waiting = [await queue_up(each) for each in (here, there, there, here, there, here)]
    permits = [await soon(each) for each in waiting]
    assert [round(permit.waited, 1) for permit in permits] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    await give_back(*held, *permits)


@simulated
async def test_no_process_leaves_its_time_to_others_because_many_of_theirs_wait(
    client: Client, other: Client
) -> None:
    here, there = (FairSemaphore(each, "n", 9, rate=Rate(10, burst=1)) for each in (client, other))
    held = await here.acquire()
    waiting = [await queue_up(each) for each in (*[here] * 3, *[there] * 6)]
    permits = [await soon(each) for each in waiting[:3]]
    assert permits[-1].waited == pytest.approx(0.3, abs=0.02)
    for each in waiting[3:]:
        each.cancel()
    await give_back(held, *permits)


@simulated
async def test_who_waits_for_the_rate_in_its_own_block_does_not_wait_for_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("redsem_async").setLevel(logging.WARNING)  # until the simulation is over
    sem = semaphore(Rate(1, per=10, burst=1), lease=1)
    async with sem:
        with pytest.raises(AcquireTimeout) as refused:
            await sem.acquire(timeout=0.5)
        async with sem as permit:
            assert permit.waited > 5
    assert (refused.value.blocked_by, refused.value.nested) == ("rate", False)
    assert not caplog.records


@pytest.mark.parametrize(
    "options", [{"slots": ["a", "b"]}, {"limit": 1, "share": True}, {"limit": 1, "rate": Rate(1)}]
)
async def test_every_kind_says_that_it_is_ready(options: dict[str, Any]) -> None:
    sem = FairSemaphore(MemoryBackend(), "n", **options)
    await sem.ready()
    await sem.ready()
    assert (await sem.status()).held == 0
