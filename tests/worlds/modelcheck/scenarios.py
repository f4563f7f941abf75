"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from redsem_async import AcquireTimeout, Permit, PermitLost
from redsem_async._core.keys import Mode

from .process import AT_END, Job
from .scenario import Budget, Party, Scenario, scenario

LONG = os.environ.get("REDSEM_MODELCHECK") == "long"


async def holds(job: Job) -> None:
    await keep(job, await job.acquire())


async def stays(job: Job) -> None:
    """Acquire, and hold on until the search is over."""
    await keep(job, await job.acquire(), AT_END)


async def tries(job: Job) -> None:
    with suppress(AcquireTimeout):
        await keep(job, await job.acquire(timeout=0.3))


async def holds_two(job: Job) -> None:
    await keep(job, await job.acquire(permits=2))


async def keep(job: Job, permit: Permit, until: str = "to release") -> None:
    await job.pause(until)
    await job.release(permit)


async def detaches(job: Job) -> None:
    """Acquire, and detach for a short time; where that fails, once more, or hold on to it."""
    permit = await job.acquire()
    try:
        with suppress(PermitLost):
            await job.pause("to detach")
            await job.detach(permit, 0.5)
    finally:
        if permit in job.process.permits:
            await keep(job, permit)


async def detaches_again(job: Job) -> None:
    """Acquire, and detach for a short time; where that does not come to its end, once more."""
    permit = await job.acquire()
    await job.pause("to detach")
    with suppress(PermitLost):
        try:
            await job.detach(permit, 0.5)
        finally:
            if permit in job.process.permits:
                await job.detach(permit, 0.5)


async def sends(job: Job) -> None:
    """Acquire, detach for long, and send the id."""
    permit = await job.acquire()
    job.world.ids.append(await job.detach(permit, 20.0))


async def sends_twice(job: Job) -> None:
    """The same, and the job that carries the id is delivered twice."""
    await sends(job)
    job.world.ids.append(job.world.ids[0])


async def adopts(job: Job) -> None:
    with suppress(PermitLost):
        await keep(job, await job.adopt(await job.receive_id()))


async def limits(job: Job) -> None:
    await job.set_limit(3)
    await job.set_limit(2)


async def pauses(job: Job) -> None:
    await job.set_limit(0)
    await job.set_limit(None)


async def suspends(job: Job) -> None:
    await job.set_limit(0)
    await job.pause("to resume")
    await job.set_limit(None)


async def backs_off(job: Job) -> None:
    permit = await job.acquire()
    await job.pause("to back off")
    job.back_off(permit, 1.0)
    await keep(job, permit)


async def ends_a_back_off(job: Job) -> None:
    await job.semaphore.back_off(0)


async def deletes(job: Job) -> None:
    await job.delete()
    await holds(job)


more = int(LONG)
open_minded = Party((holds,))
still = open_minded.but(cancels=(), breaks=False, dies=False)
waiter = still if LONG else still.but(stays)
sender, two, short = still.but(sends), still.but(limit=2), still.but(lease=3.0)
detacher, backer = Party((detaches,), cancels=()), Party((backs_off,), cancels=())


def begun(opening: str) -> str:
    """Opened, but not in the long form."""
    return "" if LONG else opening


