"""Semaphores of a cluster that another server keeps, or will keep."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context

from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._protocol.backend import Backend, Node
from redsem_async._protocol.errors import CommandError, ErrorKind

from .commands import AnyBatch
from .endings import fail_not_waiting, fail_outlasted, reconnected
from .state import SemaphoreState

MAX_REDIRECTS = 3  # in a row, after which a semaphore waits a moment before it follows the next


class Ready(deque[SemaphoreState]):
    """The semaphores that have something to write, in turns."""

    def suspend(self, semaphore: SemaphoreState) -> None:
        """Take nothing from *semaphore* until it is resumed."""
        if semaphore.scheduled and semaphore in self:
            self.remove(semaphore)
        semaphore.scheduled = True

    def resume(self, semaphore: SemaphoreState) -> None:
        """Take from *semaphore* again, unless it is suspended for another reason."""
        redirect = semaphore.route.redirect
        if redirect is None or not redirect.suspended:
            semaphore.scheduled = False
            semaphore.changed.add(semaphore)

    def forget(self) -> None:
        """The connection is closed, so no semaphore has its turn."""
        for semaphore in self:
            semaphore.scheduled = False
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
        move: Callable[[SemaphoreState, Node], None],
    ) -> None:
        self._loop = loop
        self._backend = backend
        self._node = node
        self.ready: Ready = Ready()
        self.in_flight: deque[AnyBatch] = deque()
        self._move = move

    def redirected(self, semaphore: SemaphoreState, error: CommandError) -> CommandError:
        """Send *semaphore* where *error* says. For ASK, only with its next commands."""
        node = self._backend.redirected(semaphore.address, error, here=self._node)
        if node is None:
            return CommandError(ErrorKind.REFUSED, error.error)
        redirect = semaphore.route.redirected()
        redirect.target, redirect.once = node, error.kind is ErrorKind.ASK
        redirect.count += 1
        if redirect.count > MAX_REDIRECTS:
            self.suspend(semaphore, error.error)
        return error

    def follow(self, semaphore: SemaphoreState) -> None:
        """Let *semaphore* go to its target, once each of its commands in flight has its reply."""
        redirect = semaphore.route.redirect
        if redirect is None or redirect.target is None:
            return
        self.ready.suspend(semaphore)
        if any(batch.state is semaphore for batch in self.in_flight):
            return
        node = redirect.target
        was_asking, semaphore.asking = semaphore.asking, redirect.once
        # What goes there for the next commands only comes back when they have their replies.
        redirect.target = self._node if redirect.once else None
        redirect.once = False
        if node is not self._node:
            self._move(semaphore, node)
            if not (was_asking or semaphore.asking):
                reconnected(semaphore)  # its push messages come another way from now on
        self.ready.resume(semaphore)

    async def explore(self, semaphores: Mapping[Address, SemaphoreState]) -> None:
        """Let go the semaphores that another server keeps by now, as other servers say."""
        await self._backend.explore(but=self._node)
        for semaphore in list(semaphores.values()):
            node = self._backend.node_for(semaphore.address)
            if node is not self._node:
                redirect = semaphore.route.redirected()
                redirect.target = redirect.target or node
                self.follow(semaphore)

    def suspend(self, semaphore: SemaphoreState, error: Exception) -> None:
        """Write nothing of *semaphore* for a moment, because no server carries it out yet."""
        redirect = semaphore.route.redirected()
        redirect.since = clock() if redirect.error is None else redirect.since
        redirect.error = error
        fail_not_waiting(semaphore)
        if not redirect.suspended:
            redirect.suspended = True
            self.ready.suspend(semaphore)
            # Not for long, because its leases continue meanwhile.
            moment = min(next(redirect.suspensions), semaphore.shortest_lease / 10)
            self._loop.call_later(moment, self._resume, semaphore, context=Context())

    def _resume(self, semaphore: SemaphoreState) -> None:
        redirect = semaphore.route.redirect
        if redirect is None:
            return
        redirect.suspended = False
        if redirect.error is not None:
            fail_outlasted(semaphore, redirect.since)
        if redirect.target is None or semaphore.asking:
            self.ready.resume(semaphore)

    def carried_out(self, semaphore: SemaphoreState) -> None:
        """The server carried a command of *semaphore* out."""
        if redirect := semaphore.route.redirect:
            redirect.error, redirect.count = None, 0
            if redirect.target is None and not redirect.suspended:
                semaphore.route.redirect = None
