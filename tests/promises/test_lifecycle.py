"""What a process costs the server, and how it comes and goes.

One connection for everything, few commands, nothing to close and nothing left behind.
"""

import asyncio
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import BlockingConnectionPool, Redis

from redsem_async import (
    AnySemaphore,
    FairSemaphore,
    Permit,
    PermitLost,
    Semaphore,
    SemaphoreClosed,
    aclose,
    connect,
    from_url,
)
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Client, Make
from tests.harness.servers import StartServer, complaints
from tests.harness.wait import all_free, cancelled, queue_up, soon, until, waiting

pytestmark = pytest.mark.one_mode


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server that nobody else counts on, or is counted at."""
    return embedded()


@pytest.fixture
async def admin(server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """Looks on, over one connection."""
    async with Redis.from_url(server.url, single_connection_client=True) as client:
        yield client


@pytest.fixture
async def counted(server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """The client whose traffic is counted."""
    async with Redis.from_url(server.url) as client:
        yield client


async def _connections(admin: Redis) -> int:
    """Connections to the server, but for the one that asks."""
    clients: list[dict[str, str]] = await admin.client_list()
    own = str(await admin.client_id())
    return sum(client["id"] != own for client in clients)


async def _no_connections(admin: Redis) -> None:
    """Wait until the server has noticed that all are closed."""

    async def none_is_left() -> bool:
        return await _connections(admin) == 0

    await until(none_is_left)


async def _script_calls(admin: Redis) -> int:
    """Scripts that the server has run so far."""
    stats: dict[str, Any] = await admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


# -- one connection, few commands


async def test_one_connection_for_everything(admin: Redis, counted: Redis) -> None:
    """However many semaphores, waiters and permits: a fleet of workers must not exhaust Redis."""
    sems: list[AnySemaphore] = [
        kind(counted, f"{kind.__name__} {number}", 2)
        for kind in (Semaphore, FairSemaphore)
        for number in range(10)
    ]
    held = await asyncio.gather(*(sem.acquire() for sem in sems for _ in range(2)))
    waiters = [asyncio.create_task(sem.acquire()) for sem in sems for _ in range(5)]
    for sem in sems:
        await sem.status()
    assert await _connections(admin) == 1
    await asyncio.gather(*(permit.refresh() for permit in held))
    await asyncio.gather(*(permit.release() for permit in held))

    async def finish(waiter: asyncio.Task[Permit]) -> None:
        await (await waiter).release()

    await soon(asyncio.gather(*map(finish, waiters)))
    assert await _connections(admin) == 1


async def test_500_waiters_for_three_seconds_cost_next_to_nothing(
    kind: type[AnySemaphore], admin: Redis, counted: Redis
) -> None:
    """Nothing polls: fewer than 15 script calls, from the first to the last."""
    sem = kind(counted, "crowded", 1, lease=60.0)
    async with sem:
        before = await _script_calls(admin)
        waiters = [asyncio.create_task(sem.acquire()) for _ in range(500)]
        await asyncio.sleep(3)
        calls = await _script_calls(admin) - before
        assert not any(waiter.done() for waiter in waiters)
        assert calls < 15
        assert await _connections(admin) == 1
        await cancelled(*waiters)
    await all_free(sem)


async def test_10_000_permits_are_refreshed_in_a_handful_of_commands(
    kind: type[AnySemaphore], admin: Redis, counted: Redis
) -> None:
    """Each has its own refresh task, but they travel together."""
    sem = kind(counted, "held by many", 10_000, lease=6.0)
    permits = await asyncio.gather(*(sem.acquire() for _ in range(10_000)))
    before, start = await _script_calls(admin), time.monotonic()
    await asyncio.sleep(3.3)
    calls, took = await _script_calls(admin) - before, time.monotonic() - start
    assert not any(permit.lost for permit in permits)
    assert 2 <= calls / took < 20
    assert await sem.available() == 0
    assert all(await asyncio.gather(*(permit.release() for permit in permits)))
    assert await sem.available() == 10_000


async def test_a_held_permit_by_itself_costs_three_refreshes_a_lease(
    kind: type[AnySemaphore], admin: Redis, counted: Redis
) -> None:
    """And nothing beside them."""
    sem = kind(counted, "held", 1, lease=0.9)
    async with sem:
        before = await _script_calls(admin)
        await asyncio.sleep(1.8)
        assert 5 <= await _script_calls(admin) - before <= 9


@pytest.mark.fault(20)
async def test_1000_acquires_at_once_on_a_default_client(
    kind: type[AnySemaphore], server: EmbeddedRedis, admin: Redis
) -> None:
    """Its pool raises at 100 connections."""
    async with Redis(host="127.0.0.1", port=server.port) as redis:
        sem = kind(redis, "thousand", 1_000)
        permits = await asyncio.gather(*(sem.acquire() for _ in range(1_000)))
        assert await _connections(admin) == 1
        await asyncio.gather(*(permit.release() for permit in permits))
        narrow = kind(redis, "narrow", 10)

        async def work() -> None:
            async with narrow:
                await asyncio.sleep(0)

        await soon(asyncio.gather(*(work() for _ in range(1_000))), 10)
        assert await _connections(admin) == 1


# -- idle, and back


async def test_an_idle_hub_closes_its_connection_and_comes_back(
    kind: type[AnySemaphore], admin: Redis, counted: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left when the work is done, and the next one begins as somebody new."""
    monkeypatch.setattr("redsem_async._hub.reconnect.IDLE", 0.05)
    sem = kind(counted, "now and then", 1)
    hubs: set[str] = set()

    async def nobody_is_connected() -> bool:
        return await _connections(admin) == 0

    for _ in range(3):
        async with sem as permit:
            hubs.add(permit.id.partition(".")[0])
            assert await _connections(admin) == 1
        await until(nobody_is_connected, within=2.0)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, within=2.0)
    assert len(hubs) == 3


