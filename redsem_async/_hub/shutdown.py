"""The end of a program that does not close its clients. What its tasks still say is sent.

``asyncio.run`` cancels every task at its end. Those that hold a permit release it then, which may
take a while. When none of them is left, the rest is released.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakSet

from .endings import close
from .model import Lease
from .pipeline import Pipeline
from .state import SemaphoreState

DRAIN = 10.0  # seconds for the tasks that were cancelled together with the connector's
FINAL = 1.0  # seconds for what is left to be sent

CONNECTORS: WeakSet["asyncio.Task[None]"] = WeakSet()
"""The tasks of every hub that keep connections. They do not wait for each other."""


async def drain(pipeline: Pipeline, connect: Callable[[], Awaitable[None]]) -> None:
    """Wait for the other tasks, release what is held then, and send what is left."""
    loop = pipeline.identity.loop
    deadline = loop.time() + DRAIN
    while pipeline.has_work() and (left := deadline - loop.time()) > 0:
        # Not by a difference of sets, because other threads may add and drop connectors' tasks.
        others = [task for task in asyncio.all_tasks() if task not in CONNECTORS]
        if not others:
            break
        await _reconnect(pipeline, connect, min(left, FINAL))
        intervals = (lease.terms.refresh_interval for _, lease in _held(pipeline))
        pause = min(left, pipeline.reply_timeout, *intervals)
        waited = [*others, pipeline.quiet()]
        await asyncio.wait(waited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        for semaphore, lease in _held(pipeline):
            _ = semaphore.refresh(lease)
            pipeline.settle(semaphore)
    release_all(pipeline)
    await _send_the_rest(pipeline, connect)


def release_all(pipeline: Pipeline) -> None:
    """Release every permit. Their holders lose them."""
    for semaphore, lease in _held(pipeline):
        close(semaphore, lease)
        pipeline.settle(semaphore)


def _held(pipeline: Pipeline) -> list[tuple[SemaphoreState, Lease]]:
    semaphores = list(pipeline.semaphores.values())
    return [(each, lease) for each in semaphores for lease in each.holding()]


async def _send_the_rest(pipeline: Pipeline, connect: Callable[[], Awaitable[None]]) -> None:
    loop = pipeline.identity.loop
    deadline = loop.time() + FINAL
    while pipeline.has_work() and (left := deadline - loop.time()) > 0:
        await _reconnect(pipeline, connect, left)
        await asyncio.wait([pipeline.quiet()], timeout=left)


async def _reconnect(
    pipeline: Pipeline, connect: Callable[[], Awaitable[None]], seconds: float
) -> None:
    if pipeline.state.link is None:
        with suppress(Exception):
            async with asyncio.timeout(seconds):
                await connect()
