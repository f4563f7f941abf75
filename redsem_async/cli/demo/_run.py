"""Runs the demo: two rounds, each with an upstream and with worker processes of its own.

A worker of each round is killed. In the second round its permits are watched until they are free.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from rich.console import Console
from rich.markup import escape

from redsem_async import FairSemaphore, SemaphoreError
from redsem_async.cli._ephemeral import server_for
from redsem_async.cli._target import Target, connected

from ._record import Event, Kill, Plan, Record, Round
from ._show import Display
from ._workers import Upstream, Worker, Workers

_POLL_INTERVAL = 0.01  # seconds between two status queries


def run(plan: Plan, url: str | None, prefix: str, console: Console, *, cluster: bool) -> Record:
    """Run the demo on the Redis or cluster at *url*, or on an embedded server.

    All processes and keys are removed in every case, including Ctrl-C.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
        SemaphoreError, RedisError, OSError: Redis is unreachable or returned an error; also in
            an `ExceptionGroup`.
    """
    display = Display(plan.limit, console)
    with server_for(url, prefix, cluster=cluster) as (target, server):
        display.log(f"Redis: {escape(server)}")
        display.log(f"upstream: accepts {plan.limit} concurrent requests, answers others with 429")
        bare, guarded = asyncio.run(_both_rounds(plan, target, display))
    return Record(plan, server, bare, guarded)


async def _both_rounds(plan: Plan, target: Target, display: Display) -> tuple[Round, Round]:
    count, name = plan.requests, f"demo-{secrets.token_hex(4)}"
    async with connected(target) as client:
        semaphore = FairSemaphore(
            client, name, plan.limit, lease=plan.lease, prefix=target.prefix, label="demo"
        )
        async with semaphore.acquire(timeout=0):
            pass  # Raises if Redis is unreachable.
        try:
            display.begin(f"1. {count} requests without a semaphore")
            bare = await _round(plan, range(1, count + 1), target, display, None)
            display.begin(f"2. {count} requests with {semaphore!r}, lease {plan.lease:g} s")
            requests = range(count + 1, 2 * count + 1)
            guarded = await _round(plan, requests, target, display, semaphore)
        finally:
            with contextlib.suppress(SemaphoreError):
                await semaphore.clear()
    return bare, guarded


async def _round(
    plan: Plan, requests: range, target: Target, display: Display, semaphore: FairSemaphore | None
) -> Round:
    """Have *requests* processed, while holding permits if there is a *semaphore*."""
    events: list[Event] = []
    upstream, workers = Upstream(plan.limit, events), Workers(plan.slots, events)
    options = semaphore and {"name": semaphore.name, "limit": plan.limit, "lease": plan.lease}
    async with upstream.listening() as address:
        setup = {"upstream": address, "target": asdict(target), "semaphore": options}
        async with workers.running(plan.workers, setup), asyncio.TaskGroup() as group:
            pids = ", ".join(str(worker.process.pid) for worker in workers.all)
            display.log(
                f"workers: {plan.workers} processes (pids {pids}), "
                f"{plan.slots} requests at a time each"
            )
            shown = group.create_task(display.show(workers.all, upstream, semaphore))
            began = time.monotonic()
            workers.assign(requests)
            kill = await _kill_one(plan, workers, semaphore, display.log)
            await workers.until(lambda: workers.finished)
            shown.cancel()
    in_order = sorted(events, key=lambda event: event.at)
    round_ = Round(requests, began, tuple(in_order), kill)
    display.end(round_)
    return round_


async def _kill_one(
    plan: Plan, workers: Workers, semaphore: FairSemaphore | None, log: Callable[[str], None]
) -> Kill | None:
    """Kill a worker during more than its share of requests; wait until its permits are free.

    Returns ``None`` if the round ended before.
    """
    share = min(plan.limit // plan.workers + 1, plan.slots - 1)
    # With permits, the others go on in the meantime only if it does not hold all of them.
    most = plan.slots if semaphore is None else plan.limit - 1

    def victim() -> Worker | None:
        busy = [worker for worker in workers.all if share <= len(worker.started) <= most]
        busiest = max(busy, key=lambda worker: len(worker.started), default=None)
        return busiest if workers.answered >= plan.requests // 5 else None

    await workers.until(lambda: workers.finished or victim() is not None)
    worker = victim()
    if worker is None or workers.finished:
        return None
    count, name = len(worker.started), f"{worker.label} (pid {worker.process.pid})"
    kill = await workers.kill(worker)
    if semaphore is None:
        log(f"{name} is killed with SIGKILL during {count} requests")
        return kill
    # A dead process releases nothing: it still holds what it held when it died.
    permits_by_time = [(kill.at, await _permits_of(kill.pid, semaphore))]
    log(f"{name} is killed with SIGKILL while it holds {permits_by_time[0][1]} permits")
    while permits_by_time[-1][1] and time.monotonic() < kill.at + 3 * plan.lease:
        await asyncio.sleep(_POLL_INTERVAL)
        held = await _permits_of(kill.pid, semaphore)
        if held != permits_by_time[-1][1]:
            permits_by_time.append((time.monotonic(), held))
    kill = replace(kill, permits_by_time=tuple(permits_by_time))
    if kill.unavailable is not None:
        log(f"its permits are free again {kill.unavailable:.2f} s later (lease: {plan.lease:g} s)")
    return kill


async def _permits_of(pid: int, semaphore: FairSemaphore) -> int:
    holders = (await semaphore.status()).holders
    return sum(holder.permits for holder in holders if holder.client.pid == pid)
