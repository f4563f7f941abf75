"""Kills a worker that holds permits, and measures when its permits are free again."""

import asyncio
import time
from collections.abc import Callable

from redsem_async import FairSemaphore, SemaphoreStatus

from ._plan import Plan
from ._record import Kill
from ._workers import Worker, Workers

_POLL_INTERVAL = 0.01  # seconds between two status queries


async def kill_worker(
    plan: Plan, workers: Workers, semaphore: FairSemaphore, log: Callable[[str], None]
) -> Kill | None:
    """Kill a worker and wait until its permits are free.

    Returns ``None`` if the round ended before a worker held enough permits.
    """
    await workers.until(
        lambda: len(workers.answers) >= plan.kill_after or workers.finished_or_dead
    )
    victim, client = await _busiest(plan, workers, semaphore)
    if victim is None:
        return None
    returncode = await victim.child.kill()
    at = time.monotonic()
    # A dead process releases nothing: it still holds what it held when it died.
    held = _held_by(client, await semaphore.status())
    log(
        f"{victim.label} (pid {victim.child.pid}) is killed with SIGKILL"
        f" while it holds {held} permits"
    )
    permits_by_time = await _watch_permits(
        client, held, at, semaphore, give_up=at + 3 * plan.lease
    )
    if not permits_by_time[-1][1]:
        later = permits_by_time[-1][0] - at
        log(f"its permits are free again {later:.2f} s later (lease: {plan.lease:g} s)")
    await workers.until(lambda: victim.unfinished is not None)
    assert victim.unfinished is not None
    return Kill(
        worker=victim.label,
        pid=victim.child.pid,
        returncode=returncode,
        at=at,
        permits_by_time=permits_by_time,
        lost=victim.unfinished.lost,
        passed_on=victim.unfinished.passed_on,
    )


async def _busiest(
    plan: Plan, workers: Workers, semaphore: FairSemaphore
) -> tuple[Worker | None, str]:
    """A worker with more than its share of the permits, and its client id."""
    wanted = min(plan.limit // plan.workers + 1, plan.slots - 1)
    by_pid = {worker.child.pid: worker for worker in workers.workers}
    while not workers.finished_or_dead:
        status = await semaphore.status()
        for holder in status.holders:
            client = holder.client
            if client.pid in by_pid and _held_by(client.id, status) >= wanted:
                return by_pid[client.pid], client.id
        await asyncio.sleep(_POLL_INTERVAL)
    return None, ""


def _held_by(client: str, status: SemaphoreStatus) -> int:
    return sum(holder.permits for holder in status.holders if holder.client.id == client)


async def _watch_permits(
    client: str, held: int, at: float, semaphore: FairSemaphore, *, give_up: float
) -> tuple[tuple[float, int], ...]:
    """The permits of the killed *client*: each change with its time."""
    permits_by_time = [(at, held)]
    while permits_by_time[-1][1] and time.monotonic() < give_up:
        await asyncio.sleep(_POLL_INTERVAL)
        held = _held_by(client, await semaphore.status())
        if held != permits_by_time[-1][1]:
            permits_by_time.append((time.monotonic(), held))
    return tuple(permits_by_time)
