"""How a semaphore comes and goes with loops, programs and clients, and leaves nothing behind."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

from redsem_async import Permit, PermitLost, SemaphoreClosed, aclose
from redsem_async._redis.dial import on_close
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Client, Connect, Kind, Make, connections, disconnected, hub_of
from tests.harness.holder import Holder
from tests.harness.inside import link_of
from tests.harness.servers import complaints
from tests.harness.wait import (
    all_free,
    queue_up,
    soon,
    takes_at_most,
    tasks_end_soon,
    until,
    waiting,
)

pytestmark = pytest.mark.one_mode


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redsem_async._hub.hub.IDLE", 0.05)


def _no_task_is_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


# -- idle, and back


@pytest.mark.usefixtures("soon_idle")
async def test_an_idle_hub_closes_its_connection_and_comes_back(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """Nothing is left when the work is done, and the next hub has another id."""
    sem = kind(client_a, "now and then", 1)
    hubs: set[str] = set()

    for _ in range(3):
        async with sem as permit:
            hubs.add(hub_of(permit))
            assert await connections(admin) == 1
        await disconnected(admin)
        await until(_no_task_is_left, within=2.0)
    assert len(hubs) == 3


@pytest.mark.usefixtures("soon_idle")
async def test_a_hub_with_something_held_is_not_idle(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """Nor with something waited for, however quiet it is."""
    sem = kind(client_a, "quiet", 1, lease=60.0)
    async with sem:
        waiter = await queue_up(sem)
        await asyncio.sleep(0.3)
        assert await connections(admin) == 1
    await (await soon(waiter, 0.5)).release()


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
    kind: Kind, server: EmbeddedRedis, admin: Redis, client: str, how: str
) -> None:
    """One client per request is what many programs do: it must not leave a connection for 5 s.

    A client that was given a pool leaves closing it to those who gave it.
    """
    async with tasks_end_soon():
        for _ in range(50):
            redis = _clients(server.url)[client]()
            if how == "async with":
                async with redis, kind(redis, "requests", 2):
                    pass
                await redis.connection_pool.aclose()
                continue
            async with kind(redis, "requests", 2):
                pass
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                await (redis.aclose() if how == "aclose" else redis.close())
            await redis.connection_pool.aclose()
        with takes_at_most(2.0):
            await disconnected(admin)


async def test_a_hub_with_work_outlives_its_client_until_it_is_idle(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """What is held stays held, and refreshed; and the client may be used again."""
    sem = kind(client_a, "outlives", 1, lease=1.0)
    for _ in range(2):
        permit = await sem.acquire()
        await client_a.aclose()
        await asyncio.sleep(1.2)
        permit.check()
        waiter = await queue_up(sem)
        assert await permit.release()
        assert await (await soon(waiter)).release()
        with takes_at_most(2.0):
            await disconnected(admin)
    hubs: set[str] = set()
    for _ in range(3):
        permit = await sem.acquire()
        hubs.add(hub_of(permit))
        assert await permit.release()
        assert await connections(admin) == 1
    assert len(hubs) == 1  # as before: idle, it is not closed at once
    await client_a.aclose()
    with takes_at_most(2.0):
        await disconnected(admin)


async def test_a_client_that_is_closed_in_another_loop(
    kind: Kind, admin: Redis, client_a: Redis
) -> None:
    """A pool of threads, a shutdown hook: the hub's own loop has to close its connection."""
    async with kind(client_a, "elsewhere", 1):
        pass
    assert await connections(admin) == 1
    await asyncio.to_thread(asyncio.run, client_a.aclose())
    with takes_at_most(2.0):
        await disconnected(admin)


async def test_a_client_of_a_loop_that_was_closed(kind: Kind, server: EmbeddedRedis) -> None:
    """Its hub cannot be told, and the client is closed all the same."""
    redis = Redis.from_url(server.url)
    sem = kind(redis, "closed", 1)

    async def use() -> None:
        await sem.available()
        await aclose(redis)

    with closing(asyncio.new_event_loop()) as loop:
        await asyncio.to_thread(loop.run_until_complete, use())
    await redis.aclose()


def test_a_client_whose_close_is_noticed_is_freed() -> None:
    """Nothing that outlives it keeps it."""
    redis, hub = Redis(), asyncio.Event()
    on_close(redis.connection_pool, "disconnect", hub.set)
    gone, pool_gone = weakref.ref(redis), weakref.ref(redis.connection_pool)
    del redis
    gc.collect()
    assert (gone(), pool_gone()) == (None, None)


