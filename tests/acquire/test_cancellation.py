"""Cancelled at any await there is, nothing is left behind."""

import asyncio
import random
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, AnySemaphore, FairSemaphore, Permit
from tests.harness.clients import MakePair
from tests.harness.inside import requests_of
from tests.harness.memory import Distant, Gated
from tests.harness.proxy import Proxy
from tests.harness.wait import all_free, cancelled, give_back, in_background, queue_up, soon, until
from tests.worlds.simulated_time import simulated

# When to cancel: while the task waits for something, or in the turn of the loop in which that
# has happened and the task has not run yet.
When = Literal["while suspended", "when served"]

SEEN_THROUGH = 0.8  # seconds that a cancelled call may take to come to its end


def _cancel(task: "asyncio.Task[Any]", _: object) -> None:
    task.cancel()


class CancelAt:
    """Counts the suspensions of a task, and cancels it at one of them."""

    def __init__(self, at: int, when: When) -> None:
        self.at = at
        self.when: When = when
        self.steps = 0

    def __call__(self, awaited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.steps += 1
        if self.steps != self.at:
            return
        if self.when == "while suspended" or awaited is None:
            asyncio.get_running_loop().call_soon(task.cancel)
        else:  # called before the task's own callback, which wakes it
            awaited.add_done_callback(partial(_cancel, task))


@types.coroutine
def stepped(
    inner: Coroutine[Any, Any, object], on_step: Callable[[Any], object]
) -> Generator[Any, Any, object]:
    """Run *inner*, and call *on_step* with what it awaits at each suspension."""
    go_on: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        try:
            awaited = go_on(value)
        except StopIteration as end:
            outcome: object = end.value
            return outcome
        on_step(awaited)
        try:
            go_on, value = inner.send, (yield awaited)
        except BaseException as error:  # noqa: BLE001 - a cancellation is passed on, too
            go_on, value = inner.throw, error


@dataclass
class Stage:
    """Two processes, and what a call is about."""

    here: AnySemaphore
    there: AnySemaphore
    permit: Permit
    permit_id: str = ""  # of one that was detached


async def _release(permit: object) -> None:
    if isinstance(permit, Permit):
        await permit.release()


async def _enter(block: Any) -> None:
    async with block:
        await asyncio.sleep(0)


async def _ask(sem: AnySemaphore) -> None:
    await sem.status()
    await sem.locked()
    await sem.set_limit(None)
    await sem.reap()


ACQUIRES: dict[str, Callable[[AnySemaphore], Awaitable[object]]] = {
    "acquire": lambda sem: sem.acquire(),
    "acquire with timeout": lambda sem: sem.acquire(timeout=5.0),
    "acquire two": lambda sem: sem.acquire(permits=2),
    "try_acquire": lambda sem: sem.try_acquire(),
    "enter acquire": lambda sem: _enter(sem.acquire()),
    "enter bare": _enter,
    "ask": _ask,
}
CALLS: dict[str, Callable[[Stage], Awaitable[object]]] = {
    "release": lambda stage: stage.permit.release(),
    "release by id": lambda stage: stage.there.release(stage.permit.id),
    "detach": lambda stage: stage.permit.detach(30.0),
    "refresh": lambda stage: stage.permit.refresh(),
    "adopt": lambda stage: stage.here.adopt(stage.permit_id),
    "enter adopt": lambda stage: _enter(stage.here.adopt(stage.permit_id)),
}
SCENES = [
    *((state, name) for state in ("free", "full") for name in ACQUIRES),
    *(("detached" if "adopt" in name else "held", name) for name in CALLS),
]


@pytest.mark.fault(14)
@pytest.mark.parametrize("when", ["while suspended", "when served"])
@pytest.mark.parametrize(("state", "name"), SCENES)
async def test_a_call_cancelled_at_any_await_leaks_nothing(
    pair: MakePair, state: str, name: str, when: When
) -> None:
    """At its first suspension, at its second, and so on, until it ends before its turn comes."""
    here, there = pair(2)

    async def run(at: int) -> bool:
        """Whether it came to the cancellation at that step."""
        before = asyncio.all_tasks()
        stage = Stage(here, there, await (here if state == "held" else there).acquire())
        if state == "detached":
            stage.permit_id = await stage.permit.detach(30.0)
        elif state == "free":
            await stage.permit.release()
        async with there.acquire() if state == "full" else asyncio.timeout(None):

            def call() -> Awaitable[object]:
                return CALLS[name](stage) if name in CALLS else ACQUIRES[name](here)

            async def scene() -> None:
                await _release(await call())

            cancels = CancelAt(at, when)

            async def run_stepped() -> None:
                await stepped(scene(), cancels)

            task = asyncio.create_task(run_stepped())

            async def waits_or_is_over() -> bool:
                return task.done() or (await there.status(max_entries=0)).waiting > 0

            if state == "full":
                await until(waits_or_is_over)
        if not stage.permit_id and state == "full":
            await stage.permit.release()
        async with asyncio.timeout(SEEN_THROUGH):
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        for permit_id in (stage.permit.id, stage.permit_id):
            await there.release(permit_id)
        await all_free(here)
        async with here.acquire(timeout=1.0), there.acquire(timeout=1.0):
            assert await here.available() == 0
        await all_free(here)
        await until(
            lambda: {task.get_name() for task in asyncio.all_tasks() - before} <= {"redsem-hub"}
        )
        return cancels.steps >= at

    step = 1
    while await run(step):
        step += 1
        assert step < 100
    assert step > 1, "the scene never waited for anything"


@pytest.mark.fault(14)
async def test_600_randomly_cancelled_acquires_leave_every_permit_free(
    server_url: str, name: str
) -> None:
    """On 3.11 a client with a socket timeout swallows cancellations of a task that writes."""
    chance = random.Random(5)
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

    async with (
        Redis.from_url(server_url, socket_timeout=5) as first,
        Redis.from_url(server_url, socket_timeout=5) as second,
    ):
        sems = [FairSemaphore(client, name, 5, lease=6.0) for client in (first, second)]
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            for _ in range(600):
                work_for = work(chance.choice(sems), chance.uniform(0, 0.002))
                tasks.append(asyncio.create_task(work_for))
                group.create_task(cancelled_after(tasks[-1], chance.expovariate(200)))
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.uniform(0, 0.002))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [result for result in results if isinstance(result, Exception)]
        assert 0 < served < 600
        await all_free(sems[0])


