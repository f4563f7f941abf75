"""Kept leases when something breaks: other processes wait for no longer than is promised."""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import StartWorker
from tests.harness.clients import Connect, Kind
from tests.harness.inside import kept_by, link_is_lost, remote_of
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer, complaints
from tests.harness.wait import all_free, in_background, is_served, until

LEASE = 3.0
INTERVAL = 1.0


def lingers(kind: Kind, client: Redis, limit: int = 1, name: str = "jobs") -> AnySemaphore:
    return kind(client, name, limit, lease=LEASE, refresh_interval=INTERVAL, linger=INTERVAL)


async def keep(sem: AnySemaphore) -> None:
    """Have *sem* keep a lease."""
    async with sem:
        pass
    assert kept_by(sem)


async def use_on_and_on(sem: AnySemaphore) -> None:
    while True:
        async with sem:
            await asyncio.sleep(0.01)


async def test_a_lost_recall_delays_others_for_a_refresh_interval_at_most(
    kind: Kind, client_a: Redis, client_b: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sem, there = lingers(kind, client_a), kind(client_b, "jobs", 1)
    await keep(sem)
    lost: list[float] = []
    right = remote_of(sem).state.right

    def lose(now: float) -> bool:
        lost.append(now)
        return False

    monkeypatch.setattr(right, "recalled", lose)
    using = in_background(use_on_and_on(sem))
    await asyncio.sleep(0)
    await is_served(there.acquire(timeout=10), INTERVAL)
    assert lost, "no recall was lost: nothing is shown"
    using.cancel()


@pytest.mark.parametrize("command", ["SUBSCRIBE", "HELLO"])
async def test_without_push_messages_no_lease_is_kept(
    kind: Kind, embedded: StartServer, connect: Connect, command: str
) -> None:
    """A recall would not come."""
    server = embedded("--rename-command", command, "")
    sem = lingers(kind, connect(server.url))
    for _ in range(2):
        async with sem:
            assert remote_of(sem).state.route.link.no_push, "messages come: nothing is shown"
        assert not kept_by(sem)


async def test_the_right_lasts_for_as_long_as_it_is_used(kind: Kind, client_a: Redis) -> None:
    """It is asked for again in time; a kept lease goes back when its refresh is due."""
    sem = lingers(kind, client_a)
    await keep(sem)
    right = remote_of(sem).state.right
    ends: list[float] = []
    using = in_background(use_on_and_on(sem))

    async def look() -> bool:
        ends.append(right.until)
        return right.until > time.monotonic() and len(set(ends)) >= 4

    await until(look, "it was renewed three times", within=10)
    assert -float("inf") not in ends
    using.cancel()


async def test_a_lost_connection_ends_the_right(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    sem, there = lingers(kind, proxied), kind(client_b, "jobs", 1)
    await keep(sem)
    proxy.refusing = True
    proxy.drop()
    await link_is_lost(sem)
    assert not kept_by(sem)
    proxy.refusing = False
    async with there.acquire(timeout=5):
        pass


async def test_a_killed_process_keeps_what_it_kept_for_a_lease_at_most(
    kind: Kind, client_a: Redis, start: StartWorker
) -> None:
    worker = await start("keep", kind=kind, lease=LEASE, linger=INTERVAL)
    await worker.heard("kept")
    sem = kind(client_a, "jobs", 1)
    assert await sem.available() == 0
    await worker.kill()
    await is_served(sem.acquire(timeout=10), LEASE)


async def test_a_stopped_process_uses_no_lease_after_its_trust(
    kind: Kind, client_a: Redis, start: StartWorker
) -> None:
    worker = await start("keep", kind=kind, lease=1.0, linger=0.3)
    first = await worker.heard("kept")
    worker.stop()
    sem = kind(client_a, "jobs", 1, lease=1.0)
    permit = await sem.acquire(timeout=10)
    worker.go_on()
    worker.resume()
    await until(sem.locked, "the permit is held")
    await asyncio.sleep(0.3)  # the worker has had the time to use what it kept
    await permit.release()
    second = await worker.heard("entered")
    assert second["token"] > permit.fencing_token > first["token"]


async def test_a_blocked_loop_reuses_nothing_that_has_ended(kind: Kind, client_a: Redis) -> None:
    """Another process may have waited meanwhile, and the recall is not read yet."""
    sem = lingers(kind, client_a)
    await keep(sem)
    [lease] = kept_by(sem)
    time.sleep(INTERVAL + 0.1)  # noqa: ASYNC251 - the fault
    async with sem as permit:
        assert permit.fencing_token > lease.token


PROGRAM = """
import asyncio, os, sys
from redis.asyncio import Redis
import redsem_async

url, kind, name = sys.argv[1:]
redis = Redis.from_url(url)
sem = getattr(redsem_async, kind)(redis, name, 1, lease=9.0, linger=3.0)

async def warm():
    async with sem:
        pass
    if os.fork() == 0:
        asyncio._set_running_loop(None)
        async def child():
            own = getattr(redsem_async, kind)(Redis.from_url(url), name, 1)
            assert await own.available() == 0, "the parent keeps its lease"
            async with own.acquire(timeout=5) as permit:
                print("child", permit.fencing_token, flush=True)
        asyncio.run(child())
        os._exit(0)
    await asyncio.sleep(2)
    async with sem as permit:
        print("parent", permit.fencing_token, flush=True)

asyncio.run(warm())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_uses_nothing_that_its_parent_keeps(
    kind: Kind, server: EmbeddedRedis
) -> None:
    program = [sys.executable, "-c", PROGRAM, server.url, kind.__name__, "jobs"]
    run = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, complaints(run.stderr)) == (0, [])
    said = dict(line.split() for line in run.stdout.splitlines())
    assert int(said["parent"]) > int(said["child"])


async def test_the_program_ends_and_gives_back_what_it_keeps(
    kind: Kind, client_a: Redis, start: StartWorker
) -> None:
    worker = await start("keep", kind=kind, lease=60.0, linger=20.0)
    await worker.heard("kept")
    worker.go_on()
    await worker.heard("entered")
    assert await worker.ended() == 0
    await all_free(kind(client_a, "jobs", 1))
