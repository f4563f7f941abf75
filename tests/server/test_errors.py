"""Keys that are not ours, and a server that is not there."""

import asyncio
from contextlib import suppress

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import BackendError, BackendUnavailable
from redsem_async._core.lease import liveness_timeout, reply_timeout
from tests.harness.clients import EACH_KEY, Connect, Kind, key_of, scripts_run
from tests.harness.inside import remote_of
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.wait import (
    EPSILON,
    cancelled,
    in_background,
    is_served,
    takes_at_most,
    until,
    waits_in_queue,
)

pytestmark = pytest.mark.one_mode

PAUSE = 1.0  # seconds at most between two attempts to reach a server


# -- keys of another type


@pytest.mark.fault(37)
@pytest.mark.parametrize(("kind", "key"), EACH_KEY)
async def test_a_key_of_another_type(kind: Kind, key: str, client_a: Redis, admin: Redis) -> None:
    """Another program uses our key: an error, for each caller, once."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)
    await admin.rpush(key_of(semaphore, key), "not ours")
    with takes_at_most(0.5):
        for ask in (semaphore.acquire, semaphore.try_acquire, semaphore.status):
            with pytest.raises(BackendError, match="WRONGTYPE") as refused:
                await ask()
            assert not isinstance(refused.value, BackendUnavailable)
            assert isinstance(refused.value.__cause__, errors.ResponseError)
    assert await admin.keys("redsem:*") == [key_of(semaphore, key).encode()], "it wrote something"
    before = await scripts_run(admin)
    await asyncio.sleep(0.5)
    assert await scripts_run(admin) - before <= 1, "it goes on asking"
    await admin.delete(key_of(semaphore, key))
    async with semaphore.acquire(timeout=1):
        pass


@pytest.mark.fault(37)
@pytest.mark.parametrize(("kind", "key"), EACH_KEY)
async def test_a_key_turns_into_another_type_meanwhile(
    kind: Kind, key: str, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Holders and waiters get the error in time, and no loop makes traffic of it."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)
    holder = await kind(client_b, "jobs", 1, lease=1.0, refresh_interval=0.2).acquire()
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


# -- a server that is not there


def hubs() -> list["asyncio.Task[object]"]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "redsem-hub"]


@pytest.mark.fault(32)
async def test_no_server_at_start(kind: Kind, embedded: StartServer, connect: Connect) -> None:
    """Which server it was, within the caller's timeout; never a plain *full*; and no more."""
    server = embedded()
    server.kill()
    semaphore = kind(connect(server.url), "jobs", 1, lease=1.0)
    with takes_at_most(0.3), pytest.raises(BackendUnavailable) as caught:
        await semaphore.acquire(timeout=0.3)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, errors.ConnectionError)
    with takes_at_most(0.2), pytest.raises(BackendUnavailable, match=str(server.port)):
        await semaphore.try_acquire()
    with takes_at_most(0.2), pytest.raises(BackendUnavailable):
        await semaphore.acquire(timeout=0)
    with takes_at_most(1.0 + EPSILON), pytest.raises(BackendUnavailable):
        await semaphore.acquire()  # without a deadline: for a lease
    with takes_at_most(2.0), pytest.raises(BackendUnavailable):
        await semaphore.status()
    with takes_at_most(PAUSE + EPSILON):
        await until(lambda: not hubs(), "with no waiter left, there are no further attempts")
    acquiring = in_background(semaphore.acquire(timeout=20))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.restart)
    await is_served(acquiring, PAUSE + EPSILON)


async def test_a_waiter_that_has_left_keeps_no_hub_in_an_outage(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """It is to be abandoned: but a server that is back late has dropped it."""
    semaphore = kind(proxied, "jobs", 1, lease=1.0)
    await semaphore.set_limit(0)
    waiter = await waits_in_queue(semaphore)
    remote = remote_of(semaphore)
    [hub] = hubs()
    proxy.refusing = True
    proxy.half_open()
    await cancelled(waiter)
    await until(lambda: bool(proxy.operations("abandon")), "it says so, in vain")
    with takes_at_most(reply_timeout(1.0) + 1.3 * liveness_timeout(1.0)):
        await asyncio.wait([hub], timeout=10)
    assert hub.done()
    assert not remote.active