# -- given up at a chosen moment


@pytest.mark.fault(13)
@pytest.mark.parametrize("when", ["at once", "while connecting"])
async def test_an_acquire_cancelled_before_it_was_sent_leaves_no_trace(
    proxied: Redis, proxy: Proxy, when: str
) -> None:
    """There is no trace of it, on the wire or on the server."""
    semaphore = FairSemaphore(proxied, "jobs", 1)
    if when == "at once":
        await semaphore.reap()
    proxy.delay = 0.05
    acquiring = in_background(semaphore.acquire())
    if when == "while connecting":
        await until(lambda: proxy.sent, "the handshake is under way")
    await cancelled(acquiring)
    assert acquiring.cancelled()
    proxy.delay = 0.0
    assert not await semaphore.exists()
    assert not proxy.operations("acquire")
    assert not proxy.operations("abandon")


@pytest.mark.fault(14)
async def test_an_acquire_cancelled_after_it_was_sent_is_given_back(
    proxied: Redis, proxy: Proxy
) -> None:
    """The server grants it all the same, so it is given back, in one round trip."""
    semaphore = FairSemaphore(proxied, "jobs", 1)
    await semaphore.reap()
    fault = proxy.hold("acquire")
    acquiring = in_background(semaphore.acquire())
    await fault.struck.wait()  # the server has granted it
    acquiring.cancel()
    await asyncio.wait([acquiring], timeout=1)
    assert acquiring.cancelled()
    await until(lambda: proxy.operations("abandon"), "it is given back", within=0.5)
    fault.lift()
    await all_free(semaphore, within=0.5)


@pytest.mark.fault(15)
async def test_a_cancelled_waiter_hands_on_what_it_was_granted_in_the_same_tick(
    pair: MakePair,
) -> None:
    """The grant is here, and the task has not run yet when it is cancelled."""
    here, there = pair(1, lease=30.0)
    holder = await there.acquire()
    waiter, next_one = await queue_up(here), await queue_up(there)
    [request] = requests_of(here)
    releasing = in_background(holder.release())
    while not request.done():  # noqa: ASYNC110 - the very turn of the loop
        await asyncio.sleep(0)
    assert not waiter.done(), "the task ran before it could be cancelled"
    await cancelled(waiter)
    assert waiter.cancelled()
    assert await releasing
    permit = await soon(next_one)
    assert [entry.id for entry in (await here.status()).holders] == [permit.id]
    await give_back(permit)
    await all_free(here)


@pytest.mark.fault(16)
@simulated
async def test_a_grant_that_meets_its_deadline_is_a_permit_or_a_timeout() -> None:
    """Whichever it is, nothing leaks."""
    far, ends = Distant(), set[bool]()
    far.delay = 0.01
    here, there = (FairSemaphore(each, "jobs", 1, lease=30.0) for each in (far, far.peer()))
    await here.reap()
    for ms in range(-40, 41, 4):
        holder = await there.acquire()
        acquiring = [in_background(here.acquire(timeout=0.5)) for _ in range(2)]
        await asyncio.sleep(0.5 + ms / 1000)
        await give_back(holder)
        for ended in await asyncio.gather(*acquiring, return_exceptions=True):
            assert isinstance(ended, Permit | AcquireTimeout), repr(ended)
            ends.add(isinstance(ended, Permit))
            if isinstance(ended, Permit):
                await give_back(ended)
        await all_free(here)
    assert ends == {True, False}, "no grant met its deadline"


@pytest.mark.fault(14)
@pytest.mark.parametrize("cancellations", [1, 5])
async def test_a_cancelled_release_is_confirmed_first(cancellations: int) -> None:
    """However often. Then its task ends as cancelled, and the permit is free."""
    backend = Gated()
    semaphore = FairSemaphore(backend, "jobs", 1)

    async def work() -> None:
        permit = await semaphore.acquire()
        backend.shut = True
        await permit.release()
        await asyncio.sleep(10)  # where a swallowed cancellation would leave it

    working = asyncio.create_task(work())
    await until(lambda: backend.shut and backend.kept, "it is sent")
    for _ in range(cancellations):
        working.cancel()
        await asyncio.sleep(0)
    assert not working.done(), "it did not wait for the release to be confirmed"
    backend.open()
    await asyncio.wait([working])
    assert working.cancelled()
    await give_back(await semaphore.acquire(timeout=0))
