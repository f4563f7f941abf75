"""Kills a worker in each round, and measures when its permits are free again."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from redsem_async import FairSemaphore, SemaphoreStatus

from ._plan import Plan
from ._record import Kill
from ._workers import Worker, Workers

_POLL_INTERVAL = 0.01  # seconds between two status queries

Log = Callable[[str], None]


async def kill_worker(plan: Plan, workers: Workers, log: Log) -> Kill | None:
    """Kill the worker that has begun most requests.

    Returns ``None`` if the round ended before.
    """
    await _time_to_kill(plan, workers)
    if workers.finished_or_dead:
        return None
    victim = max(workers.workers, key=lambda worker: len(worker.started))
    log(f"{_name(victim)} is killed with SIGKILL during {len(victim.started)} requests")
    return await _kill(workers, victim)


async def kill_holder(
    plan: Plan, workers: Workers, semaphore: FairSemaphore, log: Log
) -> Kill | None:
    """Kill a worker that holds permits, and wait until they are free.

    Returns ``None`` if the round ended before a worker held enough permits.
    """
    await _time_to_kill(plan, workers)
    victim, client = await _busiest(plan, workers, semaphore)
    if victim is None:
        return None
    kill = await _kill(workers, victim)
    # A dead process releases nothing: it still holds what it held when it died.
    held = _held_by(client, await semaphore.status())
    log(f"{_name(victim)} is killed with SIGKILL while it holds {held} permits")
    permits_by_time = await _watch_permits(
        client, held, kill.at, semaphore, give_up=kill.at + 3 * plan.lease
    )
    if not permits_by_time[-1][1]:
        later = permits_by_time[-1][0] - kill.at
        log(f"its permits are free again {later:.2f} s later (lease: {plan.lease:g} s)")
    return replace(kill, permits_by_time=permits_by_time)


async def _time_to_kill(plan: Plan, workers: Workers) -> None:
    await workers.until(
        lambda: len(workers.answers) >= plan.kill_after or workers.finished_or_dead
    )


def _name(worker: Worker) -> str:
    return f"{worker.label} (pid {worker.child.pid})"


async def _kill(workers: Workers, victim: Worker) -> Kill:
    returncode = await victim.child.kill()
    at = time.monotonic()
    await workers.until(lambda: victim.unfinished is not None)
    assert victim.unfinished is not None
    lost, passed_on = victim.unfinished.lost, victim.unfinished.passed_on
    return Kill(victim.label, victim.child.pid, returncode, at, lost, passed_on)


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
