"""How a semaphore comes and goes with loops, programs and clients, and leaves nothing behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

from redsem_async import FairSemaphore, Permit, PermitLost, SemaphoreClosed, aclose
from redsem_async._hub.hub import IDLE
from redsem_async.testing import EmbeddedRedis
from tests.harness.children import forked
from tests.harness.clients import (
    Client,
    Connect,
    Make,
    MakePair,
    connections,
    disconnected,
    hub_of,
)
from tests.harness.holder import Holder
from tests.harness.inside import link_of
from tests.harness.servers import complaints
from tests.harness.wait import all_free, give_back, in_background, queue_up, soon, tasks_end_soon
from tests.worlds.simulated_time import simulated


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redsem_async._hub.hub.IDLE", 0.05)


# -- idle, and back


@pytest.mark.usefixtures("soon_idle")
async def test_an_idle_hub_closes_its_connection_and_comes_back(
    admin: Redis, client_a: Redis
) -> None:
    """Nothing is left when the work is done, and the next hub has another id."""
    sem = FairSemaphore(client_a, "now and then", 1)
    hubs: set[str] = set()
    for _ in range(3):
        async with tasks_end_soon(), sem as permit:
            hubs.add(hub_of(permit))
            assert await connections(admin) == 1
        await disconnected(admin)
    assert len(hubs) == 3


@simulated
async def test_a_hub_with_something_held_is_not_idle(pair: MakePair) -> None:
    """Nor with something waited for, however quiet it is."""
    for sem, held_elsewhere in (pair(1, lease=60.0), pair(1, lease=60.0)[::-1]):
        async with held_elsewhere as permit:
            waiter = await queue_up(sem)
            await asyncio.sleep(3 * IDLE)
            assert link_of(sem) and link_of(held_elsewhere)
        await give_back(await waiter)
        assert not permit.lost


def _clients(url: str) -> dict[str, Callable[[], Redis]]:
    untyped: Any = BlockingConnectionPool
    pool = untyped.from_url
    return {
        "plain": lambda: Redis.from_url(url),
        "one connection": lambda: Redis.from_url(url, single_connection_client=True),
        "own pool": lambda: Redis.from_pool(ConnectionPool.from_url(url)),
        "blocking pool": lambda: Redis.from_pool(pool(url, max_connections=1)),
        "shared pool": lambda: Redis(connection_pool=pool(url)),
    }


@pytest.mark.parametrize("how", ["aclose", "async with", "close"])
@pytest.mark.parametrize("client", [*_clients("")])
async def test_a_hub_goes_with_its_client(
    server: EmbeddedRedis, admin: Redis, client: str, how: str
) -> None:
    """One client per request is what many programs do: it must not leave a connection for 5 s.

    A client that was given a pool leaves closing it to those who gave it.
    """
    async with tasks_end_soon():
        for _ in range(3):
            redis = _clients(server.url)[client]()
            sem = FairSemaphore(redis, "requests", 2)
            async with redis if how == "async with" else nullcontext(), sem:
                pass
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                await (redis.close() if how == "close" else redis.aclose())
            await redis.connection_pool.aclose()
        await disconnected(admin)


async def test_a_hub_with_work_outlives_its_client_until_it_is_idle(
    admin: Redis, client_a: Redis
) -> None:
    """What is held stays held, and refreshed; and the client may be used again."""
    sem = FairSemaphore(client_a, "outlives", 1, lease=30.0)
    hubs: set[str] = set()
    for _ in range(2):
        permit = await sem.acquire()
        await client_a.aclose()
        await permit.refresh()
        await give_back(permit, await queue_up(sem))
        await disconnected(admin)
    for _ in range(3):
        permit = await sem.acquire()
        hubs.add(hub_of(permit))
        await give_back(permit)
        assert await connections(admin) == 1
    assert len(hubs) == 1  # as before: idle, it is not closed at once
    await asyncio.to_thread(asyncio.run, client_a.aclose())  # by a shutdown hook, say
    await disconnected(admin)


async def test_clients_over_one_pool_share_one_connection(
    server: EmbeddedRedis, admin: Redis
) -> None:
    """A client object for each request, closed or not, costs neither a connection nor memory."""
    pool, hubs = ConnectionPool.from_url(server.url), set[str]()
    clients = weakref.WeakSet[Redis]()
    for closed in [False, True] * 3:
        clients.add(redis := Redis(connection_pool=pool))
        async with FairSemaphore(redis, "requests", 2) as permit:
            hubs.add(hub_of(permit))
        if closed:
            await redis.aclose()
        del redis
    assert (len(hubs), await connections(admin)) == (1, 1)
    held = await FairSemaphore(Redis(connection_pool=pool), "requests", 1).acquire()
    await aclose(Redis(connection_pool=pool))
    assert held.lost
    del held
    gc.collect()
    assert not clients
    async with FairSemaphore(Redis(connection_pool=pool), "requests", 1):
        pass
    await pool.disconnect(inuse_connections=False)
    assert await connections(admin) == 1
    await pool.disconnect()
    await disconnected(admin)


async def test_many_clients_of_one_server_are_warned_of_once(
    server: EmbeddedRedis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a connection for some seconds: the log says what to do instead."""
    monkeypatch.setattr("redsem_async._redis.backend._warned_of_many", set[str]())
    clients = [Redis.from_url(server.url) for _ in range(14)]

    def warned() -> list[str]:
        return [
            r.getMessage()
            for r in caplog.records
            if getattr(r, "redsem_event", "") == "many clients"
        ]

    for number, redis in enumerate(clients, 1):
        async with FairSemaphore(redis, "many", 2):
            assert len(warned()) == (number > 10)
    assert "one client per process" in warned()[0]
    for redis in clients:
        await redis.aclose()


