"""A script is called by its digest, and sent as text only to a server that does not have it."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Permit
from tests.harness.inside import state_of
from tests.harness.proxy import Proxy
from tests.harness.wait import give_back, in_background, until


def names(proxy: Proxy, operation: str) -> list[bytes]:
    """How each call of *operation* was written."""
    return [sent.arguments[0] for sent in proxy.operations(operation)]


async def three_in_flight(
    semaphore: FairSemaphore, proxy: Proxy
) -> tuple[list[asyncio.Task[Permit]], asyncio.Event]:
    """Requests in as many commands, which go on once the event is set."""
    go_on = proxy.stop("acquire")
    asked: list[asyncio.Task[Permit]] = []
    for _ in range(3):
        asked.append(in_background(semaphore.acquire(timeout=5)))
        await until(lambda: len(asked) == len(state_of(semaphore).acquires_in_flight))
    return asked, go_on


@pytest.mark.fault(29, 32)
@pytest.mark.parametrize("refused", [1, 3])
@pytest.mark.parametrize(
    "error", ["NOSCRIPT No script.", "BUSY A script.", "TRYAGAIN A slot.", "READONLY A replica."]
)
async def test_refused_commands_keep_the_order_of_the_calls(
    proxied: Redis, proxy: Proxy, error: str, refused: int
) -> None:
    """Each would step in front of the one before, and the oldest caller would be the last."""
    semaphore = FairSemaphore(proxied, "jobs", 3)
    await semaphore.reap()
    asked, go_on = await three_in_flight(semaphore, proxy)
    faults = [proxy.answer("acquire", error) for _ in range(refused)]
    go_on.set()
    permits = await asyncio.gather(*asked)
    assert all(fault.struck.is_set() for fault in faults)
    assert permits == sorted(permits, key=lambda permit: permit.fencing_token)
    await give_back(*permits)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_released_twice_in_one_turn(
    client_a: Redis, client_b: Redis, elsewhere: bool
) -> None:
    """By its id, in one call of the script: one of the two says that it was held."""
    semaphore = FairSemaphore(client_b if elsewhere else client_a, "jobs", 2)
    await semaphore.reap()
    identity = await (await FairSemaphore(client_a, "jobs", 2).acquire()).detach(5.0)
    released = await asyncio.gather(*(semaphore.release(identity) for _ in range(2)))
    assert sorted(released) == [False, True]
