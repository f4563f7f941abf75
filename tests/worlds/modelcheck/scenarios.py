"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from redsem_async import AcquireTimeout, Permit, PermitLost
from redsem_async._core.keys import Mode

from .process import AT_END, Job
from .scenario import Budget, Opening, Party, Scenario, opened

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


def _scenarios(mode: Mode) -> Iterator[Scenario]:
    more = int(LONG)
    still = Party((holds,), cancels=(), breaks=False, dies=False)
    waiter = still if LONG else replace(still, scripts=(stays,))
    open_minded = Party((holds,))
    sender = replace(still, scripts=(sends,))
    two = replace(still, limit=2)
    short = replace(still, lease=3.0)

    def begun(*jobs: tuple[int, int]) -> Opening:
        """Opened, but in the long form."""
        return () if LONG else opened(*jobs)

    yield Scenario(
        "a cancellation",
        (still, open_minded, replace(waiter, cancels=(0,) * more)),
        Budget(cancels=1 + more),
        begun((0, 0)),
    )
    yield Scenario(
        "a lost link and a cancellation",
        (open_minded, still),
        Budget(cancels=1, cuts=1, lates=more),
        begun((1, 0)),
        release=mode == "zset",
    )
    yield Scenario(
        "a lost link and late commands",
        (open_minded, still),
        Budget(cuts=1, unnoticed=1, lates=1 + more),
        begun((1, 0)),
    )
    yield Scenario(
        "a waiter's deadline",
        (still, Party((tries,))),
        Budget(cancels=more, ticks=1 + more, cuts=more),
        opened((0, 0), (1, 0)),
        grain=0.2,
    )
    if LONG:  # or else a part of "a detach, again"
        yield Scenario(
            "a detach that is cancelled",
            (Party((detaches,)), waiter),
            Budget(cancels=1, ticks=2),
            opened((0, 0)),
        )
    yield Scenario(
        "a detach that is lost",
        (Party((detaches,), cancels=()), waiter),
        Budget(cuts=1, ticks=1 + more, lates=more),
        opened((0, 0)) if LONG else (*opened((0, 0), (1, 0)), ("go", 0, 0)),
        release=mode == "zset",
    )
    yield Scenario(
        "a detach, again",
        (Party((detaches_again,)), waiter),
        Budget(cancels=1, ticks=1, cuts=more, lates=more),
        (*opened((0, 0), (1, 0)), ("go", 0, 0)),
        grain=0.05 if LONG else 0.4,
    )
    yield Scenario(
        "an adoption and a cancelled acquire",
        (sender, Party((adopts, holds), cancels=(1,))),
        Budget(cancels=1, cuts=1, lates=more),
        (*opened((0, 0)), ("go", 1, 0), ("go", 1, 0), ("go", 1, 1)),
        release=mode == "fair",
    )
    yield Scenario(
        "an adoption that is cancelled",
        (sender, Party((adopts,))),
        Budget(cancels=1, cuts=1, lates=1),
        opened((0, 0)),
    )
    yield Scenario(
        "two adopters",
        (replace(sender, scripts=(sends_twice,)), Party((adopts, adopts))),
        Budget(cuts=1, lates=more, cancels=more),
        opened((0, 0), (1, 0), (1, 1)),
        release=mode == "fair",
    )
    yield Scenario(
        "two limits",
        (Party((limits,)), still),
        Budget(cuts=1, lates=1, cancels=more),
    )
    yield Scenario(
        "a limit and a back-off",
        (Party((limits, backs_off), cancels=()),),
        Budget(cuts=1, lates=more),
        opened((0, 1)),
    )
    yield Scenario(
        "a back-off that is ended",
        (Party((backs_off,), cancels=()), Party((ends_a_back_off,), cancels=(), breaks=False)),
        Budget(cuts=1, lates=1),
        opened((0, 0)),
    )
    yield Scenario("a pause", (Party((pauses,)), still), Budget(cuts=1, lates=1))
    yield Scenario(
        "a deletion",
        (Party((deletes,)), still),
        Budget(cuts=1, lates=1, cancels=more),
        begun((1, 0)),
    )
    yield Scenario(
        "weights",
        (Party((holds_two,), 2), two, two),
        Budget(cancels=1),
        begun((2, 0), (0, 0)),
        release=mode == "fair",
    )
    yield Scenario(
        "mixed limits",
        (Party((holds,), 2), Party((holds,), 1), Party((holds, holds), 2)),
        Budget(cancels=more),
        opened((0, 0), (2, 0), (1, 0), (2, 1)),
    )
    yield Scenario(
        "a limit of 0",
        (replace(two, scripts=(holds, holds)), replace(still, scripts=(tries, tries), limit=0)),
        opening=opened((0, 0), (1, 0), (1, 1)),
        grain=0.2,
    )
    yield Scenario(
        "a process dies",
        (replace(short, dies=True), short),
        Budget(kills=1, unnoticed=1, ticks=more),
    )
    yield Scenario(
        "a process stands still",
        (replace(short, dies=True), replace(waiter, lease=3.0)),
        Budget(stops=1, ticks=1 + more),
        begun((0, 0), (1, 0)),
        grain=1.6,
        release=mode == "fair",
    )


MODES: tuple[Mode, Mode] = ("fair", "zset")
# What neither mode does in a way of its own is explored in one of them when time is short.
ALIKE = re.compile("adopt|detach, again|two limits|back-off|pause|deletion|stands still")
SCENARIOS = [
    replace(scenario, mode=mode)
    for mode in MODES
    for scenario in _scenarios(mode)
    if LONG or mode == "fair" or not ALIKE.search(scenario.name)
]
