"""Runs both rounds of the demo, and returns the record."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, replace

from rich.console import Console
from rich.markup import escape

from redsem_async import FairSemaphore, SemaphoreError
from redsem_async.cli._ephemeral import first_error, server_for
from redsem_async.cli._target import Target, connected

from ._display import Display
from ._ipc import Child, Event
from ._kill import kill_holder, kill_worker
from ._plan import Plan, UpstreamSetup, WorkerSetup
from ._record import Record
from ._workers import Worker, Workers


def run(plan: Plan, url: str | None, prefix: str, console: Console, *, cluster: bool) -> Record:
    """Run the demo on the Redis or cluster at *url*, or on an embedded server.

    All processes and keys are removed in every case, including Ctrl-C.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
        SemaphoreError, RedisError, OSError: Redis is unreachable or returned an error.
    """
    display = Display(plan, console)
    with server_for(url, prefix, cluster=cluster) as (target, server):
        display.log(f"Redis: {escape(server)}")
        try:
            return asyncio.run(_demo(plan, target, server, display))
        except ExceptionGroup as group:
            raise first_error(group) from None


async def _demo(plan: Plan, target: Target, server: str, display: Display) -> Record:
    count = plan.requests
    display.log(f"upstream: accepts {plan.limit} concurrent requests, answers others with 429")
    async with _semaphore(plan, target) as semaphore:
        title = f"1. {count} requests without a semaphore"
        async with _round(plan, target, semaphore, display, title) as (workers, visits):
            workers.begin("bare", range(1, count + 1))
            kill = await kill_worker(plan, workers, display.log)
            bare = await workers.finished()
            display.end(bare, workers)
        # The upstream has ended: its list of visits is complete.
        bare = replace(bare, visits=tuple(visits), kill=kill)

        title = f"2. {count} requests with {semaphore!r}, lease {plan.lease:g} s"
        async with (
            _round(plan, target, semaphore, display, title) as (workers, visits),
            asyncio.TaskGroup() as group,
        ):
            workers.begin("guarded", range(count + 1, 2 * count + 1))
            polling = group.create_task(_poll_status(semaphore, display))
            killer = group.create_task(kill_holder(plan, workers, semaphore, display.log))
            guarded = await workers.finished()
            display.end(guarded, workers)
            kill = await killer
            polling.cancel()
        guarded = replace(guarded, visits=tuple(visits), kill=kill)
    return Record(plan, server, bare, guarded)


@contextlib.asynccontextmanager
async def _round(
    plan: Plan, target: Target, semaphore: FairSemaphore, display: Display, title: str
) -> AsyncGenerator[tuple[Workers, list[Event]]]:
    """The workers of a round, and the visits that the upstream records."""
    display.begin(title)
    visits: list[Event] = []
    async with (
        _processes(plan, target, semaphore.name, display, visits) as workers,
        display.live(workers),
    ):
        yield workers, visits


@contextlib.asynccontextmanager
async def _semaphore(plan: Plan, target: Target) -> AsyncGenerator[FairSemaphore]:
    """The semaphore of the demo, with a random name; deleted at the end."""
    async with connected(target) as client:
        name = f"demo-{secrets.token_hex(4)}"
        semaphore = FairSemaphore(
            client, name, plan.limit, lease=plan.lease, prefix=target.prefix, label="demo"
        )
        async with semaphore.acquire(timeout=0):
            pass  # Raises if Redis is unreachable.
        try:
            yield semaphore
        finally:
            with contextlib.suppress(SemaphoreError):
                await semaphore.clear()


@contextlib.asynccontextmanager
async def _processes(
    plan: Plan, target: Target, semaphore: str, display: Display, visits: list[Event]
) -> AsyncGenerator[Workers]:
    """Start upstream and workers; all of them have ended after the block."""
    # The group outlives the processes, so that its tasks read all events.
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_child("upstream", UpstreamSetup(plan.limit)))
        events = upstream.events()
        address = f"http://127.0.0.1:{(await anext(events)).number}"
        group.create_task(_record_visits(events, visits, display))

        started: list[Worker] = []
        for number in range(1, plan.workers + 1):
            label = f"worker {number}"
            setup = WorkerSetup(label, address, asdict(target), semaphore, plan.limit, plan.lease)
            child = await stack.enter_async_context(_child("worker", setup))
            started.append(Worker(label, child))
        workers = Workers(started, plan.slots)
        for worker in started:
            group.create_task(workers.follow(worker))
        await workers.ready()
        pids = ", ".join(str(worker.child.pid) for worker in started)
        display.log(
            f"workers: {plan.workers} processes (pids {pids}), "
            f"{plan.slots} requests at a time each"
        )
        yield workers
        for worker in started:
            worker.child.close_stdin()  # all at once; the stack waits for each


def _child(
    module: str, setup: UpstreamSetup | WorkerSetup
) -> contextlib.AbstractAsyncContextManager[Child]:
    return Child.run(f"{__package__}._{module}", asdict(setup))


async def _record_visits(
    events: AsyncIterator[Event], visits: list[Event], display: Display
) -> None:
    """Record the events of the upstream."""
    change = {"entered": 1, "left": -1, "refused": 0}
    async for event in events:
        visits.append(event)
        display.inside += change[event.kind]


async def _poll_status(semaphore: FairSemaphore, display: Display) -> None:
    """Query the status ten times a second, for the display."""
    while True:
        with contextlib.suppress(SemaphoreError):
            display.status = await semaphore.status()
        await asyncio.sleep(0.1)
