"""One semaphore as this process's tasks use it.

Each method calls verbs of the state. Those that wait for the server raise BackendError if it
refuses, or cannot be asked.
"""

import asyncio
import math
from typing import Any, Protocol

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import (
    PermitLost,
    SemaphoreClosed,
    SemaphoreError,
)
from redsem_async._core.keys import Address, parse_permit_id
from redsem_async._core.lease import Outcome, clock_margin, reply_timeout
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms
from redsem_async._protocol.replies import Reply

from .calls import AdoptCall, BackOffCall, CallBatch, DetachCall, ReadyCall
from .model import Confirmed, Lease, LeaseState, PendingRelease, Request
from .refresher import Refresher
from .server import LinkState
from .state import Changed, SemaphoreState

MAX_REMEMBERED = 1000  # overloads, by key


class Writer(Protocol):
    """Writes what semaphores want written, when it is time. A `Pipeline` is one."""

    link_state: LinkState
    changed: Changed

    def asked(self) -> None:
        """A task waits for what it has just asked for, so write it now, if that is worth it."""
        ...

    def probe_now(self) -> None:
        """A caller does not wait, so find out at once whether the server can be asked."""
        ...

    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used, so notice a silent server in time for them."""
        ...


class RemoteSemaphore(SemaphoreState):
    """The semaphore at *address*, as the pipeline *writer* reaches it.

    Attributes:
        loop: in which its permits are acquired, refreshed and released.
    """

    def __init__(
        self, refresher: Refresher, address: Address, writer: Writer, label: str | None
    ) -> None:
        super().__init__(refresher.identity, address, writer.link_state, writer.changed, label)
        self.writer: Writer = writer
        self.loop: asyncio.AbstractEventLoop = self.identity.loop
        self._refresher = refresher

    # -- requests

    def acquire(
        self,
        terms: Terms,
        timeout: float | None,
        permits: int = 1,
        ahead: float = 0.0,
        key: KeyTerms | None = None,
        costs: str = "",
    ) -> Request:
        """Ask for permits. Await the result, and then call `taken`, or else `abandon`."""
        started = clock()
        deadline, waits = math.inf, timeout is None or timeout > 0
        if timeout is not None:
            deadline = started + (timeout if waits else reply_timeout(terms.lease))
        address, loop = self.address, self.identity.loop
        request = Request(address, terms, permits, started, waits, loop, deadline, ahead, key)
        request.costs = costs
        if self.identity.closing:
            raise _refused(request, SemaphoreClosed(self.name))
        if terms.lease < self.shortest_lease:
            self.writer.expect_lease(terms.lease)
        if not waits:
            self.writer.probe_now()
        self.ask(request)
        self.writer.asked()
        return request

    def adopt(self, terms: Terms, permit_id: str) -> Request:
        """Take over a permit by its id. Await the result as that of `acquire`."""
        started, loop = clock(), self.identity.loop
        deadline = started + 2 * reply_timeout(terms.lease)
        request = Request(self.address, terms, 1, started, False, loop, deadline)  # noqa: FBT003
        known = parse_permit_id(permit_id)
        if known is None:
            raise _refused(request, PermitLost(self.name, permit_id, "not a permit id"))
        if self.identity.closing:
            raise _refused(request, SemaphoreClosed(self.name))
        owner, old = known
        call = AdoptCall(owner, old, 0, terms.lease_ms, request=request)
        call.max_hold_ms, call.slots = terms.max_hold_ms, terms.slots
        call.ask(self)
        self.deadlines.add(request, deadline)
        return request

    def abandon(self, request: Request) -> None:
        """Its caller was cancelled. What the server has granted, or may yet, is released."""
        self.leave(request)
        for notifier in observers.notifiers:
            notifier.ended("abandoned", request, clock() - request.started)

    def taken(self, request: Request) -> tuple[Lease, float, float]:
        """The lease that *request* got, since when, and how many seconds it waited for it.

        It is refreshed from now on.
        """
        lease = request.lease
        if request.error is not None or lease is None or lease.state is LeaseState.ENDED:
            # Without an error it was released by a close before its caller could run.
            error = request.error or SemaphoreClosed(self.name)
            raise _refused(request, error)
        now = clock()
        waited = now - request.started
        for notifier in observers.notifiers:
            facts = {"fencing_token": lease.token, "permit_id": lease.id}
            notifier.granted(lease, request, waited, **facts)
            if lease.state is LeaseState.LOST:  # before its caller came to know of the grant
                notifier.permit("lost", lease, reason=lease.lost_reason, cancels=False)
        self._refresher.add(lease, self, now)
        return lease, now, waited

    # -- permits

    def release(
        self, lease: Lease, now: float, held: float, future: Confirmed | None = None
    ) -> PendingRelease:
        """Release a permit after *held* seconds. *future* gets whether it was held."""
        self._refresher.remove(lease)
        pending = self.released(lease, now, held, future)
        if future is not None:
            self.writer.asked()
        return pending

    async def revoke(self, owner: str, number: int) -> bool:
        """Release a permit that is known by its id alone. Returns whether it was held."""
        future: Confirmed = self.identity.loop.create_future()
        self.give_back_unknown(owner, number, future)
        lease = self.leases.get(number) if owner == self.identity.id else None
        if lease is not None:
            self.gone(lease, "released by its id", expected=True)
        held = await future
        if isinstance(held, SemaphoreError):
            raise held
        return held

    def refresh_now(self, lease: Lease) -> "asyncio.Future[Outcome]":
        """Refresh a lease. It has the outcome before the future wakes a task."""
        future: asyncio.Future[Outcome] = self.identity.loop.create_future()
        self.refresh(lease).futures.append(future)
        return future

    async def detach(self, lease: Lease, expires: float) -> None:
        """Have the server keep a held permit for *expires* seconds more, and let go of it."""
        expires_ms = math.ceil(1000 * expires)
        call = DetachCall(lease.number, expires_ms, lease=lease, expires=expires)
        call.max_hold_ms = lease.terms.max_hold_ms
        # Once it is written, the permit is trusted for no longer than that.
        left = lease.trusted_until - clock()
        bounds = (expires - clock_margin(expires), reply_timeout(self.shortest_lease), left)
        # A refresh written later would make a short expiry a whole lease again.
        self._refresher.remove(lease)
        try:
            reply: Reply = await self._answered(call, max(0.0, min(bounds)))
            if not reply.answers[0]:
                self.gone(lease, "the server no longer holds it")
            if lease.state is not LeaseState.HELD:
                raise lease.loss()
            self.detached(lease)
        finally:
            if lease.state is LeaseState.HELD:
                self._refresher.add(lease, self, clock())
        for notifier in observers.notifiers:
            notifier.permit("detached", lease)

    # -- other operations

    def is_overload(self, key: str | None, granted_at: float, now: float) -> bool:
        """Whether one that a permit met *now* is not the one that this process met last."""
        is_new = granted_at > self.overloaded_at.get(key, -math.inf)
        if is_new:
            if len(self.overloaded_at) >= MAX_REMEMBERED:
                self.overloaded_at.clear()  # the server knows, too
            self.overloaded_at[key] = now
        return is_new

    def back_off(self, call: BackOffCall) -> None:
        """Have every process grant nothing for some time. No task waits for the reply."""
        call.ask(self)

    async def ready(self, terms: Terms, timeout: float) -> None:
        """Return once the server takes requests, or raise after *timeout* seconds."""
        if self.identity.closing:
            raise SemaphoreClosed(self.name)
        self.writer.probe_now()
        call = ReadyCall((), terms.lease_ms, terms.limit, slots=terms.slots)
        await self._answered(call, timeout)

    async def call(self, call: CallBatch) -> Any:
        """Send *call*, and wait for its reply within a bounded time."""
        return await self._answered(call, reply_timeout(min(self.shortest_lease, 10.0)))

    async def _answered(self, call: CallBatch, timeout: float) -> Any:
        future = call.future = self.identity.loop.create_future()
        call.ask(self)
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise self.route.silent(timeout)
        finally:
            if future.cancel():
                call.given_up()
        answer = future.result()
        if isinstance(answer, SemaphoreError):
            raise answer
        return answer


def _refused(request: Request, error: Exception) -> Exception:
    """Return *error*, which the caller of *request* gets."""
    for notifier in observers.notifiers:
        notifier.refused(request, clock() - request.started, error)
    return error