async def test_work_that_comes_while_the_hub_goes(
    client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no moment at which a request falls between two hubs."""
    monkeypatch.setattr("redsem_async._hub.hub.IDLE", 0.01)
    sem = FairSemaphore(client_a, "between", 1)
    met = 0
    for turns in range(20):
        async with sem.acquire(timeout=2.0):
            pass
        while link_of(sem) is not None:  # noqa: ASYNC110 - this turn of the loop
            await asyncio.sleep(0)
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        met += "redsem-hub" in [task.get_name() for task in asyncio.all_tasks()]
    assert met, "the hub was gone each time"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_loop_that_a_forked_child_runs_again_has_a_hub_of_its_own(make: Make) -> None:
    sem = make()

    async def hub() -> str:
        async with sem as permit:
            return hub_of(permit)

    with asyncio.Runner() as runner:
        before = runner.run(hub())
        assert forked(lambda: runner.run(hub()) != before)


# -- programs that just end

PROGRAM = """
import asyncio, os, signal, sys
from redis.asyncio import Redis
import redsem_async

url, name = sys.argv[1:]
sem = redsem_async.FairSemaphore(Redis.from_url(url), name, 2, lease=60.0)
kept = []

async def hold_on():
    async with sem:
        await asyncio.sleep(60)

async def main():
{main}

try:
    asyncio.run(main())
except (KeyboardInterrupt, ZeroDivisionError, redsem_async.PermitLost):
    pass
print("ended")
"""

ENDINGS = {
    "idle": """
async with sem:
    pass
""",
    "waiting": """
kept.extend([await sem.acquire(), await sem.acquire()])
kept.append(asyncio.create_task(sem.acquire()))
await asyncio.sleep(0.05)
""",
    "interrupted while tasks hold and wait": """
kept.extend(asyncio.create_task(hold_on()) for _ in range(5))
while await sem.available():
    await asyncio.sleep(0.01)
os.kill(os.getpid(), signal.SIGINT)
await asyncio.sleep(60)
""",
    "failed in a task group": """
try:
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(hold_on())
        while await sem.available():
            await asyncio.sleep(0.01)
        1 / 0
except* ZeroDivisionError:
    pass
""",
    "cleaning up slowly": """
async def slow():
    async with sem as permit:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            permit.check()
            await permit.refresh()
kept.append(asyncio.create_task(slow()))
while await sem.available() == 2:
    await asyncio.sleep(0.01)
""",
}


BY_HAND = """
import asyncio, sys, redsem_async

sem = redsem_async.FairSemaphore(redsem_async.from_url(sys.argv[1]), sys.argv[2], 1, lease=1.0)

async def main():
    held = await sem.acquire()
{main}
    return held

loop = asyncio.new_event_loop()
held = loop.run_until_complete(main())
loop.close()
"""
HELD_BY_HAND = {
    "acquire": "await held.release()",
    "hold": "await asyncio.sleep(0.4)  # until it is refreshed",
    "wait": """
waiter = asyncio.ensure_future(sem.acquire())
waiter._log_destroy_pending = False  # asyncio has a word on tasks of the program's own
while not (await sem.status()).waiting:
    await asyncio.sleep(0.01)
""",
}


@pytest.mark.parametrize("use", HELD_BY_HAND)
def test_a_loop_that_is_closed_by_hand_is_closed_in_silence(
    server_url: str, name: str, use: str
) -> None:
    """Scripts and notebooks do so, and «Event loop is closed» tells them nothing."""
    assert _said(BY_HAND, HELD_BY_HAND[use], server_url, name) == ""


SILENCED = """
import asyncio, os, signal, sys, redsem_async

async def main():
    async with redsem_async.Mutex(redsem_async.from_url(sys.argv[1]), "n", lease=3.0):
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_program_that_ends_with_a_lost_permit_says_nothing_of_its_loop(
    server: EmbeddedRedis,
) -> None:
    arguments = [sys.executable, "-c", SILENCED, server.url, str(server.pid)]
    try:
        run = subprocess.run(arguments, capture_output=True, text=True, timeout=40, check=False)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert run.stderr.splitlines()[-1].startswith("redsem_async.PermitLost: ")
    assert "Exception ignored" not in run.stderr


def _said(program: str, main: str, url: str, name: str, *options: str) -> str:
    """The output of *program*, which complains of nothing."""
    text = program.format(main=textwrap.indent(main, "    "))
    arguments = [sys.executable, *options, "-c", text, url, name]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=40, check=False)
    assert (complaints(run.stderr), run.returncode) == ([], 0)
    return run.stdout


