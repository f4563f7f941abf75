"""Semaphores of a cluster that another server keeps, or will keep."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context

from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._protocol.backend import Backend, Node
from redsem_async._protocol.errors import CommandError, ErrorKind

from . import machine
from .commands.base import AnyBatch
from .remote_semaphore import RemoteSemaphore

MAX_REDIRECTS = 3  # in a row, after which a semaphore waits a moment before it follows the next


class Ready(deque[RemoteSemaphore]):
    """The semaphores that have something to write, in turns."""

    def suspend(self, remote: RemoteSemaphore) -> None:
        """Take nothing from *remote* until it is resumed."""
        if remote.scheduled and remote in self:
            self.remove(remote)
        remote.scheduled = True

    def resume(self, remote: RemoteSemaphore) -> None:
        """Take from *remote* again, unless it is suspended for another reason."""
        redirect = remote.state.route.redirect
        if redirect is None or not redirect.suspended:
            remote.scheduled = False
            remote.state.stirred = True
            remote.writer.settle(remote)

    def forget(self) -> None:
        """The connection is closed, so no semaphore has its turn."""
        for remote in self:
            remote.scheduled = False
        self.clear()


class Redirects:
    """Follows MOVED and ASK from one server, and holds back what no server carries out.

    *move* gives a semaphore to the pipeline of another node.

    Attributes:
        ready: the semaphores that have something to write.
        in_flight: the commands that have no reply yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        backend: Backend,
        node: Node,
        move: Callable[[RemoteSemaphore, Node], None],
    ) -> None:
        self._loop = loop
        self._backend = backend
        self._node = node
        self.ready: Ready = Ready()
        self.in_flight: deque[tuple[RemoteSemaphore, AnyBatch]] = deque()
        self._move = move

    def redirected(self, remote: RemoteSemaphore, error: CommandError) -> CommandError:
        """Send *remote* where *error* says. For ASK, only with its next commands."""
        node = self._backend.redirected(remote.address, error, here=self._node)
        if node is None:
            return CommandError(ErrorKind.REFUSED, error.error)
        redirect = remote.state.route.redirected()
        redirect.target, redirect.once = node, error.kind is ErrorKind.ASK
        redirect.count += 1
        if redirect.count > MAX_REDIRECTS:
            self.suspend(remote, error.error)
        return error

    def follow(self, remote: RemoteSemaphore) -> None:
        """Let *remote* go to its target, once each of its commands in flight has its reply."""
        redirect = remote.state.route.redirect
        if redirect is None or redirect.target is None:
            return
        self.ready.suspend(remote)
        if any(other is remote for other, _ in self.in_flight):
            return
        node = redirect.target
        was_asking, remote.state.asking = remote.state.asking, redirect.once
        # What goes there for the next commands only comes back when they have their replies.
        redirect.target = self._node if redirect.once else None
        redirect.once = False
        if node is not self._node:
            self._move(remote, node)
            if not (was_asking or remote.state.asking):
                remote.change(
                    machine.reconnected
                )  # its push messages come another way from now on
        self.ready.resume(remote)

    async def explore(self, semaphores: Mapping[Address, RemoteSemaphore]) -> None:
        """Let go the semaphores that another server keeps by now, as other servers say."""
        await self._backend.explore(but=self._node)
        for remote in list(semaphores.values()):
            node = self._backend.node_for(remote.address)
            if node is not self._node:
                redirect = remote.state.route.redirected()
                redirect.target = redirect.target or node
                self.follow(remote)

    def suspend(self, remote: RemoteSemaphore, error: Exception) -> None:
        """Write nothing of *remote* for a moment, because no server carries it out yet."""
        redirect = remote.state.route.redirected()
        redirect.begin(error, clock())
        remote.change(machine.fail_not_waiting)
        if not redirect.suspended:
            self.ready.suspend(remote)
            # Not for long, because its leases continue meanwhile.
            moment = min(redirect.suspend(), remote.state.shortest_lease / 10)
            self._loop.call_later(moment, self._resume, remote, context=Context())

    def _resume(self, remote: RemoteSemaphore) -> None:
        redirect = remote.state.route.redirect
        if redirect is None:
            return
        redirect.suspended = False
        if redirect.error is not None:
            remote.change(machine.fail_outlasted, redirect.since)
        if redirect.target is None or remote.state.asking:
            self.ready.resume(remote)

    def carried_out(self, remote: RemoteSemaphore) -> None:
        """The server carried a command of *remote* out."""
        if redirect := remote.state.route.redirect:
            redirect.error, redirect.count = None, 0
            if redirect.over:
                remote.state.route.redirect = None
