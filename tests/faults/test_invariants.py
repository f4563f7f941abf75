"""Four processes and a hundred tasks on one name, and a judge that trusts none of them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Kind
from tests.harness.wait import all_free, until

Stay = tuple[float, float, float, int, int]  # asked, entered, left, fencing token, permits


def most_inside(stays: list[Stay]) -> int:
    """How many permits were in use at the worst moment.

    Where one leaves in the instant in which another enters, it left before.
    """
    edges = [edge for _, entered, left, _, n in stays for edge in ((entered, n), (left, -n))]
    inside = most = 0
    for _, change in sorted(edges):
        inside += change
        most = max(most, inside)
    return most


def regressions(stays: list[Stay]) -> Iterator[tuple[int, int]]:
    """Tokens that are not above those of everybody who had left before they were asked for."""
    leaving = iter(sorted((left, token) for _, _, left, token, _ in stays))
    highest = 0
    left, token = next(leaving)
    for asked, _, _, own, _ in sorted(stays):
        while left < asked:
            highest = max(highest, token)
            left, token = next(leaving)
        if own <= highest:
            yield highest, own


def test_the_judge_sees_what_is_wrong() -> None:
    """A judge that lets everybody off is none."""
    fine = [(0.0, 0.0, 1.0, 1, 1), (0.5, 1.0, 2.0, 2, 1), (1.1, 1.5, 2.5, 3, 2)]
    assert most_inside(fine) == 3
    assert not list(regressions(fine))
    assert most_inside([*fine, (2.0, 2.2, 2.3, 4, 1)]) == 3
    assert most_inside([*fine, (1.0, 1.9, 2.3, 4, 1)]) == 4
    assert list(regressions([*fine, (3.0, 3.0, 4.0, 2, 1)])) == [(3, 2)]


@pytest.mark.parametrize("weights", [False, True], ids=["single", "weighted"])
@pytest.mark.timeout(60)
async def test_under_load_the_limit_holds(
    kind: Kind,
    weights: bool,
    start: StartWorker,
    client_a: Redis,
    admin: Redis,
) -> None:
    """Never more than the limit inside, tokens unique and growing, and all free at the end."""
    limit = 7
    options: dict[str, Any] = {"kind": kind.__name__, "name": "jobs", "limit": limit, "lease": 5.0}
    workers = [
        await start(
            *("hammer",),
            **options,
            seconds=2.0,
            tasks=25,
            weights=weights,
            cancelled=0.2,
            seed=seed,
        )
        for seed in range(4)
    ]
    for worker in workers:
        await worker.heard("ready")
    for worker in workers:
        worker.go_on()
    said = await asyncio.gather(*(worker.heard("done", within=40) for worker in workers))
    for worker in workers:
        assert await worker.ended() == 0
    stays: list[Stay] = [tuple(stay) for each in said for stay in each["stays"]]
    assert all(each["stays"] for each in said), "a process was never served"
    assert sum(each["cancelled"] for each in said) > 10
    assert len(stays) > 200
    tokens = [stay[3] for stay in stays]
    assert len(set(tokens)) == len(tokens)
    assert most_inside(stays) <= limit
    assert most_inside(stays) >= limit - 1, "the limit was never reached: this proves nothing"
    assert not list(regressions(stays)), "a later grant has a lower token"
    semaphore = kind(client_a, "jobs", limit)
    await all_free(semaphore, within=0.5)
    for key in await admin.keys("*"):
        assert await admin.ttl(key) > 0, key


async def test_under_load_the_order_is_that_of_the_tickets(
    server: EmbeddedRedis, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """First come, first served, across processes: who stood in line earlier is served earlier."""
    here, there = FairSemaphore(client_a, "jobs", 1), FairSemaphore(client_b, "jobs", 1)
    holder = await there.acquire()
    order: list[int] = []

    async def work(semaphore: FairSemaphore, number: int) -> None:
        async with semaphore.acquire(timeout=30):
            order.append(number)

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        semaphore = (here, there)[number * 7 % 5 % 2]
        tasks.append(asyncio.create_task(work(semaphore, number)))

        async def in_line(place: int = number + 1) -> bool:
            return (await here.status(0)).waiting == place

        await until(in_line, "it stands in line")
    queue = await admin.zrange("redsem:{jobs}:queue", 0, -1, withscores=True)
    tickets = [entry[1] for entry in queue]
    assert tickets == sorted(set(tickets))
    assert len(tickets) == 60
    gone = set(range(60)[5::9])
    for number in gone:
        tasks[number].cancel()
    assert await holder.release()
    await asyncio.wait(tasks)
    assert order == [number for number in range(60) if number not in gone]
    await all_free(here)
