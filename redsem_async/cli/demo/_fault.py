"""The fault: a worker is killed while it holds permits, and its places are watched."""

import asyncio
import time
from collections.abc import Callable

from redsem_async import FairSemaphore, SemaphoreStatus

from ._fleet import Fleet, Worker
from ._plan import Plan
from ._record import Kill

_LOOK = 0.01  # seconds between two looks at the semaphore


async def strike(
    plan: Plan, fleet: Fleet, semaphore: FairSemaphore, say: Callable[[str], None]
) -> Kill | None:
    """Kill a worker, and return when its places are back; ``None`` if there was no occasion."""
    await fleet.until(lambda: len(fleet.answers) >= plan.kill_after or fleet.idle)
    victim, client = await _busiest(plan, fleet, semaphore)
    if victim is None:
        return None
    returncode = await victim.child.kill()
    at = time.monotonic()
    # The dead release nothing: what it holds from here on is what it held when it died.
    held = _held_by(client, await semaphore.status())
    say(f"{victim.label} (pid {victim.child.pid}) is killed with SIGKILL: it held {held} permits")
    places = await _watch(client, held, at, semaphore, give_up=at + 3 * plan.lease)
    if not places[-1][1]:
        say(f"its places are back, {places[-1][0] - at:.2f} s later (lease: {plan.lease:g} s)")
    await fleet.until(lambda: victim.left is not None)
    assert victim.left is not None
    return Kill(
        worker=victim.label,
        pid=victim.child.pid,
        returncode=returncode,
        at=at,
        places=places,
        lost=victim.left.lost,
        passed_on=victim.left.passed_on,
    )


async def _busiest(
    plan: Plan, fleet: Fleet, semaphore: FairSemaphore
) -> tuple[Worker | None, str]:
    """A worker with more than its share of the permits, and its name in the semaphore."""
    wanted = min(plan.limit // plan.workers + 1, plan.slots - 1)
    by_pid = {worker.child.pid: worker for worker in fleet.workers}
    while not fleet.idle:
        status = await semaphore.status()
        for holder in status.holders:
            client = holder.client
            if client.pid in by_pid and _held_by(client.id, status) >= wanted:
                return by_pid[client.pid], client.id
        await asyncio.sleep(_LOOK)
    return None, ""


def _held_by(client: str, status: SemaphoreStatus) -> int:
    return sum(holder.permits for holder in status.holders if holder.client.id == client)


async def _watch(
    client: str, held: int, at: float, semaphore: FairSemaphore, *, give_up: float
) -> tuple[tuple[float, int], ...]:
    """How many permits the dead *client* held, from each instant at which that changed."""
    places = [(at, held)]
    while places[-1][1] and time.monotonic() < give_up:
        await asyncio.sleep(_LOOK)
        held = _held_by(client, await semaphore.status())
        if held != places[-1][1]:
            places.append((time.monotonic(), held))
    return tuple(places)
