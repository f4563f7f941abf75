"""The demo from its start to its record."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, replace

from rich.console import Console
from rich.markup import escape

from redsem_async import FairSemaphore, SemaphoreError, from_url
from redsem_async.cli._server import first, served

from ._fault import strike
from ._fleet import Fleet, Worker
from ._picture import Picture
from ._pipes import Child, Event
from ._plan import Plan, UpstreamSetup, WorkerSetup
from ._record import Record, Round


def run(plan: Plan, url: str | None, console: Console) -> Record:
    """Run the demo on the Redis at *url*, or on a server of its own.

    Whatever ends it, Ctrl-C among it, nothing that it started is left behind.

    Raises:
        ServerNotFound, ServerDidNotStart: there is no server of its own.
        SemaphoreError: Redis could not be asked, or refused.
    """
    picture = Picture(plan, console)
    with served(url) as (address, server):
        picture.say(f"Redis: {escape(server)}")
        try:
            return asyncio.run(_demo(plan, address, server, picture))
        except ExceptionGroup as group:
            raise first(group) from None


async def _demo(plan: Plan, url: str, server: str, picture: Picture) -> Record:
    count = plan.requests
    visits: list[Event] = []
    async with (
        _semaphore(plan, url) as semaphore,
        _stage(plan, url, semaphore.name, picture, visits) as fleet,
        picture.moving(fleet),
    ):
        picture.begin(f"1. {count} requests without a semaphore")
        fleet.begin("bare", range(1, count + 1))
        bare = await fleet.finished()
        picture.end(bare, fleet)

        picture.begin(f"2. {count} requests with {semaphore!r}, lease {plan.lease:g} s")
        fleet.begin("guarded", range(count + 1, 2 * count + 1))
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(_look(semaphore, picture))
            killing = group.create_task(strike(plan, fleet, semaphore, picture.say))
            guarded = await fleet.finished()
            picture.end(guarded, fleet)
            kill = await killing
            looking.cancel()
    # Only now has the upstream had its last word.
    return Record(plan, server, _with_visits(bare, visits), _with_visits(guarded, visits), kill)


@contextlib.asynccontextmanager
async def _semaphore(plan: Plan, url: str) -> AsyncGenerator[FairSemaphore]:
    """The semaphore under show, under a name of its own; it is deleted in the end."""
    async with from_url(url) as redis:
        name = f"demo-{secrets.token_hex(4)}"
        semaphore = FairSemaphore(redis, name, plan.limit, lease=plan.lease, label="demo")
        async with semaphore.acquire(timeout=0):
            pass  # If Redis is not to be reached, this says so.
        try:
            yield semaphore
        finally:
            with contextlib.suppress(SemaphoreError):
                await semaphore.clear()


@contextlib.asynccontextmanager
async def _stage(
    plan: Plan, url: str, semaphore: str, picture: Picture, visits: list[Event]
) -> AsyncGenerator[Fleet]:
    """Upstream and workers, ready to go; and gone, all of them, at the end."""
    # The group outlives them: its listeners miss no word.
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_child("upstream", UpstreamSetup(plan.limit)))
        events = upstream.events()
        address = f"http://127.0.0.1:{(await anext(events)).number}"
        group.create_task(_note(events, visits, picture))
        picture.say(f"upstream: takes {plan.limit} requests at once, answers 429 to others")

        workers: list[Worker] = []
        for number in range(1, plan.workers + 1):
            label = f"worker {number}"
            setup = WorkerSetup(label, address, url, semaphore, plan.limit, plan.lease)
            child = await stack.enter_async_context(_child("worker", setup))
            workers.append(Worker(label, child))
        fleet = Fleet(workers, plan.slots)
        for worker in workers:
            group.create_task(fleet.listen(worker))
        await fleet.ready()
        pids = ", ".join(str(worker.child.pid) for worker in workers)
        picture.say(f"workers: {plan.workers} processes (pids {pids}), {plan.slots} at once each")
        yield fleet
        for worker in workers:
            worker.child.dismiss()  # all at once; the stack waits for each


def _child(
    module: str, setup: UpstreamSetup | WorkerSetup
) -> contextlib.AbstractAsyncContextManager[Child]:
    return Child.run(f"{__package__}._{module}", asdict(setup))


async def _note(events: AsyncIterator[Event], visits: list[Event], picture: Picture) -> None:
    """Write down what the upstream says."""
    change = {"entered": 1, "left": -1, "refused": 0}
    async for event in events:
        visits.append(event)
        picture.inside += change[event.kind]


async def _look(semaphore: FairSemaphore, picture: Picture) -> None:
    """Look at the semaphore ten times a second, for the picture."""
    while True:
        with contextlib.suppress(SemaphoreError):
            picture.status = await semaphore.status()
        await asyncio.sleep(0.1)


def _with_visits(round_: Round, visits: list[Event]) -> Round:
    own = tuple(event for event in visits if event.number in round_.requests)
    return replace(round_, visits=own)
