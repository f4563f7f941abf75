"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from redsem_async import AcquireTimeout, PermitLost
from redsem_async._core.keys import Mode

from .process import AT_END, Job
from .scenario import Budget, Party, Scenario

LONG = os.environ.get("REDSEM_MODELCHECK") == "long"


def opened(*jobs: tuple[int, int]) -> tuple[tuple[str, int, int], ...]:
    """Each of these has begun, and heard of what it asked for."""
    rest = ("rest", 0, 0)
    return tuple(event for who, which in jobs for event in (("go", who, which), rest))


async def holds(job: Job) -> None:
    """Acquire, and release."""
    permit = await job.acquire()
    await job.pause("to release")
    await job.release(permit)


async def stays(job: Job) -> None:
    """Acquire, and hold on until the search is over."""
    permit = await job.acquire()
    await job.pause(AT_END)
    await job.release(permit)


async def tries(job: Job) -> None:
    """Acquire, for as long as a deadline allows."""
    with suppress(AcquireTimeout):
        permit = await job.acquire(timeout=0.3)
        await job.pause("to release")
        await job.release(permit)


async def holds_two(job: Job) -> None:
    """Acquire a permit that counts as two."""
    permit = await job.acquire(permits=2)
    await job.pause("to release")
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
            await job.pause("to release")
            await job.release(permit)


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
    job.world.mail.append(await job.detach(permit, 20.0))


async def sends_twice(job: Job) -> None:
    """The same, and the job that carries the id is delivered twice."""
    await sends(job)
    job.world.mail.append(job.world.mail[0])


async def adopts(job: Job) -> None:
    """Adopt what is sent."""
    with suppress(PermitLost):
        permit = await job.adopt(await job.mail())
        await job.pause("to release")
        await job.release(permit)


async def limits(job: Job) -> None:
    """Set a limit, and then another."""
    await job.set_limit(3)
    await job.set_limit(2)


async def pauses(job: Job) -> None:
    """Let nobody in for a while."""
    await job.set_limit(0)
    await job.set_limit(None)


async def clears(job: Job) -> None:
    """Clear, and then acquire."""
    await job.clear()
    await holds(job)


def _scenarios(mode: Mode) -> Iterator[Scenario]:
    more = int(LONG)
    still = Party((holds,), cancels=(), breaks=False, dies=False)
    waiter = still if LONG else replace(still, scripts=(stays,))
    open_minded = Party((holds,))
    yield Scenario(
        *("a cancellation", mode, (still, open_minded, replace(waiter, cancels=(0,) * more))),
        Budget(cancels=1 + more),
        opening=() if LONG else opened((0, 0)),
    )
    yield Scenario(
        *("a lost link and a cancellation", mode, (open_minded, still)),
        Budget(cancels=1, cuts=1, lates=more),
        opening=() if LONG else opened((1, 0)),
    )
    yield Scenario(
        *("a lost link and late commands", mode, (open_minded, still)),
        Budget(cuts=1, unnoticed=1, lates=1 + more),
        opening=() if LONG else opened((1, 0)),
    )
    yield Scenario(
        *("a waiter's deadline", mode, (still, Party((tries,)))),
        Budget(cancels=more, ticks=1 + more, cuts=more),
        opening=opened((0, 0), (1, 0)),
        grain=0.2,
    )
    if LONG:  # or else a part of "a detach, again"
        yield Scenario(
            *("a detach that is cancelled", mode, (Party((detaches,)), waiter)),
            Budget(cancels=1, ticks=2),
            opening=opened((0, 0)),
        )
    yield Scenario(
        *("a detach that is lost", mode, (Party((detaches,), cancels=()), waiter)),
        Budget(cuts=1, ticks=1 + more, lates=more),
        opening=opened((0, 0)) if LONG else (*opened((0, 0), (1, 0)), ("go", 0, 0)),
    )
    yield Scenario(
        *("a detach, again", mode, (Party((detaches_again,)), waiter)),
        Budget(cancels=1, ticks=1, cuts=more, lates=more),
        opening=(*opened((0, 0), (1, 0)), ("go", 0, 0)),
        grain=0.05 if LONG else 0.4,
    )
    sender = replace(still, scripts=(sends,))
    yield Scenario(
        "an adoption and a cancelled acquire",
        mode,
        (sender, Party((adopts, holds), cancels=(1,))),
        Budget(cancels=1, cuts=1, lates=more),
        opening=opened((0, 0)) + tuple(("go", 1, k) for k in (0, 0, 1)),
    )
    yield Scenario(
        *("an adoption that is cancelled", mode, (sender, Party((adopts,)))),
        Budget(cancels=1, cuts=1, lates=1),
        opening=opened((0, 0)),
    )
    yield Scenario(
        *(
            "two adopters",
            mode,
            (replace(sender, scripts=(sends_twice,)), Party((adopts, adopts))),
        ),
        Budget(cuts=1, lates=more, cancels=more),
        opening=opened((0, 0), (1, 0), (1, 1)),
    )
    yield Scenario(
        *("two limits", mode, (Party((limits,)), still)),
        Budget(cuts=1, lates=1, cancels=more),
        most=3,
    )
    yield Scenario(
        *("a pause", mode, (Party((pauses,)), still)),
        Budget(cuts=1, lates=1),
    )
    yield Scenario(
        *("a clear", mode, (Party((clears,)), still)),
        Budget(cuts=1, lates=1, cancels=more),
        opening=() if LONG else opened((1, 0)),
    )
    yield Scenario(
        *(
            "weights",
            mode,
            (Party((holds_two,), 2), replace(still, limit=2), replace(still, limit=2)),
        ),
        Budget(cancels=1),
        opening=() if LONG else opened((2, 0), (0, 0)),
    )
    yield Scenario(
        "mixed limits",
        mode,
        (Party((holds,), 2), Party((holds,), 1), Party((holds, holds), 2)),
        Budget(cancels=more),
        opening=opened((0, 0), (2, 0), (1, 0), (2, 1)),
    )
    short = replace(still, lease=3.0)
    yield Scenario(
        *("a process dies", mode, (replace(short, dies=True), short)),
        Budget(kills=1, unnoticed=1, ticks=more),
    )
    yield Scenario(
        *("a process stands still", mode, (replace(short, dies=True), replace(waiter, lease=3.0))),
        Budget(stops=1, ticks=1 + more),
        grain=1.6,
        opening=() if LONG else opened((0, 0), (1, 0)),
    )


MODES: tuple[Mode, Mode] = ("fair", "zset")
# What neither mode does in a way of its own is explored in one of them when time is short.
ALIKE = re.compile("adopt|detach, again|two limits|pause|clear|stands still")
SCENARIOS = [
    scenario
    for mode in MODES
    for scenario in _scenarios(mode)
    if LONG or mode == "fair" or not ALIKE.search(scenario.name)
]