def _of_calls(mode: Mode) -> Iterator[Scenario]:
    zset = mode == "zset"
    third = waiter.but(cancels=(0,) * more)
    parties: tuple[Party, ...] = still, open_minded, third
    yield scenario("a cancellation", *parties, opening=begun("00."), cancels=1 + more)
    name, release = "a lost link and a cancellation", zset
    many = Budget(cancels=1, cuts=1, lates=more)
    yield scenario(name, open_minded, still, opening=begun("10."), release=release, budget=many)
    many = Budget(cuts=1, unnoticed=1, lates=1 + more)
    name = "a lost link and late commands"
    yield scenario(name, open_minded, still, opening=begun("10."), budget=many)
    many = Budget(cancels=more, ticks=1 + more, cuts=more)
    name, trier = "a waiter's deadline", Party((tries,))
    yield scenario(name, still, trier, opening="00. 10.", grain=0.2, budget=many)
    if LONG:  # or else a part of "a detach, again"
        name = "a detach that is cancelled"
        yield scenario(name, Party((detaches,)), waiter, opening="00.", cancels=1, ticks=2)
    name, opening = "a detach that is lost", "00." if LONG else "00. 10. 00"
    many = Budget(cuts=1, ticks=1 + more, lates=more)
    yield scenario(name, detacher, waiter, opening=opening, release=zset, budget=many)
    name, grain = "a detach, again", 0.05 if LONG else 0.4
    many = Budget(cancels=1, ticks=1, cuts=more, lates=more)
    again = Party((detaches_again,))
    yield scenario(name, again, waiter, opening="00. 10. 00", grain=grain, budget=many)
    name, many = "an adoption and a cancelled acquire", Budget(cancels=1, cuts=1, lates=more)
    heir, opening = Party((adopts, holds), cancels=(1,)), "00. 10 10 11"
    yield scenario(name, sender, heir, opening=opening, release=not zset, budget=many)
    name, heir = "an adoption that is cancelled", Party((adopts,))
    yield scenario(name, sender, heir, opening="00.", cancels=1, cuts=1, lates=1)
    parties = still.but(sends_twice), Party((adopts, adopts))
    many = Budget(cuts=1, lates=more, cancels=more)
    yield scenario("two adopters", *parties, opening="00. 10. 11.", release=not zset, budget=many)


def _of_orders_and_limits(mode: Mode) -> Iterator[Scenario]:
    zset = mode == "zset"
    parties: tuple[Party, ...]
    yield scenario("two limits", Party((limits,)), still, cuts=1, lates=1, cancels=more)
    party = backer.but(limits, backs_off)
    yield scenario("a limit and a back-off", party, opening="01.", cuts=1, lates=more)
    parties = backer, Party((ends_a_back_off,), cancels=(), breaks=False)
    yield scenario("a back-off that is ended", *parties, opening="00.", cuts=1, lates=1)
    yield scenario("a pause", Party((pauses,)), still, cuts=1, lates=1)
    parties, many = (Party((deletes,)), still), Budget(cuts=1, lates=1, cancels=more)
    yield scenario("a deletion", *parties, opening=begun("10."), budget=many)
    parties, opening = (Party((holds_two,), 2), two, two), begun("20. 00.")
    yield scenario("weights", *parties, opening=opening, release=not zset, cancels=1)
    parties = Party((holds,), 2), open_minded, Party((holds, holds), 2)
    yield scenario("mixed limits", *parties, opening="00. 20. 10. 21.", cancels=more)
    parties = two.but(holds, holds), still.but(tries, tries, limit=0)
    yield scenario("a limit of 0", *parties, opening="00. 10. 11.", grain=0.2)
    many, mortal = Budget(kills=1, unnoticed=1, ticks=more), short.but(dies=True)
    yield scenario("a process dies", mortal, short, budget=many)
    parties, many = (mortal, waiter.but(lease=3.0)), Budget(stops=1, ticks=1 + more)
    name, opening = "a process stands still", begun("00. 10.")
    yield scenario(name, *parties, opening=opening, grain=1.6, release=not zset, budget=many)


MODES: tuple[Mode, Mode] = ("fair", "zset")
# What neither mode does in a way of its own is explored in one of them when time is short.
ALIKE = re.compile("adopt|detach, again|two limits|back-off|pause|deletion|stands still")
SCENARIOS = [
    replace(found, mode=mode)
    for mode in MODES
    for found in (*_of_calls(mode), *_of_orders_and_limits(mode))
    if LONG or mode == "fair" or not ALIKE.search(found.name)
]
