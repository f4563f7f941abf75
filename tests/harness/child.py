"""What the processes of the fault tests do; they report in lines of JSON.

Run as ``child.py SCENARIO OPTIONS``, the options in JSON. Times are of the monotonic clock,
which the processes of one machine share. With `visit`, the library may be an older one: what is
not public in every version with the present layout is imported where it is used.
"""

import asyncio
import gc
import json
import math
import os
import selectors
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Permit, PermitLost, Semaphore, SemaphoreError

KINDS = {"Semaphore": Semaphore, "FairSemaphore": FairSemaphore}
OPTIONS: dict[str, Any] = json.loads(sys.argv[2])


def say(event: str, **facts: object) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    os.write(1, f"{line}\n".encode())


def make() -> Any:
    named = f"worker-{os.getpid()}" if OPTIONS.get("named", True) else None
    redis = Redis.from_url(OPTIONS["url"], client_name=named)
    known = {"lease", "refresh_interval", "key_limit", "share", "slots", "label"}
    options = {k: v for k, v in OPTIONS.items() if k in known}
    return KINDS[OPTIONS["kind"]](redis, OPTIONS["name"], OPTIONS.get("limit", 1), **options)


def acquire(semaphore: Any, **arguments: Any) -> Any:
    """Acquire, with a key where the options have one."""
    return semaphore.acquire(**arguments, **{k: OPTIONS[k] for k in ("key",) if k in OPTIONS})


async def told_to_go_on() -> None:
    await asyncio.to_thread(sys.stdin.readline)


class Turns(selectors.DefaultSelector):
    """Of the event loop: when it took up its present one."""

    began = -math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        Turns.began = time.monotonic()
        return events


async def trust_when_woken(permit: Permit) -> float:
    """Sleep a moment; the seconds of trust left when the loop took up the turn that wakes us.

    What stops the process during that turn finds our step on its way: nobody can call it back.
    """
    woken: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(permit.expires_in + time.monotonic() - Turns.began)

    asyncio.get_running_loop().call_later(0.01, wake)
    return await woken


async def hold(on_step: Callable[[], object] = bool) -> None:
    """Hold a permit for ever; say when the body is cancelled, or went on when it should not."""
    semaphore = make()
    try:
        async with acquire(semaphore, permits=OPTIONS.get("permits", 1)) as permit:
            say("held", id=permit.id, token=permit.fencing_token)
            try:
                while True:
                    on_step()
                    left = await trust_when_woken(permit)
                    if left < -0.02:  # and not by a timer that is a little late
                        say("went on", expires_in=left)
            except asyncio.CancelledError:
                say("cancelled", lost=permit.lost, expires_in=permit.expires_in)
                raise
    except PermitLost as lost:
        say("lost", reason=lost.reason, pid=os.getpid())


async def wait() -> None:
    """Wait for a permit, and hold it until the test goes on."""
    semaphore = make()
    waiter = asyncio.ensure_future(acquire(semaphore, permits=OPTIONS.get("permits", 1)))
    while (await semaphore.status(0)).waiting < OPTIONS.get("place", 1):  # noqa: ASYNC110 - the server says no more
        await asyncio.sleep(0.01)
    say("waits")
    permit = await waiter
    say("held", id=permit.id, token=permit.fencing_token)
    await told_to_go_on()
    await permit.release()


COUNTED = """
local count = redis.call('INCRBY', KEYS[1], ARGV[1])
if count > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], count) end
"""


async def count_in() -> None:
    """Use keys in turn; an observer on the server counts who is inside, in all and by key."""
    semaphore, redis = make(), Redis.from_url(OPTIONS["url"])

    async def count(change: int, key: str) -> None:
        for name in ("all", key):
            await redis.eval(COUNTED, 2, f"inside:{name}", f"most:{name}", str(change))

    async def use(key: str) -> None:
        while True:
            async with semaphore.acquire(key=key):
                await count(1, key)
                await asyncio.sleep(0.005)
                await count(-1, key)

    async with asyncio.TaskGroup() as group:
        for key in ("a", "a", "b", "b"):
            group.create_task(use(key))
        say("runs")


