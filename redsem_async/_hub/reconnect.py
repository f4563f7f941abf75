"""Keeps a connection to one server open for as long as there is work, and a while longer."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from weakref import WeakSet

from redsem_async._core.clock import now as clock
from redsem_async._protocol.backend import Backend, ConnectionRejected, Link, Node

from .endings import close, fail_all
from .identity import HubIdentity, start_task
from .model import Lease
from .pipeline import Pipeline
from .redirects import Redirects
from .state import SemaphoreState

IDLE = 5.0  # seconds for which an idle connection is kept
DRAIN = 10.0  # seconds for the tasks that were cancelled together with the connector's
FINAL = 1.0  # seconds for what is left to be sent

_CONNECTORS: WeakSet["asyncio.Task[None]"] = WeakSet()
"""The tasks of every hub that keep connections. They do not wait for each other."""


class Connector:
    """Connects a pipeline, again and again, in a task that comes and goes with the work.

    *move* gives a semaphore to the pipeline of another node. *open_ones* has the connectors that
    keep a connection. *closed* is awaited when this one has closed its connection.
    """

    def __init__(
        self,
        identity: HubIdentity,
        backend: Backend,
        node: Node,
        *,
        move: Callable[[SemaphoreState, Node], None],
        open_ones: Callable[[], "set[Connector]"],
        closed: Callable[["Connector"], Awaitable[None]],
    ) -> None:
        self.node: Node = node
        self.pipeline: Pipeline = Pipeline(
            identity, node, Redirects(identity.loop, backend, node, move), self._start
        )
        self._identity = identity
        self._loop = identity.loop
        self._open_ones = open_ones
        self._closed = closed
        self._begun = False  # the task runs, and will clean up

    @property
    def open(self) -> bool:
        """Whether a connection is kept, or being opened."""
        return self.pipeline.state.keeper is not None

    def leave(self) -> None:
        """Close the connection, if there is one, as soon as there is nothing to do."""
        self.pipeline.leaving = self.open
        self.pipeline.stirred.set()

    def _start(self) -> None:
        if not self.open:
            task = start_task(self._loop, self._run(), "redsem-hub")
            self.pipeline.state.keeper = task
            _CONNECTORS.add(task)

    async def _run(self) -> None:
        """Hold a connection open."""
        pipeline = self.pipeline
        self._begun = True
        try:
            while True:
                pipeline.stirred.clear()
                if pipeline.state.link is None:
                    await self._connect()
                if pipeline.state.link is None and not pipeline.has_work():
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await pipeline.stirred.wait()
                unused = pipeline.leaving or clock() - pipeline.active_at >= IDLE
                if unused and not pipeline.has_work():
                    break
        except asyncio.CancelledError:
            if not self._identity.closing:
                await self._drain()
            raise
        finally:
            if not self._loop.is_closed():
                await self._end()

    async def _connect(self) -> None:
        pipeline, state = self.pipeline, self.pipeline.state
        link: Link | None = None
        explore: asyncio.Task[None] | None = None
        if pipeline.lost:
            # Meanwhile, and not before, because other nodes may be silent where this one is not.
            pipeline.lost = False
            explore = self._explore()
        try:
            while pipeline.has_work():
                state.no_push, state.round_trip = False, math.inf
                try:
                    link = await self.node.connect(pipeline)
                    break
                except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
                    if isinstance(error, ConnectionRejected) and not self._identity.admitted:
                        for semaphore in list(pipeline.semaphores.values()):
                            fail_all(semaphore, partial(semaphore.route.rejected, error))
                            pipeline.settle(semaphore)
                    else:
                        explore = explore or self._explore()
                        await asyncio.wait([explore])
                        explore = None
                        pipeline.outage.begin(error, ends_not_waiting=True)
                pipeline.probe.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(next(pipeline.outage.attempts)):
                        await pipeline.probe.wait()
        finally:
            if explore is not None:
                explore.cancel()
        if link is not None:
            pipeline.connected(link)

    def _explore(self) -> "asyncio.Task[None]":
        pipeline = self.pipeline
        exploring = pipeline.redirects.explore(pipeline.semaphores)
        return start_task(self._loop, exploring, "redsem-explore")

    # -- the end of a program that does not close its clients
    #
    # ``asyncio.run`` cancels every task at its end. Those that hold a permit release it then, and
    # that may take a while. When none of them is left, the rest is released.

    async def _drain(self) -> None:
        """Send what the tasks that were cancelled together with this one still say."""
        known = self._open_ones()
        with suppress(asyncio.CancelledError):
            await self._wait_for_others()
            release_all(self.pipeline)
            await self._send_the_rest()
            # Where a semaphore turned out to have moved to. The loop does not wait for those.
            for other in self._open_ones() - known:
                await other.pipeline.until_quiet(self._loop.time() + FINAL)
                await other.close()

    async def _wait_for_others(self) -> None:
        """Wait until no other task is left, and keep the permits that they hold."""
        pipeline, loop = self.pipeline, self._loop
        deadline = loop.time() + DRAIN
        while pipeline.has_work() and (left := deadline - loop.time()) > 0:
            # No difference of sets, because other threads may add and drop connectors' tasks.
            others = [task for task in asyncio.all_tasks() if task not in _CONNECTORS]
            if not others:
                break
            await self._reconnect(min(left, FINAL))
            intervals = (lease.terms.refresh_interval for _, lease in _held(pipeline))
            pause = min(left, pipeline.reply_timeout, *intervals)
            waited = [*others, pipeline.quiet()]
            await asyncio.wait(waited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for semaphore, lease in _held(pipeline):
                _ = semaphore.refresh(lease)
                pipeline.settle(semaphore)

    async def _send_the_rest(self) -> None:
        deadline = self._loop.time() + FINAL
        while self.pipeline.has_work() and (left := deadline - self._loop.time()) > 0:
            await self._reconnect(left)
            await asyncio.wait([self.pipeline.quiet()], timeout=left)

    async def _reconnect(self, seconds: float) -> None:
        if self.pipeline.state.link is None:
            with suppress(Exception):
                async with asyncio.timeout(seconds):
                    await self._connect()

    # -- closing

    async def _end(self) -> None:
        """Close the connection."""
        self.pipeline.state.keeper, self._begun = None, False
        link = self.pipeline.forget()
        try:
            await self._closed(self)
        finally:
            if link is not None:
                await link.close()

    async def close(self) -> None:
        """End at once, because nothing is left to be sent."""
        state = self.pipeline.state
        if state.keeper is not None:
            task, state.keeper = state.keeper, None
            begun = self._begun
            task.cancel()
            await asyncio.wait([task])
            if not begun:
                await self._end()


def release_all(pipeline: Pipeline) -> None:
    """Release every permit. Their holders lose them."""
    for semaphore, lease in _held(pipeline):
        close(semaphore, lease)
        pipeline.settle(semaphore)


def _held(pipeline: Pipeline) -> list[tuple[SemaphoreState, Lease]]:
    semaphores = list(pipeline.semaphores.values())
    return [(each, lease) for each in semaphores for lease in each.holding()]
