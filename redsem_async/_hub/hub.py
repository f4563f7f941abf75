"""One hub for each connection pool and event loop, which gives every semaphore a pipeline.

Outside of a cluster there is one pipeline. In a cluster there is one for each node that keeps a
semaphore, and semaphores move between them as slots do.
"""

import asyncio
import math
import os
from contextlib import suppress
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreClosed
from redsem_async._core.keys import Address, new_hub_id
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import Backend, ConnectionRejected, Link, Node

from .endings import close, fail_all, fail_waiting
from .identity import HUB_TASKS, HubIdentity, start_task
from .model import Lease
from .pipeline import Pipeline
from .redirects import Redirects
from .refresher import Refresher
from .remote_semaphore import RemoteSemaphore
from .state import SemaphoreState

IDLE = 5.0  # seconds for which an idle connection is kept
DRAIN = 10.0  # seconds for the tasks that were cancelled together with the connector's
FINAL = 1.0  # seconds for what is left to be sent


class Hub:
    """Talks to one backend on one event loop, for all semaphores of a connection pool.

    Attributes:
        refresher: keeps the permits of its semaphores.
    """

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self.backend: Backend = backend
        self.identity: HubIdentity = HubIdentity(loop)
        self.refresher: Refresher = Refresher(self.identity)
        self._closings = 0  # calls of aclose that have not ended
        self._semaphores: WeakValueDictionary[Address, RemoteSemaphore] = WeakValueDictionary()
        self._connectors: dict[Node, Connector] = {}
        _HUBS.add(self)
        backend.on_close(self._owner_closed)

    def semaphore(self, address: Address, label: str | None) -> RemoteSemaphore:
        """The semaphore at *address*, made when first asked for."""
        remote = self._semaphores.get(address)
        if remote is None:
            pipeline = self._pipeline_at(self.backend.node_for(address))
            remote = RemoteSemaphore(self.refresher, address, pipeline, label)
            self._semaphores[address] = remote
            pipeline.add(remote)
        return remote

    # -- pipelines

    def _pipeline_at(self, node: Node) -> Pipeline:
        connector = self._connectors.get(node)
        if connector is None:
            connector = self._connectors[node] = Connector(self, node)
        return connector.pipeline

    def open_ones(self) -> "set[Connector]":
        """The connectors that keep a connection."""
        return {connector for connector in self._connectors.values() if connector.open}

    def move(self, semaphore: SemaphoreState, node: Node) -> None:
        """Another node keeps the semaphore."""
        for connector in self._connectors.values():
            connector.pipeline.semaphores.pop(semaphore.address, None)
        pipeline, remote = self._pipeline_at(node), self._semaphores[semaphore.address]
        pipeline.add(remote)
        if semaphore.timer is not None:
            semaphore.timer.cancel()
            semaphore.timer, semaphore.look_at = None, math.inf
        remote.writer, remote.route.link_state = pipeline, pipeline.link_state
        semaphore.changed.pop(semaphore, None)
        remote.changed = pipeline.changed
        remote.changed.add(remote)
        pipeline.expect_lease(semaphore.shortest_lease)

    def closed(self, connector: "Connector") -> None:
        """*connector* has closed its connection. After the last one the hub gets a new id.

        Not while a semaphore has work that another node will be asked for, such as a permit.
        """
        pipeline = connector.pipeline
        if not pipeline.semaphores and pipeline.outage.logged_since is None:
            self._connectors.pop(connector.node, None)
        if not any(each.open or each.pipeline.has_work() for each in self._connectors.values()):
            self.identity.id = new_hub_id()

    # -- the end

    def _owner_closed(self) -> None:
        """The pool was closed, so keep no connection without work. Called in any thread."""
        if self.identity.usable:
            with suppress(RuntimeError):  # the loop was closed
                self.identity.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for connector in self._connectors.values():
            connector.leave()

    async def aclose(self, drain: float) -> None:
        """End waiting, give holders *drain* seconds, release what they still hold, and close."""
        self._closings += 1
        self.identity.closing = True
        try:
            for remote in list(self._semaphores.values()):
                fail_waiting(remote, partial(SemaphoreClosed, remote.name))
            if drain > 0:
                await self._until_quiet(drain)
            for connector in list(self._connectors.values()):
                release_all(connector.pipeline)
            await self._until_quiet(FINAL)
            for connector in list(self._connectors.values()):  # redirects may have made more
                connector.pipeline.give_up()
            for remote in list(self._semaphores.values()):
                fail_all(remote, partial(SemaphoreClosed, remote.name))
            for connector in list(self._connectors.values()):
                await connector.close()
        finally:
            self._closings -= 1
            self.identity.closing = self._closings > 0

    async def _until_quiet(self, timeout: float) -> None:
        loop = self.identity.loop
        deadline = loop.time() + timeout
        while busy := [c for c in self._connectors.values() if c.pipeline.has_work()]:
            if loop.time() >= deadline:
                break
            await busy[0].pipeline.until_quiet(deadline)

    def orphan(self) -> None:
        """This is a forked child. The connections and all permits are the parent's."""
        self.identity.usable = False
        for remote in list(self._semaphores.values()):
            for lease in remote.holding():
                lease.guard = None
                remote.lose(lease, "the process that held it was forked", expected=True)
        _ORPHANED.append(self)


_HUBS: WeakSet[Hub] = WeakSet()
_BY_OWNER: WeakValueDictionary[tuple[int, int], Hub] = WeakValueDictionary()
_ORPHANED: list[Hub] = []  # kept, so that nothing that they inherited is closed


