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

from redsem_async._core.errors import SemaphoreClosed
from redsem_async._core.keys import Address, new_hub_id
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import Backend, Node

from .endings import fail_all, fail_waiting
from .identity import HubIdentity
from .pipeline import Pipeline
from .reconnect import FINAL, Connector, release_all
from .refresher import Refresher
from .remote_semaphore import RemoteSemaphore
from .state import SemaphoreState


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
            remote = RemoteSemaphore(self.identity, address, pipeline, label)
            self._semaphores[address] = remote
            pipeline.add(remote)
        return remote

    # -- pipelines

    def _pipeline_at(self, node: Node) -> Pipeline:
        connector = self._connectors.get(node)
        if connector is None:
            connector = self._connectors[node] = Connector(
                self.identity,
                self.backend,
                node,
                move=self._move,
                open_ones=self._open_ones,
                closed=self._closed,
            )
        return connector.pipeline

    def _open_ones(self) -> set[Connector]:
        return {connector for connector in self._connectors.values() if connector.open}

    def _move(self, semaphore: SemaphoreState, node: Node) -> None:
        """Another node keeps the semaphore."""
        for connector in self._connectors.values():
            connector.pipeline.semaphores.pop(semaphore.address, None)
        pipeline = self._pipeline_at(node)
        pipeline.add(semaphore)
        if semaphore.timer is not None:
            semaphore.timer.cancel()
            semaphore.timer, semaphore.look_at = None, math.inf
        semaphore.writer, semaphore.route.link = pipeline, pipeline.state
        pipeline.expect_lease(semaphore.shortest_lease)
        pipeline.settle(semaphore)

    async def _closed(self, connector: Connector) -> None:
        """*connector* has closed its connection. After the last one the hub gets a new id."""
        pipeline = connector.pipeline
        if not pipeline.semaphores and pipeline.outage.logged_since is None:
            self._connectors.pop(connector.node, None)
        if not self._open_ones():
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
                remote.writer.settle(remote)
            if drain > 0:
                await self._until_quiet(drain)
            for connector in list(self._connectors.values()):
                release_all(connector.pipeline)
            await self._until_quiet(FINAL)
            for connector in list(self._connectors.values()):  # redirects may have made more
                connector.pipeline.give_up()
            for remote in list(self._semaphores.values()):
                fail_all(remote, partial(SemaphoreClosed, remote.name))
                remote.writer.settle(remote)
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