async def test_clients_over_one_pool_share_one_connection(
    kind: Kind, server: EmbeddedRedis, admin: Redis
) -> None:
    """A client object for each request, closed or not, costs neither a connection nor memory."""
    pool, hubs = ConnectionPool.from_url(server.url), set[str]()
    clients = weakref.WeakSet[Redis]()
    for closed in [False, True] * 10:
        clients.add(redis := Redis(connection_pool=pool))
        async with kind(redis, "requests", 2) as permit:
            hubs.add(hub_of(permit))
        if closed:
            await redis.aclose()
        del redis
    assert (len(hubs), await connections(admin)) == (1, 1)
    held = await kind(Redis(connection_pool=pool), "requests", 1).acquire()
    await aclose(Redis(connection_pool=pool))
    assert held.lost
    del held
    gc.collect()
    assert not clients
    async with kind(Redis(connection_pool=pool), "requests", 1):
        pass
    await pool.disconnect(inuse_connections=False)
    assert await connections(admin) == 1
    await pool.disconnect()
    with takes_at_most(2.0):
        await disconnected(admin)


async def test_closing_is_what_the_client_says_it_is(kind: Kind, server: EmbeddedRedis) -> None:
    """An exit stack keeps the method alone; and a client may have one of the user's own."""
    redis, told = Redis.from_url(server.url), list[str]()
    theirs = redis.aclose

    async def aclose() -> None:
        told.append("closed")
        await theirs()

    untyped: Any = redis
    untyped.aclose = aclose
    async with kind(redis, "jobs", 1):
        pass
    closes = redis.aclose
    del redis, untyped
    gc.collect()
    await closes()
    assert told == ["closed"]


async def test_many_clients_of_one_server_are_warned_of_once(
    kind: Kind,
    server: EmbeddedRedis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a connection for some seconds: the log says what to do instead."""
    monkeypatch.setattr("redsem_async._redis.backend._warned_of_many", set[str]())
    clients = [Redis.from_url(server.url) for _ in range(14)]

    def warned() -> list[str]:
        return [
            r.getMessage() for r in caplog.records if getattr(r, "event", "") == "many clients"
        ]

    for number, redis in enumerate(clients, 1):
        async with kind(redis, "many", 2):
            assert len(warned()) == (number > 10)
    assert "one client per process" in warned()[0]
    for redis in clients:
        await redis.aclose()


async def test_work_that_comes_while_the_hub_goes(
    kind: Kind, client_a: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no moment at which a request falls between two hubs."""
    monkeypatch.setattr("redsem_async._hub.hub.IDLE", 0.01)
    sem = kind(client_a, "between", 1)
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


@pytest.mark.usefixtures("soon_idle")
async def test_an_unreachable_server_is_not_tried_for_ever(kind: Kind, nowhere: Redis) -> None:
    """When nothing waits any more, the hub goes too."""
    sem = kind(nowhere, "unreachable", 1)
    with pytest.raises(ConnectionError):
        await sem.acquire(timeout=0.1)
    with pytest.raises(ConnectionError):
        await sem.try_acquire()
    await until(_no_task_is_left, within=2.0)


# -- programs that just end

PROGRAM = """
import asyncio, os, signal, sys
from redis.asyncio import Redis
import redsem_async

kind, url, name = sys.argv[1:]
sem = getattr(redsem_async, kind)(Redis.from_url(url), name, 2, lease=60.0)
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
    "held": """
kept.append(await sem.acquire())
""",
    "waiting": """
kept.extend([await sem.acquire(), await sem.acquire()])
kept.append(asyncio.create_task(sem.acquire()))
await asyncio.sleep(0.05)
""",
    "just asked": """
kept.append(asyncio.create_task(sem.acquire()))
await asyncio.sleep(0)
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
    "exiting": """
kept.append(await sem.acquire())
try:
    sys.exit(0)
finally:
    print("ended")
""",
}


@pytest.mark.parametrize("use", ["acquire", "hold", "wait"])
def test_a_loop_that_is_closed_by_hand_is_closed_in_silence(
    kind: Kind, server_url: str, name: str, use: str
) -> None:
    """Scripts and notebooks do so, and «Event loop is closed» tells them nothing."""
    closing_by_hand = """
import asyncio, sys, redsem_async
redis = redsem_async.from_url(sys.argv[2])
sem = getattr(redsem_async, sys.argv[1])(redis, sys.argv[3], 1, lease=1.0)
async def main():
    held = await sem.acquire()
    if sys.argv[4] == "acquire":
        await held.release()
    elif sys.argv[4] == "wait":
        waiter = asyncio.ensure_future(sem.acquire())
        waiter._log_destroy_pending = False  # asyncio has a word on tasks of the program's own
        while not (await sem.status()).waiting:
            await asyncio.sleep(0.01)
    else:
        left = held.expires_in
        while held.expires_in <= left:  # until it is refreshed
            left = held.expires_in
            await asyncio.sleep(0.01)
    return held
loop = asyncio.new_event_loop()
held = loop.run_until_complete(main())
loop.close()
"""
    arguments = [sys.executable, "-c", closing_by_hand, kind.__name__, server_url, name, use]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=40, check=False)
    assert (run.stdout, complaints(run.stderr), run.returncode) == ("", [], 0)


