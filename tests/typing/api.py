"""The public surface as type checkers see it. Checked, never run."""

import asyncio
from typing import assert_type

from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    FairSemaphore,
    Mutex,
    Permit,
    PermitLost,
    Semaphore,
    SemaphoreStatus,
    connect,
    from_url,
)
from redsem_async.observer import Event, Observation, observe
from redsem_async.testing import MemoryBackend, embedded_redis


async def permits(sem: AnySemaphore) -> None:
    """Every form of acquiring gives a Permit."""
    assert_type(await sem.acquire(), Permit)
    assert_type(await sem.acquire(timeout=None, permits=2), Permit)
    waited_for: Permit = await asyncio.wait_for(sem.acquire(timeout=1), 2)
    task: asyncio.Task[Permit] = asyncio.create_task(sem.acquire())
    assert_type((waited_for.name, await task), tuple[str, Permit])
    assert_type(await sem.try_acquire(), Permit | None)
    assert_type(await sem.adopt("id"), Permit)
    async with sem as permit, sem.acquire(timeout=0) as other, other as same:
        assert_type(permit, Permit)
        assert_type(other, Permit)
        assert_type(same, Permit)
        assert_type(permit.fencing_token, int)
        assert_type(permit.expires_in, float)
        assert_type(await permit.wait_lost(), PermitLost)
        assert_type(await permit.detach(), str)
        assert_type(await permit.release(), bool)


async def keys(sem: AnySemaphore) -> None:
    """Any semaphore may have keys, and says so when it runs."""
    if sem.keyed:
        assert_type(await sem.acquire(key="acme", ahead=1.0), Permit)
        assert_type(await sem.try_acquire(key=None), Permit | None)
        assert_type(await sem.status(keys_after="acme"), SemaphoreStatus)
        await sem.set_limit(3, key="acme")
        await sem.back_off(1.0, key="acme")


def events(event: Event) -> object:
    """Any function of an event observes."""
    assert_type(observe(print), Observation)
    with observe(events, keys=True) as observation:
        observation.stop()
    return event.kind == "granted" and event.waited is not None and event.waited > 1


async def standing(sem: AnySemaphore) -> None:
    """Every question has a type."""
    assert_type(await sem.locked(), bool)
    assert_type(await sem.available(), int)
    assert_type(await sem.exists(), bool)
    assert_type(await sem.ready(timeout=0.5), None)
    assert_type(await sem.status(), SemaphoreStatus)
    assert_type(await sem.reap(), int)
    assert_type(await sem.release("id"), bool)


async def forgotten(sem: AnySemaphore, *, once: bool) -> None:
    """What follows a forgotten await, which raises when it runs, is checked like all else."""
    seen: int | str
    seen = str(once)
    if once:
        if sem.locked():
            return
        seen = int(once)
    assert_type(seen, int | str)


async def clients() -> None:
    """Any client of redis.asyncio will do, and a MemoryBackend."""
    client: Redis = from_url("redis://localhost")
    await client.aclose()
    async with connect("redis://localhost") as redis:
        sems: list[AnySemaphore] = [
            Semaphore(redis, "a", 1),
            FairSemaphore(redis, "b", 1, clock="local", max_waiters=3),
            Mutex(MemoryBackend(), "c"),
        ]
        assert_type(sems[0].lease, float)
    with embedded_redis() as server:
        assert_type(server.url, str)
