"""One semaphore as this process's tasks use it, with its state and the pipeline that writes it.

Each method changes the state and lets the pipeline see what is to be done then.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.keys import Address
from redsem_async._core.lease import Outcome, clock_margin, reply_timeout
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Adopt, BackOff, Delete, Detach, Operation, SetLimit
from redsem_async._protocol.replies import AnyReply, Reply

from . import calls, machine, trust
from .commands.refresh import max_hold_ms_of
from .estimates import note_hold
from .identity import HubIdentity
from .lease import Lease, LeaseState
from .pending import (
    AdoptCall,
    BackOffCall,
    Call,
    Change,
    Confirmed,
    DetachCall,
    PendingRelease,
    Wakeup,
)
from .request import Request
from .route import LinkState
from .state import SemaphoreState

Facts = TypeVarTuple("Facts")


class Writer(Protocol):
    """Writes what semaphores want written, when it is time. A `Pipeline` is one."""

    state: LinkState

    def settle(self, remote: "RemoteSemaphore", *, asked: bool = False, size: int = 0) -> None:
        """The state of *remote* was changed, so do what is to be done.

        *size* things of a kind are to be written, *asked* for by a task that waits for it.
        """
        ...

    def probe_now(self) -> None:
        """A caller does not wait, so find out at once whether the server can be asked."""
        ...

    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used, so notice a silent server in time for them."""
        ...