async def block() -> None:
    """Another task blocks the loop for longer than the lease, while the body awaits."""
    stepped = asyncio.Event()

    async def blocks() -> None:
        await stepped.wait()
        await asyncio.sleep(OPTIONS["after"])
        # Just after a step of the body's: its next is not in the loop's queue yet.
        stepped.clear()
        await stepped.wait()
        time.sleep(OPTIONS["blocked"])  # noqa: ASYNC251 - that is the fault

    blocking = asyncio.create_task(blocks())
    await hold(stepped.set)
    await blocking


async def compute() -> None:
    """The body computes without an await, and asks from time to time."""
    semaphore = make()
    try:
        async with semaphore.acquire() as permit:
            say("held", id=permit.id, token=permit.fencing_token)
            ends = time.monotonic() + OPTIONS["seconds"]
            try:
                while time.monotonic() < ends:
                    time.sleep(0.001)  # noqa: ASYNC251 - that is the fault
                    permit.check()
            finally:
                say("computed", lost=permit.lost)
    except PermitLost as lost:
        say("lost", reason=lost.reason)


def in_child(work: Callable[[], None]) -> None:
    """Fork, and see the child through while this process does nothing."""
    with warnings.catch_warnings():
        # From 3.12 on, of threads that the child does not have: that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it ends here
            say("failed", error=repr(error))
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    say("child ended", status=status)


async def fork() -> None:
    """Fork while holding; the child tries what it can with the parent's permit, and drops it."""
    semaphore = make()
    held = [await semaphore.acquire()]
    say("held", id=held[0].id)

    def child() -> None:
        lost, checked, released, own_id = held[0].lost, "", "", ""
        try:
            held[0].check()
        except PermitLost as error:
            checked = error.reason

        async def in_a_loop_of_its_own() -> None:
            nonlocal released, own_id
            try:
                released = repr(await held[0].release())
            except RuntimeError as error:
                released = type(error).__name__
            own = await semaphore.try_acquire()
            if own is not None:
                own_id = own.id
                await own.release()

        asyncio.run(in_a_loop_of_its_own())
        say("child", lost=lost, checked=checked, released=released, id=own_id)
        held.clear()
        gc.collect()

    in_child(child)
    await told_to_go_on()
    await held[0].refresh()
    say("refreshed", lost=held[0].lost)
    say("released", held=await held[0].release())


def fork_twice() -> None:
    """A semaphore that stands at module level, used here and then in two children."""
    semaphore = make()

    async def once() -> None:
        async with semaphore as permit:
            say("held", id=permit.id, pid=os.getpid())

    def child() -> None:
        asyncio.run(once())

    asyncio.run(once())
    in_child(child)
    in_child(child)
    asyncio.run(once())


async def visit() -> None:
    """Use some names before others do, and then all with several tasks; each when told to.

    A name's kind is that which it is used as.
    """
    kinds = {"fair": FairSemaphore, "zset": Semaphore}
    limit, label = OPTIONS["limit"], OPTIONS["label"]
    redis = Redis.from_url(OPTIONS["url"])
    most, stop = Counter[str](), asyncio.Event()

    def semaphores(names: dict[str, str]) -> list[Any]:
        return [kinds[k](redis, n, limit, lease=60.0, label=label) for n, k in names.items()]

    async def use(semaphore: Any) -> None:
        name = semaphore.name
        while not stop.is_set():
            async with semaphore:
                most[name] = max(most[name], int(await redis.incr(f"inside:{name}")))
                await redis.incr(f"served:{label}:{name}")
                await redis.decr(f"inside:{name}")

    await told_to_go_on()
    for semaphore in semaphores(OPTIONS["takes"]):
        async with semaphore:
            pass
    say("took", file=redsem_async.__file__, version=redsem_async.__version__)
    await told_to_go_on()
    async with asyncio.TaskGroup() as tasks:
        for semaphore in semaphores(OPTIONS["names"]):
            for _ in range(limit + 1):
                tasks.create_task(use(semaphore))
        await told_to_go_on()
        stop.set()
    say("loaded", most=most)
    await redis.aclose()


SCENARIOS = {work.__name__: work for work in (hold, wait, block, compute, fork, count_in, visit)}


def main() -> None:
    try:
        if sys.argv[1] == "fork_twice":
            fork_twice()
        else:
            loop = partial(asyncio.SelectorEventLoop, Turns())
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(SCENARIOS[sys.argv[1]]())
    except SemaphoreError as error:
        say("failed", error=repr(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