@pytest.mark.fault(9)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_just_ends_is_silent_and_releases(
    redis: Redis, server_url: str, name: str, ending: str
) -> None:
    """Nothing has to be closed: no task, connection or warning is left."""
    strict = ("-X", "dev", "-W", "error")
    said = await asyncio.to_thread(_said, PROGRAM, ENDINGS[ending], server_url, name, *strict)
    assert said == "ended\n"
    await all_free(FairSemaphore(redis, name, 2))  # long before its leases end


# -- aclose


async def test_aclose_ends_waiting_and_the_bodies_of_what_is_held(
    make: Make, client: Client
) -> None:
    """Also of permits that no block guards."""
    sem = make(2, lease=60.0)
    holder, other_permit = Holder(sem, elsewhere=sem), await sem.acquire()

    async def closed(_: Permit) -> None:
        waiter = await queue_up(sem)
        await aclose(client)
        with pytest.raises(SemaphoreClosed) as caught:
            await waiter
        assert caught.value.name == sem.name

    with pytest.raises(PermitLost):
        await holder.lose_during(holder.block, closed)
    assert other_permit.lost


@pytest.mark.parametrize(("drain", "takes"), [(30.0, 5.0), (2.0, 2.0)])
@simulated
async def test_aclose_lets_holders_finish(
    make: Make, client: Client, drain: float, takes: float
) -> None:
    """For `drain` seconds, and no longer than they need."""
    permit = await make(2, lease=60.0).acquire()
    loop = asyncio.get_running_loop()
    loop.call_later(5.0, lambda: in_background(permit.release()))
    await aclose(client, drain=drain)
    assert loop.time() == pytest.approx(takes, abs=0.01)
    assert permit.lost == (drain < 5.0)


async def test_aclose_closes_the_connection(admin: Redis, client_a: Redis) -> None:
    """And the hub's task ends; the client itself stays open, and works again."""
    for _ in range(2):
        async with tasks_end_soon():
            async with FairSemaphore(client_a, "closed", 1):
                pass
            await aclose(client_a)
            await disconnected(admin)
    await aclose(client_a)  # twice is fine
    assert await client_a.ping()


async def test_aclose_with_a_server_that_is_gone_is_bounded(
    server: EmbeddedRedis, connect: Connect
) -> None:
    """A shutdown must not hang on an outage; the semaphore works again after both."""
    redis = connect(server.url)
    sem = FairSemaphore(redis, "gone", 1, lease=60.0)
    permit = await sem.acquire()
    waiter = await queue_up(sem)
    server.kill()
    await soon(aclose(redis), 3.0)
    assert permit.lost
    with pytest.raises(SemaphoreClosed):
        await waiter
    await asyncio.to_thread(server.restart)
    async with sem.acquire(timeout=2):
        pass