async def test_a_hub_with_something_held_is_not_idle(
    kind: type[AnySemaphore], admin: Redis, counted: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder and a waiter hear what concerns them, however quiet it is."""
    monkeypatch.setattr("redsem_async._hub.reconnect.IDLE", 0.05)
    sem = kind(counted, "quiet", 1, lease=60.0)
    async with sem:
        waiter = await queue_up(sem)
        await asyncio.sleep(0.3)
        assert await _connections(admin) == 1
    await (await soon(waiter, 0.5)).release()


async def test_work_that_comes_while_the_hub_goes(
    kind: type[AnySemaphore], counted: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes: there is no moment at which a request falls between two hubs."""
    monkeypatch.setattr("redsem_async._hub.reconnect.IDLE", 0.01)
    sem = kind(counted, "between", 1)
    for number in range(60):
        async with sem.acquire(timeout=2.0):
            pass
        await asyncio.sleep(0.008 + 0.0002 * number)


async def test_an_unreachable_server_is_not_tried_for_ever(
    kind: type[AnySemaphore], nowhere: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits any more: the hub goes too."""
    monkeypatch.setattr("redsem_async._hub.reconnect.IDLE", 0.05)
    sem = kind(nowhere, "unreachable", 1)
    with pytest.raises(ConnectionError):
        await sem.acquire(timeout=0.1)
    with pytest.raises(ConnectionError):
        await sem.try_acquire()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, within=2.0)


# -- loops


def test_one_client_in_several_loops_in_turn(
    kind: type[AnySemaphore], server_url: str, name: str
) -> None:
    """Each `asyncio.run` of a script, each test of a suite."""
    sem = kind(Redis.from_url(server_url), name, 1)
    tokens: list[int] = []

    async def work() -> None:
        async with sem as permit:
            tokens.append(permit.fencing_token)
            assert await sem.available() == 0

    for _ in range(3):
        asyncio.run(work())
    assert tokens == sorted(set(tokens))


def test_one_client_in_several_loops_at_once(
    kind: type[AnySemaphore], server_url: str, name: str
) -> None:
    """A loop in each thread: the limit holds among them."""
    sem = kind(Redis.from_url(server_url), name, 2)
    inside: list[int] = []
    most: list[int] = []

    async def work() -> None:
        for _ in range(30):
            async with sem:
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(most) == 120
    assert max(most) <= 2


def test_a_permit_belongs_to_one_loop(
    kind: type[AnySemaphore], server_url: str, name: str
) -> None:
    """What it would wait for elsewhere never comes there."""
    sem = kind(Redis.from_url(server_url), name, 1)
    with asyncio.Runner() as own, asyncio.Runner() as foreign:
        acquire: Any = sem.acquire()
        permit: Permit = own.run(acquire)

        async def enter() -> None:
            async with permit:
                pytest.fail("entered in another loop")

        for use in (permit.release, permit.refresh, permit.wait_lost, permit.detach, enter):
            with pytest.raises(RuntimeError, match="loop"):
                foreign.run(use())
        assert own.run(permit.release()) is True


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

{main}

try:
    asyncio.run(main())
except (KeyboardInterrupt, ZeroDivisionError, redsem_async.PermitLost):
    pass
print("ended")
"""

ENDINGS = {
    "idle": """
async def main():
    async with sem:
        pass
""",
    "held": """
async def main():
    kept.append(await sem.acquire())
""",
    "held and refreshed": """
async def main():
    short = type(sem)(Redis.from_url(url), name, 2, lease=0.3)
    kept.append(await short.acquire())
    await asyncio.sleep(0.3)
""",
    "in a block of a task": """
async def main():
    kept.append(asyncio.create_task(hold_on()))
    while await sem.available() == 2:
        await asyncio.sleep(0.01)
""",
    "waiting": """
async def main():
    kept.extend([await sem.acquire(), await sem.acquire()])
    kept.append(asyncio.create_task(sem.acquire()))
    await asyncio.sleep(0.05)
""",
    "just asked": """
async def main():
    kept.append(asyncio.create_task(sem.acquire()))
    await asyncio.sleep(0)
""",
    "interrupted in a block": """
async def main():
    async with sem:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
""",
    "interrupted while tasks hold and wait": """
async def main():
    kept.extend(asyncio.create_task(hold_on()) for _ in range(5))
    while await sem.available():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
""",
    "failed in a block": """
async def main():
    async with sem:
        1 / 0
""",
    "failed beside a held permit": """
async def main():
    kept.append(await sem.acquire())
    1 / 0
""",
    "failed in a task group": """
async def main():
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
async def main():
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
async def main():
    kept.append(await sem.acquire())
    try:
        sys.exit(0)
    finally:
        print("ended")
""",
}


@pytest.mark.fault(9)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_program_that_just_ends_is_silent_and_releases(
    kind: type[AnySemaphore], redis: Redis, server_url: str, name: str, ending: str
) -> None:
    """Nobody has to close anything: no task, connection or warning is left."""
    arguments = [sys.executable, "-X", "dev", "-W", "error", "-c"]
    program = PROGRAM.format(main=ENDINGS[ending])
    start = time.monotonic()
    run = await asyncio.to_thread(
        subprocess.run,
        [*arguments, program, kind.__name__, server_url, name],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    took = time.monotonic() - start
    assert complaints(run.stderr) == []
    assert run.stdout == "ended\n"
    assert run.returncode == 0
    assert took < 8.0
    await all_free(kind(redis, name, 2), 1.0)


@pytest.mark.parametrize("first", ["waiter", "hub"])
def test_a_program_that_ends_says_that_nobody_waits(
    kind: type[AnySemaphore],
    server_url: str,
    name: str,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or others would hand permits to it; in whatever order its tasks are cancelled."""
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
        await sem.clear()

    asyncio.run(main())
    monkeypatch.undo()
    asyncio.run(look())


async def test_a_program_whose_server_is_gone_ends_soon(
    kind: type[AnySemaphore], server: EmbeddedRedis
) -> None:
    """There is nobody to give anything back to: its end is bounded, and silent."""
    main = f"""
async def main():
    kept.append(await sem.acquire())
    os.kill({server.pid}, signal.SIGKILL)
    await asyncio.sleep(0.05)
"""
    run = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM.format(main=main)),
            *(kind.__name__, server.url, "gone"),
        ],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert (run.stdout, complaints(run.stderr)) == ("ended\n", [])


# -- aclose


async def test_aclose_ends_waiting(make: Make, client: Client) -> None:
    """Who waits is told, and leaves nothing."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    waiters = [await queue_up(sem) for _ in range(3)]
    await soon(aclose(client))
    for waiter in waiters:
        with pytest.raises(SemaphoreClosed) as caught:
            await waiter
        assert caught.value.name == sem.name
    assert permit.lost
    await all_free(make(1))


async def test_aclose_cancels_the_bodies_of_what_is_held(make: Make, client: Client) -> None:
    """They are not guarded any more."""
    sem = make(2, lease=60.0)
    entered = asyncio.Event()

    async def work() -> None:
        async with sem:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await soon(entered.wait())
    await soon(aclose(client))
    with pytest.raises(PermitLost):
        await soon(task)
    await all_free(sem)


async def test_aclose_lets_holders_finish(make: Make, client: Client) -> None:
    """For `drain` seconds, and no longer than they need."""
    sem = make(2, lease=60.0)
    closing = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        async with sem as permit:
            await closing.wait()
            await asyncio.sleep(0.05)
            permit.check()
            ended.append("work")

    task = asyncio.create_task(work())
    await until(lambda: _one_is_held(sem))
    closing.set()
    await soon(aclose(client, drain=30.0))
    assert ended == ["work"]
    await task
    await all_free(sem)


async def _one_is_held(sem: AnySemaphore) -> bool:
    return (await sem.status()).held == 1


async def test_aclose_waits_no_longer_than_drain(make: Make, client: Client) -> None:
    """Who does not end by then is ended."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    start = time.monotonic()
    await aclose(client, drain=0.2)
    assert 0.19 < time.monotonic() - start < 1.0
    assert permit.lost
    await all_free(sem)


async def test_aclose_closes_the_connection(
    kind: type[AnySemaphore], admin: Redis, counted: Redis
) -> None:
    """And the hub's task ends; the client itself stays open, and works again."""
    sem = kind(counted, "closed", 1)
    for _ in range(2):
        async with sem:
            pass
        await aclose(counted)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        await _no_connections(admin)
    await aclose(counted)  # twice is fine
    assert await counted.ping()


async def test_aclose_of_a_client_that_did_nothing(client: Client) -> None:
    """A shutdown hook does not know what was used."""
    await soon(aclose(client))


async def test_aclose_leaves_other_clients_alone(
    make: Make, client: Client, other: Client
) -> None:
    """They are other processes' business."""
    here, there = make(2, lease=60.0), make(2, client=other, lease=60.0)
    async with there as permit:
        ours = await here.acquire()
        await aclose(client)
        assert ours.lost
        permit.check()
        await permit.refresh()
    await all_free(there)


async def test_aclose_with_a_server_that_is_gone_is_bounded(
    kind: type[AnySemaphore], server: EmbeddedRedis
) -> None:
    """A shutdown must not hang on an outage."""
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "gone", 1, lease=60.0)
        permit = await sem.acquire()
        server.kill()
        await soon(aclose(redis), 5.0)
        assert permit.lost


async def test_connect_closes_everything(
    kind: type[AnySemaphore], server: EmbeddedRedis, admin: Redis
) -> None:
    """For those who like a block."""
    async with connect(server.url) as redis:
        assert await redis.ping()
        sem = kind(redis, "connected", 1)
        permit = await sem.acquire()
        assert await _connections(admin) >= 1
    assert permit.lost
    await _no_connections(admin)
    assert await admin.zcard("redsem:{connected}:holders") == 0


async def test_from_url_takes_options(
    server_url: str, kind: type[AnySemaphore], name: str
) -> None:
    """A client like any other, whose options win over what was chosen for it."""
    async with from_url(server_url, decode_responses=True, client_name="mine") as redis:
        assert await redis.client_getname() == "mine"
        async with kind(redis, name, 1) as permit:
            assert await kind(redis, name, 1).available() == 0
            permit.check()


# -- any client of redis.asyncio

Setup = Callable[[str], Redis]


def _default(url: str) -> Redis:
    address = urlsplit(url)
    return Redis(
        host=address.hostname or "localhost", port=address.port or 6379, password=address.password
    )


CLIENTS: dict[str, Setup] = {
    "default": _default,
    "from_url": Redis.from_url,
    "ours": from_url,
    "decoding": lambda url: Redis.from_url(url, decode_responses=True),
    "RESP2": lambda url: Redis.from_url(url, protocol=2),
    "RESP2, decoding": lambda url: Redis.from_url(url, protocol=2, decode_responses=True),
    "RESP3": lambda url: Redis.from_url(url, protocol=3),
    "RESP3, decoding": lambda url: Redis.from_url(url, protocol=3, decode_responses=True),
    "single connection": lambda url: Redis.from_url(url, single_connection_client=True),
    "pool of one": lambda url: Redis.from_url(url, max_connections=1),
    "blocking pool of one": lambda url: Redis.from_pool(
        BlockingConnectionPool.from_url(url, max_connections=1, timeout=1)
    ),
    "short socket timeout": lambda url: Redis.from_url(
        url, socket_timeout=0.05, socket_connect_timeout=2
    ),
    "health checks": lambda url: Redis.from_url(url, health_check_interval=1),
    "latin-1": lambda url: Redis.from_url(url, encoding="latin-1", decode_responses=True),
    "named": lambda url: Redis.from_url(url, client_name="somebody"),
}


async def _works(kind: type[AnySemaphore], redis: Redis, other: Redis, name: str) -> None:
    """The whole of it: grants, messages, refreshes, loss, and the user's own commands beside."""
    here = kind(redis, name, 1, lease=1.0, label="größe")
    there = kind(other, name, 1, lease=1.0)
    async with here as permit:
        assert await there.try_acquire() is None
        waiter = await queue_up(there)
        await permit.refresh()
        assert (await here.status()).holders[0].client.label == "größe"
        assert await redis.ping()
    async with await soon(waiter, 0.5):  # told by a message
        waiter = await queue_up(here)
    permit = await soon(waiter, 0.5)
    assert await there.release(permit.id) is True
    await soon(permit.wait_lost(), 0.5)
    assert await redis.echo("still in order") in ("still in order", b"still in order")
    await all_free(here)


@pytest.mark.parametrize("client", CLIENTS)
async def test_any_client_will_do(
    kind: type[AnySemaphore], server_url: str, other_redis: Redis, name: str, client: str
) -> None:
    """As the user has it, and without changing what the user does with it."""
    async with CLIENTS[client](server_url) as redis:
        await _works(kind, redis, other_redis, name)


@pytest.mark.fault(21)
async def test_a_pool_that_is_used_up_is_not_needed(
    kind: type[AnySemaphore], server_url: str, other_redis: Redis, name: str
) -> None:
    """The user's blocking commands hold its connections: the semaphores have their own."""
    async with Redis.from_url(server_url, max_connections=1) as redis:
        blocking = asyncio.ensure_future(redis.blpop([f"{name} list"], timeout=5))
        await asyncio.sleep(0.05)
        sem = kind(redis, name, 1)
        async with sem.acquire(timeout=1.0):
            assert not blocking.done()
        await other_redis.rpush(f"{name} list", "end")
        await soon(blocking)


async def test_a_unix_socket_will_do(
    kind: type[AnySemaphore], server: EmbeddedRedis, counted: Redis
) -> None:
    """And meets the others on the same server."""
    async with Redis.from_url(server.unix_url) as redis:
        await _works(kind, redis, counted, "unix")


async def test_a_password_and_another_database_will_do(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """Both come from the client's settings."""
    server = embedded("--requirepass", "hunter2")
    url = f"redis://:hunter2@127.0.0.1:{server.port}"
    async with Redis.from_url(f"{url}/3") as redis, Redis.from_url(f"{url}/3") as other:
        await _works(kind, redis, other, "third")
        async with kind(redis, "third", 1), Redis.from_url(f"{url}/0") as elsewhere:
            assert await kind(elsewhere, "third", 1).exists() is False


async def test_a_refused_subscription_is_not_fatal(
    kind: type[AnySemaphore], server: EmbeddedRedis, admin: Redis, counted: Redis
) -> None:
    """Denied by ACL: heartbeats find the grants, later."""
    await admin.acl_setuser(
        "deaf",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        reset_channels=True,
        commands=["+@all"],
    )
    async with Redis.from_url(f"redis://deaf:secret@127.0.0.1:{server.port}") as redis:
        here, there = kind(redis, "deaf", 1, lease=3.0), kind(counted, "deaf", 1, lease=3.0)
        async with there:
            waiter = await queue_up(here)
        await (await soon(waiter, 3.0)).release()
        async with here:
            assert await there.try_acquire() is None


async def test_tls_will_do(
    kind: type[AnySemaphore], server: EmbeddedRedis, counted: Redis
) -> None:
    """Certificates and all that is said about them come from the client's settings."""
    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with authority.cert_pem.tempfile() as trusted:
        async with _tls_in_front_of(server, context) as port:
            url = f"rediss://localhost:{port}"
            async with Redis.from_url(url, ssl_ca_certs=trusted) as redis:
                await _works(kind, redis, counted, "tls")
                await aclose(redis)
            async with Redis.from_url(url) as distrustful:
                with pytest.raises(ConnectionError):
                    await kind(distrustful, "tls", 1).acquire(timeout=0.3)
                await aclose(distrustful)


@asynccontextmanager
async def _tls_in_front_of(server: EmbeddedRedis, context: ssl.SSLContext) -> AsyncGenerator[int]:
    """A port that speaks TLS for a server that was not built with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", server.port)
        for source, sink in ((reader, inner[1]), (inner[0], writer)):
            tasks.add(asyncio.create_task(pump(source, sink)))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await cancelled(*tasks)
