"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
from contextlib import suppress

from redsem_async import AcquireTimeout, PermitLost

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


async def detaches(job: Job) -> None:
    """Acquire, and detach for a short time; hold on to it where that does not work."""
    permit = await job.acquire()
    try:
        with suppress(PermitLost):
            await job.detach(permit, 0.5)
    finally:
        if permit in job.process.permits:
            await job.pause("to release")
            await job.release(permit)


async def sends(job: Job) -> None:
    """Acquire, detach for long, and send the id."""
    permit = await job.acquire()
    job.world.mail.append(await job.detach(permit, 20.0))


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


async def clears(job: Job) -> None:
    """Clear, and then acquire."""
    await job.clear()
    await holds(job)


CANCEL = Scenario(
    "acquire and cancel",
    "fair",
    (Party((holds,)), Party((holds,))),
    Budget(cancels=1, cuts=1, lates=1),
)
DETACH = Scenario(
    "detach",
    "fair",
    (Party((detaches,)), Party((holds,))),
    Budget(cancels=1, ticks=1),
)
DETACH_CUT = Scenario(
    "detach, reply lost",
    "fair",
    (Party((detaches,)), Party((holds,))),
    Budget(cuts=1, ticks=2),
)
ADOPT = Scenario(
    "adopt and acquire",
    "fair",
    (Party((sends,), breaks=False), Party((adopts, holds), cancels=(1,))),
    Budget(cancels=1, cuts=1),
    opening=(("go", 0, 0), ("run", 0, 0), ("hear", 0, 0), ("run", 0, 0), ("hear", 0, 0)),
)
LIMIT = Scenario(
    "limits",
    "fair",
    (Party((limits,)),),
    Budget(cuts=1, lates=1),
    most=3,
)
CLEAR = Scenario(
    "clear",
    "fair",
    (Party((clears,)),),
    Budget(cuts=1, lates=1),
)
HINT = Scenario(
    "hint",
    "zset",
    (Party((holds,), limit=2), Party((holds,), limit=1), Party((holds, holds), limit=2)),
    Budget(cancels=0),
    opening=opened((0, 0), (2, 0), (1, 0), (2, 1)),
)
