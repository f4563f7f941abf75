"""Under load the limit holds, and no command or write becomes as large as a program asks for."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from redsem_async._hub.commands import MAX_REFRESHES
from redsem_async._hub.pipeline import MAX_WINDOW
from redsem_async._hub.state import MAX_BATCH, MAX_KEYED
from tests.harness.children import StartWorker
from tests.harness.memory import Distant
from tests.harness.wait import all_free, give_back
from tests.worlds.simulated_time import simulated

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
    """Tokens that are not above those of all permits that ended before they were asked for."""
    leaving = iter(sorted((left, token) for _, _, left, token, _ in stays))
    highest = 0
    left, token = next(leaving)
    for asked, _, _, own, _ in sorted(stays):
        while left < asked:
            highest = max(highest, token)
            left, token = next(leaving)
        if own <= highest:
            yield highest, own


async def test_under_load_the_limit_holds(
    start: StartWorker, client_a: Redis, admin: Redis
) -> None:
    """Three processes of 10 tasks: tokens are unique and growing, and all is free at the end."""
    limit = 7
    workers = [
        await start(
            "hammer",
            kind="FairSemaphore",
            name="jobs",
            limit=limit,
            lease=5.0,
            seconds=1.0,
            tasks=10,
            weights=True,
            cancelled=0.2,
            seed=seed,
        )
        for seed in range(3)
    ]
    for worker in workers:
        await worker.heard("ready", within=40)
    for worker in workers:
        worker.go_on()
    said = await asyncio.gather(*(worker.heard("done", within=40) for worker in workers))
    for worker in workers:
        assert await worker.ended() == 0
    stays: list[Stay] = [tuple(stay) for each in said for stay in each["stays"]]
    assert all(each["stays"] for each in said), "a process was never served"
    assert sum(each["cancelled"] for each in said) > 10
    assert len(stays) > 150
    assert len({stay[3] for stay in stays}) == len(stays), "a token was given twice"
    # Were the limit never reached, this would prove nothing.
    assert limit - 1 <= most_inside(stays) <= limit
    assert not list(regressions(stays)), "a later grant has a lower token"
    await all_free(FairSemaphore(client_a, "jobs", limit), within=0.5)
    for key in await admin.keys("*"):
        assert await admin.ttl(key) > 0, key


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