def _after_fork() -> None:
    observers.forget_parent()
    for hub in list(_HUBS):
        hub.orphan()
    _HUBS.clear()
    _BY_OWNER.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def hub_for(backend: Backend) -> Hub:
    """The hub of the owner of *backend* in the running loop, made when first asked for."""
    hub = known_hub(backend)
    if hub is None or not hub.identity.usable:
        hub = Hub(backend, asyncio.get_running_loop())
        _BY_OWNER[id(backend.owner), id(hub.identity.loop)] = hub
    return hub


def known_hub(backend: Backend) -> Hub | None:
    """The hub of the owner of *backend* in the running loop, if there is one."""
    # A hub keeps both alive, so neither number can come to mean something else meanwhile.
    return _BY_OWNER.get((id(backend.owner), id(asyncio.get_running_loop())))


class Connector:
    """Connects a pipeline, again and again, in a task that comes and goes with the work.

    The connection to one server is kept for as long as there is work, and a while longer.
    """

    def __init__(self, hub: Hub, node: Node) -> None:
        identity = self._identity = hub.identity
        self._hub = hub
        self._loop = identity.loop
        self.node: Node = node
        redirects = Redirects(identity.loop, hub.backend, node, hub.move)
        self.pipeline: Pipeline = Pipeline(identity, node, redirects, self._start)
        self._begun = False  # the task runs, and will clean up

    @property
    def open(self) -> bool:
        """Whether a connection is kept, or being opened."""
        return self.pipeline.link_state.keeper is not None

    def leave(self) -> None:
        """Close the connection, if there is one, as soon as there is nothing to do."""
        self.pipeline.leaving = self.open
        self.pipeline.stirred.set()

    def _start(self) -> None:
        if not self.open:
            task = start_task(self._loop, self._run(), "redsem-hub")
            self.pipeline.link_state.keeper = task

    async def _run(self) -> None:
        """Hold a connection open."""
        pipeline = self.pipeline
        self._begun = True
        try:
            while True:
                pipeline.stirred.clear()
                if pipeline.link_state.link is None:
                    await self._connect()
                if pipeline.link_state.link is None and not pipeline.has_work():
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
        except RuntimeError:
            if not self._loop.is_closed():  # which ended while this was connecting
                raise
        finally:
            if not self._loop.is_closed():
                await self._end()

    async def _connect(self) -> None:
        pipeline, state = self.pipeline, self.pipeline.link_state
        link: Link | None = None
        explore: asyncio.Task[None] | None = None
        if pipeline.lost:
            # While this one is connected to, because one of the others may be silent.
            pipeline.lost = False
            explore = self._explore()
        try:
            while pipeline.has_work():
                state.no_push, state.round_trip = False, math.inf
                try:
                    link = await self.node.connect(pipeline)
                    break
                except Exception as error:
                    if self._loop.is_closed():
                        raise
                    if isinstance(error, ConnectionRejected) and not self._identity.admitted:
                        for semaphore in list(pipeline.semaphores.values()):
                            fail_all(semaphore, partial(semaphore.route.rejected, error))
                    else:
                        explore = explore or self._explore()
                        await asyncio.wait([explore])
                        explore = None
                        pipeline.unavailable(error)
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
        known = self._hub.open_ones()
        with suppress(asyncio.CancelledError):
            await self._wait_for_others()
            release_all(self.pipeline)
            await self._send_the_rest()
            # Where a semaphore turned out to have moved to. The loop does not wait for those.
            for other in self._hub.open_ones() - known:
                await other.pipeline.until_quiet(self._loop.time() + FINAL)
                await other.close()

    async def _wait_for_others(self) -> None:
        """Wait until no other task is left, and keep the permits that they hold."""
        pipeline, loop = self.pipeline, self._loop
        deadline = loop.time() + DRAIN
        while pipeline.has_work() and (left := deadline - loop.time()) > 0:
            # No difference of sets, because other threads may add and drop tasks of hubs.
            others = [task for task in asyncio.all_tasks() if task not in HUB_TASKS]
            if not others:
                break
            await self._reconnect(min(left, FINAL))
            intervals = (lease.terms.refresh_interval for _, lease in _held(pipeline))
            pause = min(left, pipeline.reply_timeout, *intervals)
            waited = [*others, pipeline.quiet()]
            await asyncio.wait(waited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for semaphore, lease in _held(pipeline):
                _ = semaphore.refresh(lease)

    async def _send_the_rest(self) -> None:
        deadline = self._loop.time() + FINAL
        while self.pipeline.has_work() and (left := deadline - self._loop.time()) > 0:
            await self._reconnect(left)
            await asyncio.wait([self.pipeline.quiet()], timeout=left)

    async def _reconnect(self, seconds: float) -> None:
        if self.pipeline.link_state.link is None:
            with suppress(Exception):
                async with asyncio.timeout(seconds):
                    await self._connect()

    # -- closing

    async def _end(self) -> None:
        """Close the connection."""
        self.pipeline.link_state.keeper, self._begun = None, False
        link = self.pipeline.forget()
        self._hub.closed(self)
        if link is not None:
            await link.close()

    async def close(self) -> None:
        """End at once, because nothing is left to be sent."""
        state = self.pipeline.link_state
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


def _held(pipeline: Pipeline) -> list[tuple[SemaphoreState, Lease]]:
    semaphores = list(pipeline.semaphores.values())
    return [(each, lease) for each in semaphores for lease in each.holding()]
