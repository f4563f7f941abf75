"""Keys that are not ours, and a server that is not there."""

import asyncio
from contextlib import suppress

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import BackendError, BackendUnavailable, FairSemaphore
from tests.harness.clients import KEYS, Connect, key_of, scripts_run
from tests.harness.servers import StartServer
from tests.harness.wait import (
    EPSILON,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

PAUSE = 1.0  # seconds at most between two attempts to reach a server


@pytest.mark.fault(37)
@pytest.mark.parametrize("key", KEYS)
async def test_a_key_of_another_type(
    key: str, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Another program uses our key: one error for each caller, and no traffic without end."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=1.0)
    await admin.rpush(key_of(semaphore, key), "not ours")
    for ask in (semaphore.acquire, semaphore.try_acquire, semaphore.status):
        with pytest.raises(BackendError, match="WRONGTYPE") as refused:
            await ask()
        assert not isinstance(refused.value, BackendUnavailable)
        assert isinstance(refused.value.__cause__, errors.ResponseError)
    assert await admin.keys("redsem:*") == [key_of(semaphore, key).encode()], "it wrote something"
    await admin.delete(key_of(semaphore, key))
    # And while it is held and waited for, by processes that are known.
    there = FairSemaphore(client_b, "jobs", 1, lease=1.0, refresh_interval=0.2)
    holder = await there.acquire(timeout=1)
    waiter = await waits_in_queue(semaphore)
    # At once, or a refresh may write in between.
    replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'not ours')"
    await admin.eval(replace, 1, key_of(semaphore, key))
    before = await scripts_run(admin)
    with suppress(BackendError):
        await holder.release()
    with takes_at_most(1.0 + EPSILON), pytest.raises(BackendError, match="WRONGTYPE"):
        await waiter
    assert await scripts_run(admin) - before < 30, "traffic without end"
    await asyncio.sleep(0.2)
    quiet = await scripts_run(admin)
    await asyncio.sleep(0.4)
    assert await scripts_run(admin) - quiet <= 1, "traffic without end"
    await admin.delete(key_of(semaphore, key))
    # whatever could not be given back has ended
    await is_served(semaphore.acquire(timeout=5), 1.0 + EPSILON)


@pytest.mark.fault(32)
async def test_no_server_at_start(embedded: StartServer, connect: Connect) -> None:
    """Which server it was, within the caller's timeout; never a plain *full*; and no more."""
    server = embedded()
    server.kill()
    semaphore = FairSemaphore(connect(server.url), "jobs", 1, lease=1.0)
    for ask, within in (
        (semaphore.acquire(timeout=0.3), 0.3),
        (semaphore.try_acquire(), 0.2),
        (semaphore.acquire(timeout=0), 0.2),
        (semaphore.acquire(), 1.0 + EPSILON),  # without a deadline: for a lease
        (semaphore.status(), 2.0),
    ):
        with takes_at_most(within), pytest.raises(BackendUnavailable) as caught:
            await ask
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        assert isinstance(caught.value, ConnectionError)
        assert isinstance(caught.value.__cause__, errors.ConnectionError)

    def no_hub() -> bool:
        return all(task.get_name() != "redsem-hub" for task in asyncio.all_tasks())

    await until(no_hub, "with no waiter left, there are no further attempts", PAUSE + EPSILON)
    acquiring = in_background(semaphore.acquire(timeout=20))
    await asyncio.to_thread(server.restart)
    await is_served(acquiring, PAUSE + EPSILON)
