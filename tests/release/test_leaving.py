"""Leaving a block waits for nothing: the hub sends the release, again where it has to."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Mutex, SemaphoreError
from redsem_async.testing import MemoryBackend
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Client, Make, MakePair
from tests.harness.inside import link_of
from tests.harness.memory import Distant
from tests.harness.proxy import Proxy
from tests.harness.wait import all_free, soon, takes_at_most, until
from tests.worlds.simulated_time import simulated

NO_ERROR = (None, None, None)


def run_to_its_end(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run *coroutine*, which must not be suspended."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


@pytest.mark.parametrize("form", ["semaphore", "mutex", "acquisition", "permit"])
async def test_leaving_is_never_suspended(
    make: Make, client: Client, name: str, form: str
) -> None:
    sem = Mutex(client, name) if form == "mutex" else make(1)
    block: Any = sem
    if form in ("acquisition", "permit"):
        block = sem.acquire(timeout=2)
    if form == "permit":
        block = await block
    await block.__aenter__()
    run_to_its_end(block.__aexit__(*NO_ERROR))
    await all_free(sem)


def writes_of(sem: AnySemaphore, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of each write, from now on."""
    writes: list[list[str]] = []
    link = link_of(sem)
    assert link is not None
    send = link.send

    def count(commands: Any, now: float) -> None:
        writes.append([command.script for command in commands])
        send(commands, now)

    monkeypatch.setattr(link, "send", count)
    return writes


async def test_the_release_and_the_next_acquire_are_one_write(
    proxied: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sem = FairSemaphore(proxied, "jobs", 1)
    async with sem:
        pass
    await all_free(sem)
    writes = writes_of(sem, monkeypatch)
    for _ in range(3):
        async with sem:
            pass
    await all_free(sem)
    assert writes[:3] == [["acquire"], ["release", "acquire"], ["release", "acquire"]]


@pytest.mark.fault(29)
async def test_a_release_that_the_server_lacks_is_not_overtaken_by_a_try(
    proxied: Redis, proxy: Proxy
) -> None:
    """It would be told of its own permit that the semaphore is full."""
    sem = FairSemaphore(proxied, "jobs", 1)
    assert await (await sem.acquire()).release()
    struck = proxy.answer("release", "NOSCRIPT No.").struck
    async with sem:
        pass
    permit = await sem.try_acquire()
    assert struck.is_set()
    assert permit is not None
    await permit.release()


# -- the connection


@pytest.mark.fault(12, 17)
async def test_a_release_whose_reply_was_lost_is_sent_again(
    proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It is carried out once: the next holder keeps its permit. It was held, and says so."""
    sem, there = (FairSemaphore(client, "jobs", 1) for client in (proxied, client_b))
    permit = await sem.acquire()
    fault = proxy.swallow("release")
    releasing = asyncio.create_task(permit.release())
    await soon(fault.struck.wait())
    successor = await soon(there.acquire())
    assert await releasing is True
    assert len(proxy.operations("release")) == 2
    assert await sem.available() == 0
    assert await successor.release()


@simulated
async def test_a_release_is_dropped_when_the_lease_has_ended(
    pair: MakePair, client: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says so, and the hub does not try for ever to connect.

    An adopted permit is held for as long as it was detached for, however short the lease.
    """
    logging.getLogger("redsem_async").setLevel(logging.WARNING)  # until the simulation is over
    sem, there = pair(2, lease=6.0)
    ended = await there.acquire()
    async with sem as permit, sem.adopt(await ended.detach(60)):
        client.down()
    await asyncio.sleep(10.0)
    [record] = [r for r in caplog.records if getattr(r, "redsem_event", None) == "not released"]
    assert record.levelno == logging.WARNING
    assert "could not be released" in record.getMessage()
    assert permit.lost is False
    client.up()
    await all_free(there)


async def test_a_release_that_is_refused_is_logged(
    proxied: Redis, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    sem = FairSemaphore(proxied, "jobs", 1, lease=0.6)
    async with sem:
        fault = proxy.answer("release", "NOPERM no permissions to run the 'evalsha' command")
    await soon(fault.struck.wait())
    await until(
        lambda: any(getattr(r, "redsem_event", None) == "not released" for r in caplog.records),
        "the warning is logged",
    )


# -- the end


@pytest.mark.parametrize("last", ["release", "back_off"])
async def test_a_program_that_ends_reconnects_for_what_it_still_says(
    proxy: Proxy, client_b: Redis, last: str
) -> None:
    """The connection may be lost just then, and a lease or an overload takes long to pass."""

    async def program() -> None:
        async with FairSemaphore(Redis.from_url(proxy.url), "jobs", 1, lease=30) as permit:
            permit.back_off(30)

    fault = proxy.cut(last)
    await asyncio.to_thread(asyncio.run, program())
    assert fault.struck.is_set()
    status = await FairSemaphore(client_b, "jobs", 1).status()
    assert status.held == 0
    assert status.back_off is not None


async def test_a_program_ends_at_once_although_a_detach_is_on_its_way(
    server: EmbeddedRedis,
) -> None:
    """The permit is refreshed again then, by a task that the end of the program did not cancel."""
    kept: list[object] = []

    async def program() -> None:
        permit = await FairSemaphore(Redis.from_url(server.url), "jobs", 1, lease=30).acquire()
        kept.extend((permit, asyncio.create_task(permit.detach(5.0))))
        await asyncio.sleep(0)

    with takes_at_most(2.0):
        await asyncio.to_thread(asyncio.run, program())


@pytest.mark.parametrize("drops", [True, False])
async def test_a_permit_is_kept_for_the_clean_up_at_the_end_of_a_program(
    proxy: Proxy, drops: bool
) -> None:
    """asyncio.run cancels what refreshes it, too, and the connection may be lost meanwhile."""
    loop = asyncio.get_running_loop()
    trusted: list[float] = []

    async def work() -> None:
        async with FairSemaphore(Redis.from_url(proxy.url), "jobs", 1, lease=1.0) as permit:
            await until(lambda: proxy.operations("refresh"))
            started.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                if drops:
                    loop.call_soon_threadsafe(proxy.drop)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(permit.wait_lost(), 1.3)
                trusted.append(permit.expires_in)

    async def program() -> None:
        tasks.append(asyncio.create_task(work()))
        await started.wait()

    tasks: list[asyncio.Task[None]] = []
    started = asyncio.Event()
    await asyncio.to_thread(asyncio.run, program())
    assert trusted
    assert trusted[0] > 0


@simulated
async def test_release_by_itself_says_that_it_failed() -> None:
    """Long before the lease has ended."""
    far, loop = Distant(), asyncio.get_running_loop()
    permit = await FairSemaphore(far, "jobs", 1, lease=60.0).acquire()
    far.cut_off()
    cut_at = loop.time()
    with pytest.raises(SemaphoreError):
        await permit.release()
    assert loop.time() - cut_at < 6.0
