"""Keeps a connection to one server open for as long as there is work, and a while longer."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from redsem_async._core.clock import now as clock
from redsem_async._protocol.backend import Backend, ConnectionRejected, Link, Node

from .endings import fail_all
from .identity import HubIdentity
from .pipeline import Pipeline
from .redirects import Redirects
from .shutdown import CONNECTORS, FINAL, drain
from .state import SemaphoreState
from .tasks import start_task

IDLE = 5.0  # seconds for which an idle connection is kept


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
            CONNECTORS.add(task)

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
                    async with asyncio.timeout(pipeline.outage.next_attempt()):
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

    async def _drain(self) -> None:
        """Send what the tasks that were cancelled together with this one still say."""
        known = self._open_ones()
        with suppress(asyncio.CancelledError):
            await drain(self.pipeline, self._connect)
            # Where a semaphore turned out to have moved to. The loop does not wait for those.
            for other in self._open_ones() - known:
                await other.pipeline.until_quiet(self._loop.time() + FINAL)
                await other.close()

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
