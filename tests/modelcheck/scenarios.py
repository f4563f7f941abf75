"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from redsem_async import AcquireTimeout, PermitLost
from redsem_async._keys import Mode

from .scenario import Budget, Party, Scenario
from .world import Job

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
                await job.pause("to detach again")
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


def _scenarios() -> Iterator[Scenario]:
    still = Party((holds,), cancels=(), breaks=False)
    more = 1 if LONG else 0
    for mode in MODES:
        yield Scenario(
            *("a cancellation", mode, (Party((holds,)), Party((holds,)), Party((holds,)))),
            Budget(cancels=1 + more),
        )
        yield Scenario(
            *("a lost link and a cancellation", mode, (Party((holds,)), still)),
            Budget(cancels=1, cuts=1, lates=more),
        )
        yield Scenario(
            *("a lost link and late letters", mode, (Party((holds,)), still)),
            Budget(cuts=1, unnoticed=1, lates=1 + more),
        )
        yield Scenario(
            *("a waiter's deadline", mode, (Party((holds,)), Party((tries,)))),
            Budget(cancels=1, ticks=2 + more, cuts=more),
            opening=opened((0, 0), (1, 0)),
            grain=0.2,
        )
        yield Scenario(
            *("a detach that is cancelled", mode, (Party((detaches,)), still)),
            Budget(cancels=1, ticks=1 + more),
            opening=opened((0, 0)),
        )
        yield Scenario(
            *("a detach that is lost", mode, (Party((detaches,), cancels=()), still)),
            Budget(cuts=1, ticks=2, lates=1),
            opening=opened((0, 0)),
        )
        yield Scenario(
            *("a detach, again", mode, (Party((detaches_again,)), still)),
            Budget(cancels=1, ticks=1, cuts=more, lates=more),
            opening=opened((0, 0), (1, 0)),
        )
        adopter = Party((adopts, holds), cancels=(1,))
        yield Scenario(
            *(
                "an adoption, and a cancelled acquire",
                mode,
                (replace(still, scripts=(sends,)), adopter),
            ),
            Budget(cancels=1, cuts=1, lates=more),
            opening=opened((0, 0)),
        )
        yield Scenario(
            *(
                "an adoption that is cancelled",
                mode,
                (Party((sends,), breaks=False), Party((adopts,))),
            ),
            Budget(cancels=1, cuts=1, lates=1),
            opening=opened((0, 0)),
        )
        yield Scenario(
            *(
                "two adopters",
                mode,
                (Party((sends_twice,), breaks=False), Party((adopts, adopts))),
            ),
            Budget(cuts=1, lates=1, cancels=more),
            opening=opened((0, 0)),
        )
        yield Scenario(
            *("two limits", mode, (Party((limits,)), Party((holds,), breaks=False))),
            Budget(cuts=1, lates=1, cancels=more),
            most=3,
        )
        yield Scenario(
            *("a pause", mode, (Party((pauses,)), still)),
            Budget(cuts=1, lates=1),
        )
        yield Scenario(
            *("a clear", mode, (Party((clears,)), still)),
            Budget(cuts=1, lates=1),
        )
        yield Scenario(
            *("weights", mode, (Party((holds_two,), 2), Party((holds,), 2), Party((holds,), 2))),
            Budget(cancels=1),
        )
        yield Scenario(
            "mixed limits",
            mode,
            (Party((holds,), 2), Party((holds,), 1), Party((holds, holds), 2)),
            Budget(cancels=1),
            opening=opened((0, 0), (2, 0), (1, 0), (2, 1)),
        )
        yield Scenario(
            *(
                "a process dies",
                mode,
                (Party((holds,), lease=3.0), replace(still, dies=False, lease=3.0)),
            ),
            Budget(kills=1, unnoticed=1, ticks=more),
        )
        yield Scenario(
            *(
                "a process stands still",
                mode,
                (Party((holds,), lease=3.0), replace(still, lease=3.0)),
            ),
            Budget(stops=1, ticks=1 + more),
            grain=1.6,
        )


MODES: tuple[Mode, Mode] = ("fair", "zset")
SCENARIOS = list(_scenarios())