class RemoteSemaphore:
    """The semaphore at *address*, as the pipeline *writer* reaches it.

    Attributes:
        scheduled: its pipeline knows of it, and takes from it or holds it back.
        timer: of the pipeline, to look at the state again at *look_at*.
        drop_logged_at: when a dropped permit was logged last (cut_logged_at for a back-off).
        nested_logged: it was logged that a task may wait for itself.
    """

    def __init__(
        self, identity: HubIdentity, writer: Writer, address: Address, label: str | None
    ) -> None:
        self.address: Address = address
        self.identity: HubIdentity = identity
        self.writer: Writer = writer
        self.state: SemaphoreState = SemaphoreState(identity, address, writer.state, label)
        self.scheduled: bool = False
        self.timer: asyncio.TimerHandle | None = None
        self.look_at: float = math.inf
        self.drop_logged_at: float = -math.inf
        self.cut_logged_at: float = -math.inf
        self.nested_logged: bool = False

    @property
    def active(self) -> bool:
        """Whether anything is held, waited for or to be written, so the connection is kept."""
        return machine.is_active(self.state)

    def move(self, writer: Writer) -> None:
        """Another server keeps the semaphore."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer, self.look_at = None, math.inf
        self.writer, self.state.route.link = writer, writer.state
        writer.expect_lease(self.state.shortest_lease)
        writer.settle(self)

    def change(self, verb: Callable[[SemaphoreState, *Facts], object], *facts: *Facts) -> None:
        """Let *verb* change the state, and the pipeline see what is to be done then."""
        _ = verb(self.state, *facts)
        self.writer.settle(self)

    # -- requests

    def ask(self, request: Request) -> None:
        """Ask for a permit. The future of *request* wakes the caller."""
        state, terms = self.state, request.terms
        if terms.lease < state.shortest_lease:
            self.writer.expect_lease(terms.lease)
        if not request.waits:
            self.writer.probe_now()
        state.ask(request)
        self.writer.settle(self, asked=True, size=len(state.new))

    def leave(self, request: Request) -> None:
        """The caller left without a permit. Whatever it was or will be granted is undone."""
        self.state.leave(request)
        self.writer.settle(self)

    def adopt(self, request: Request, owner: str, old: int) -> None:
        """Take over the permit *old* of the hub *owner*. The future wakes the caller."""
        terms = request.terms
        operation = Adopt(
            *(owner, old, 0, terms.lease_ms),
            max_hold_ms=max_hold_ms_of(terms),
            slots=terms.slots,
        )
        state = self.state
        calls.add(state, AdoptCall(operation, request))
        state.look_again(request, request.deadline)
        self.writer.settle(self)

    # -- permits

    def release(
        self, lease: Lease, now: float, held: float, future: Confirmed | None = None
    ) -> PendingRelease:
        """Release a permit after *held* seconds. *future* gets whether it was held."""
        state = self.state
        note_hold(state, lease.permits * held)
        pending = state.release(lease, now, future)
        self.writer.settle(self, asked=future is not None, size=len(state.releases[lease.hub_id]))
        return pending

    def give_back(self, lease: Lease) -> None:
        """Release a lease that no task here uses."""
        if lease.state is not LeaseState.ENDED:
            _ = self.state.give_back(lease, clock(), trusted=False)
        self.writer.settle(self)

    async def release_by_id(self, owner: str, number: int) -> bool:
        """Release a permit that is known by its id alone. Returns whether it was held.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        future: Confirmed = self.identity.loop.create_future()
        trust.release_by_id(self.state, owner, number, future)
        self.writer.settle(self)
        held = await future
        if isinstance(held, SemaphoreError):
            raise held
        return held

    def refresh(self, lease: Lease) -> "asyncio.Future[Outcome]":
        """Refresh a lease. It has the outcome before the future wakes a task."""
        future: asyncio.Future[Outcome] = self.identity.loop.create_future()
        self.state.refresh(lease).futures.append(future)
        self.writer.settle(self)
        return future

    def refresh_in_background(self, lease: Lease, wakeup: Wakeup) -> None:
        """Refresh a lease. A refresh ends *wakeup* only if it is not answered."""
        self.state.refresh(lease).wakeups.append(wakeup)
        self.writer.settle(self)

    async def detach(self, lease: Lease, expires: float) -> None:
        """Have the server keep a held permit for *expires* seconds more, and let go of it.

        Raises:
            PermitLost: when it is lost, or released meanwhile.
            BackendError: when the server refused, or could not be asked.
        """
        state = self.state
        future: asyncio.Future[AnyReply | SemaphoreError] = self.identity.loop.create_future()
        operation = Detach(
            lease.number, math.ceil(1000 * expires), max_hold_ms=max_hold_ms_of(lease.terms)
        )
        # Once it is written, the permit is trusted for no longer than that.
        left = lease.trusted_until - clock()
        bounds = (expires - clock_margin(expires), reply_timeout(state.shortest_lease), left)
        call = DetachCall(operation, future, lease, expires)
        reply = await self._call(call, future, max(0.0, min(bounds)))
        assert isinstance(reply, Reply)
        if not reply.answers[0]:
            self.change(trust.gone, lease, "the server no longer holds it")
        if lease.state is not LeaseState.HELD:
            raise lease.loss()
        lease.end()
        state.leases.pop(lease.number, None)
        self.writer.settle(self)
        for notifier in observers.notifiers:
            notifier.permit("detached", lease)

    # -- other operations

    def back_off(self, call: BackOffCall) -> None:
        """Have every process grant nothing for some time. No task waits for the reply."""
        self.change(calls.back_off, call)

    async def back_off_for(self, seconds: float, key: str | None) -> None:
        """Have every process grant nothing for *seconds*. 0 ends a back-off.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        future: asyncio.Future[AnyReply | SemaphoreError] = self.identity.loop.create_future()
        operation = BackOff(math.ceil(1000 * seconds), key=key)
        call = BackOffCall(operation, clock() + seconds, future)
        await self._call(call, future, reply_timeout(min(self.state.shortest_lease, 10.0)))

    async def call(self, operation: Operation) -> AnyReply:
        """Send an operation that is not batched, and wait for its reply within a bounded time.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        future: asyncio.Future[AnyReply | SemaphoreError] = self.identity.loop.create_future()
        timeout = reply_timeout(min(self.state.shortest_lease, 10.0))
        kind = Change if isinstance(operation, SetLimit | Delete) else Call
        return await self._call(kind(operation, future), future, timeout)

    async def _call(
        self, call: Call, future: "asyncio.Future[AnyReply | SemaphoreError]", timeout: float
    ) -> AnyReply:
        calls.add(self.state, call)
        self.writer.settle(self)
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise self.state.route.silent(timeout)
        finally:
            if future.cancel():
                calls.given_up(self.state, call)
                self.writer.settle(self)
        answer = future.result()
        if isinstance(answer, SemaphoreError):
            raise answer
        return answer