async def _silently_ends(kind: Kind, main: str, url: str, name: str) -> None:
    """Run the program with *main* as its main, in debug mode, with warnings as errors.

    It ends long before its leases do.
    """
    program = PROGRAM.format(main=textwrap.indent(main, "    "))
    arguments = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    run = await asyncio.to_thread(
        subprocess.run,
        [*arguments, kind.__name__, url, name],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (run.stdout, complaints(run.stderr), run.returncode) == ("ended\n", [], 0)


@pytest.mark.fault(9)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_just_ends_is_silent_and_releases(
    kind: Kind, redis: Redis, server_url: str, name: str, ending: str
) -> None:
    """Nothing has to be closed: no task, connection or warning is left."""
    await _silently_ends(kind, ENDINGS[ending], server_url, name)
    await all_free(kind(redis, name, 2), 1.0)


@pytest.mark.parametrize("first", ["waiter", "hub"])
def test_a_program_that_ends_leaves_no_waiter(
    kind: Kind,
    server_url: str,
    name: str,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other processes would hand permits to it; in whatever order its tasks are cancelled."""
    all_tasks = asyncio.all_tasks

    async def main() -> None:
        sem = kind(Redis.from_url(server_url), name, 1)
        await sem.set_limit(0)
        waiter = asyncio.create_task(sem.acquire(), name="waiter")
        await waiting(sem, 1)
        assert not waiter.done()
        monkeypatch.setattr("asyncio.tasks.all_tasks", in_order)

    def in_order(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        tasks = all_tasks(loop)
        assert {task.get_name() for task in tasks} >= {"waiter", "redsem-hub"}
        return sorted(tasks, key=lambda task: not task.get_name().endswith(first))

    async def look() -> None:
        sem = kind(Redis.from_url(server_url), name, 1)
        assert (await sem.status(0)).waiting == 0
        await sem.delete()

    asyncio.run(main())
    monkeypatch.undo()
    asyncio.run(look())


async def test_a_program_whose_server_is_gone_ends_soon(kind: Kind, server: EmbeddedRedis) -> None:
    main = f"""
kept.append(await sem.acquire())
os.kill({server.pid}, signal.SIGKILL)
await asyncio.sleep(0.05)
"""
    await _silently_ends(kind, main, server.url, "gone")


# -- aclose


async def test_aclose_ends_waiting_and_the_bodies_of_what_is_held(
    make: Make, client: Client
) -> None:
    """Also of permits that no block guards."""
    sem = make(2, lease=60.0)
    holder, other_permit = Holder(sem, elsewhere=sem), await sem.acquire()

    async def closed(_: Permit) -> None:
        waiters = [await queue_up(sem) for _ in range(3)]
        await soon(aclose(client))
        for waiter in waiters:
            with pytest.raises(SemaphoreClosed) as caught:
                await waiter
            assert caught.value.name == sem.name

    with pytest.raises(PermitLost):
        await holder.lose_during(holder.block, closed)
    assert other_permit.lost


async def test_aclose_lets_holders_finish(make: Make, client: Client) -> None:
    """For `drain` seconds, and no longer than they need."""
    sem = make(2, lease=60.0)
    holder = Holder(sem, elsewhere=sem)

    async def work() -> None:
        async with sem as permit:
            await holder.body(permit)
            await asyncio.sleep(0.05)
            permit.check()

    async def closed(_: Permit) -> None:
        holder.may_end.set()
        await soon(aclose(client, drain=30.0))

    permit = await holder.lose_during(work, closed)
    assert not permit.lost


async def test_aclose_waits_no_longer_than_drain(make: Make, client: Client) -> None:
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    start = time.monotonic()
    await aclose(client, drain=0.2)
    assert 0.19 < time.monotonic() - start < 1.0
    assert permit.lost
    await all_free(sem)


async def test_aclose_closes_the_connection(kind: Kind, admin: Redis, client_a: Redis) -> None:
    """And the hub's task ends; the client itself stays open, and works again."""
    sem = kind(client_a, "closed", 1)

    for _ in range(2):
        async with sem:
            pass
        await aclose(client_a)
        await until(_no_task_is_left)
        await disconnected(admin)
    await aclose(client_a)  # twice is fine
    assert await client_a.ping()


async def test_aclose_of_a_client_that_did_nothing(client: Client) -> None:
    """A shutdown hook does not know what was used."""
    await soon(aclose(client))


async def test_aclose_leaves_other_clients_alone(
    make: Make, client: Client, other: Client
) -> None:
    here, there = make(2, lease=60.0), make(2, client=other, lease=60.0)
    async with there as permit:
        ours = await here.acquire()
        await aclose(client)
        assert ours.lost
        permit.check()
        await permit.refresh()
    await all_free(there)


async def test_aclose_with_a_server_that_is_gone_is_bounded(
    kind: Kind, server: EmbeddedRedis, connect: Connect
) -> None:
    """A shutdown must not hang on an outage; the semaphore works again after both."""
    redis = connect(server.url)
    sem = kind(redis, "gone", 1, lease=60.0)
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
