"""Cancelled at any await there is, nothing is left behind.

Each scenario is run again and again, with a cancellation at its first suspension, at its second,
and so on, until it ends before its turn comes.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit
from tests.harness.clients import Client, Kind, Make
from tests.harness.wait import all_free, until

pytestmark = pytest.mark.one_mode

# When to cancel: while the task waits for something, or in the turn of the loop in which that
# has happened and the task has not run yet.
When = Literal["while suspended", "when served"]

LEASE = 6.0  # seconds: longer than anything here waits for a permit to be free
SEEN_THROUGH = 0.8  # seconds that a cancelled call may take to come to its end


class Stepped(Coroutine[Any, Any, None]):
    """A coroutine that counts its suspensions, and cancels its task at one of them."""

    def __init__(self, inner: Coroutine[Any, Any, None], cancel_at: int, when: When) -> None:
        self.steps = 0
        self.task: asyncio.Task[None] | None = None
        self._inner = inner
        self._cancel_at = cancel_at
        self._when: When = when

    def send(self, value: Any) -> Any:
        return self._suspended(self._inner.send(value))

    def throw(self, *args: Any) -> Any:
        return self._suspended(self._inner.throw(*args))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def _suspended(self, awaited: Any) -> Any:
        self.steps += 1
        if self.steps == self._cancel_at:
            if self._when == "while suspended" or awaited is None:
                asyncio.get_running_loop().call_soon(self._cancel)
            else:
                # Called before the task's own callback, which wakes it.
                awaited.add_done_callback(self._cancel)
        return awaited

    def _cancel(self, _: object = None) -> None:
        assert self.task is not None
        self.task.cancel()


@dataclass
class Stage:
    """Two processes, and what was prepared for a scenario."""

    here: AnySemaphore
    there: AnySemaphore
    permit: Permit | None = None
    permit_id: str = ""
    blocking: Permit | None = None

    @property
    def prepared(self) -> Permit:
        assert self.permit is not None
        return self.permit


Scene = Callable[[Stage], Coroutine[Any, Any, None]]
Setting = Callable[[Stage], Awaitable[None]]


async def _free(stage: Stage) -> None:
    """Nothing is held."""


async def _contended(stage: Stage) -> None:
    """Another process holds all permits, until the scenario waits for one."""
    stage.blocking = await stage.there.acquire(permits=2)


async def _held(stage: Stage) -> None:
    """The scenario is about a permit that is held."""
    stage.permit = await stage.here.acquire()


async def _detached(stage: Stage) -> None:
    """Another process hands a permit over."""
    stage.permit_id = await (await stage.there.acquire()).detach(30.0)


def returning(call: Callable[[Stage], Awaitable[object]]) -> Scene:
    """Calls, and releases the permit that comes of it."""

    async def scene(stage: Stage) -> None:
        if isinstance(permit := await call(stage), Permit):
            await permit.release()

    return scene


def entering(block: Callable[[Stage], AbstractAsyncContextManager[object]]) -> Scene:
    async def scene(stage: Stage) -> None:
        async with block(stage):
            await asyncio.sleep(0)

    return scene


async def ask(stage: Stage) -> None:
    await stage.here.status()
    await stage.here.locked()
    await stage.here.set_limit(None)
    await stage.here.reap()


ACQUIRES = {
    "acquire": returning(lambda stage: stage.here.acquire()),
    "acquire with timeout": returning(lambda stage: stage.here.acquire(timeout=5.0)),
    "acquire two": returning(lambda stage: stage.here.acquire(permits=2)),
    "try_acquire": returning(lambda stage: stage.here.try_acquire()),
    "enter acquire": entering(lambda stage: stage.here.acquire()),
    "enter bare": entering(lambda stage: stage.here),
}
SCENARIOS: dict[Setting, dict[str, Scene]] = {
    _free: {**ACQUIRES, "ask": ask},
    _contended: ACQUIRES,
    _held: {
        "release": returning(lambda stage: stage.prepared.release()),
        "release by id": returning(lambda stage: stage.there.release(stage.prepared.id)),
        "detach": returning(lambda stage: stage.prepared.detach(30.0)),
        "refresh": returning(lambda stage: stage.prepared.refresh()),
    },
    _detached: {
        "adopt": returning(lambda stage: stage.here.adopt(stage.permit_id)),
        "enter adopt": entering(lambda stage: stage.here.adopt(stage.permit_id)),
    },
}


async def _give_back(stage: Stage) -> None:
    """Release what the scenario did not."""
    if stage.permit is not None and not stage.permit.lost:
        await stage.permit.release()
    for permit_id in (stage.permit_id, stage.permit.id if stage.permit else ""):
        if permit_id:
            await stage.there.release(permit_id)
    stage.permit = None


async def _unblock(stage: Stage, task: asyncio.Task[None]) -> None:
    """The other process releases when the scenario waits, or is over."""
    if stage.blocking is None:
        return

    async def it_waits_or_is_over() -> bool:
        return task.done() or (await stage.there.status(max_entries=0)).waiting > 0

    await until(it_waits_or_is_over)
    await stage.blocking.release()


async def _run(stage: Stage, setting: Setting, scene: Scene, at: int, when: When) -> bool:
    """Run *scene* with a cancellation at step *at*. Returns whether it came to that."""
    await setting(stage)
    before = asyncio.all_tasks()
    stepped = Stepped(scene(stage), at, when)
    task = stepped.task = asyncio.create_task(stepped)
    await _unblock(stage, task)
    async with asyncio.timeout(SEEN_THROUGH):
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    await _give_back(stage)

    await all_free(stage.here)
    assert await stage.here.available() == stage.here.limit
    async with stage.here.acquire(timeout=1.0), stage.there.acquire(timeout=1.0):
        assert await stage.here.available() == 0
    await all_free(stage.here)

    def only_the_hubs_are_left() -> bool:
        left = asyncio.all_tasks() - before
        return all(task.get_name() == "redsem-hub" for task in left)

    await until(only_the_hubs_are_left)
    return stepped.steps >= at


@pytest.mark.fault(14)
@pytest.mark.parametrize("when", ["while suspended", "when served"])
@pytest.mark.parametrize(
    ("setting", "scene"),
    [
        pytest.param(setting, scene, id=f"{name}-{setting.__name__.strip('_')}")
        for setting, scenes in SCENARIOS.items()
        for name, scene in scenes.items()
    ],
)
async def test_a_call_cancelled_at_any_await_leaks_nothing(
    make: Make, other: Client, setting: Setting, scene: Scene, when: When
) -> None:
    """A permit that is forgotten would block the others for a lease."""
    stage = Stage(make(2, lease=LEASE), make(2, client=other, lease=LEASE))
    step = 1
    while await _run(stage, setting, scene, step, when):
        step += 1
        assert step < 100
    assert step > 1, "the scenario never waited for anything"


async def _randomly_cancelled(here: AnySemaphore, there: AnySemaphore, count: int) -> int:
    """Cancel *count* acquires at random moments. Returns how many had a permit."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    served = inside = 0

    async def work(sem: AnySemaphore, hold: float) -> None:
        nonlocal served, inside
        async with sem.acquire(permits=chance.choice((1, 1, 1, 2))) as permit:
            served += 1
            inside += permit.permits
            try:
                assert inside <= sem.limit
                await asyncio.sleep(hold)
            finally:
                inside -= permit.permits

    async def cancelled_after(task: asyncio.Task[None], delay: float) -> None:
        if delay < 0.001:
            for _ in range(int(delay * 20_000)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(delay)
        task.cancel()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for _ in range(count):
            task = asyncio.create_task(
                work(chance.choice((here, there)), chance.uniform(0, 0.002))
            )
            tasks.append(task)
            group.create_task(cancelled_after(task, chance.expovariate(200)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.002))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [result for result in results if isinstance(result, Exception)]
    assert wrong == []
    return served


@pytest.mark.fault(14)
async def test_600_randomly_cancelled_acquires_leave_every_permit_free(
    make: Make, other: Client
) -> None:
    here, there = make(5, lease=LEASE), make(5, client=other, lease=LEASE)
    served = await _randomly_cancelled(here, there, 600)
    assert 0 < served < 600
    await all_free(here)
    async with here.acquire(permits=5, timeout=1.0):
        pass


async def test_random_cancellation_with_a_default_client_and_a_socket_timeout(
    kind: Kind, server_url: str, name: str
) -> None:
    """On 3.11 a client with a socket timeout swallows cancellations of a task that writes."""
    async with (
        Redis.from_url(server_url, socket_timeout=5) as first,
        Redis.from_url(server_url, socket_timeout=5) as second,
    ):
        here, there = kind(first, name, 3, lease=LEASE), kind(second, name, 3, lease=LEASE)
        assert 0 < await _randomly_cancelled(here, there, 600) < 600
        await all_free(here)
