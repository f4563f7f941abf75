"""A lease is what Redis keeps for this process, with an id, an expiry and a fencing token.

A permit is a task's use of a lease. `_NEXT` has every transition between its states.
"""

import asyncio
import enum
import math
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from redsem_async._core.config import Terms
from redsem_async._core.errors import PermitLost
from redsem_async._core.keys import Address, permit_id
from redsem_async._core.lease import clock_margin
from redsem_async._protocol.operations import KeyTerms


class LeaseState(enum.IntEnum):
    """What this process has of a lease."""

    GRANTED = enum.auto()  # nothing yet, as the lease is refreshed first
    HELD = enum.auto()  # a permit
    LOST = enum.auto()  # a permit that can no longer be trusted
    ENDED = enum.auto()  # nothing, because it was released or detached


class _Event(enum.IntEnum):
    HANDED_OUT = enum.auto()
    LOST = enum.auto()
    ENDED = enum.auto()


_NEXT: dict[tuple[_Event, LeaseState], LeaseState] = {
    (_Event.HANDED_OUT, LeaseState.GRANTED): LeaseState.HELD,
    (_Event.LOST, LeaseState.HELD): LeaseState.LOST,
} | {(_Event.ENDED, state): LeaseState.ENDED for state in LeaseState}


class Asked(Protocol):
    """The request with which a lease was asked for."""

    address: Address
    terms: Terms
    permits: int
    key: KeyTerms | None
    hub_id: str
    number: int


class Lease:
    """A lease of one semaphore.

    Attributes:
        terms: of the semaphore that it was asked for with.
        number: the half of its id that this process drew.
        adopted: taken over from another process.
        slots: that it has, by their places in `terms.slots`.
        trusted_until: until when the permit may be trusted unless it is refreshed.
        hold_ends: when trust ends although it is refreshed, because of ``max_hold``.
        renewable_after: a refresh that was sent before does not extend that trust.
        unsettled: how many detaches were written that may yet be carried out.
        guard: of the block that is cancelled when its permit is lost.
        ends_with: the task of its block, after whose end nothing refreshes it.
        wakes_on_loss: futures of those that wait for its loss.
        refreshed_at: when its first refresh is due, while that is noted. See `refresher`.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "adopted",
        "ends_with",
        "guard",
        "hold_ends",
        "hub_id",
        "key",
        "lost_reason",
        "number",
        "permits",
        "refreshed_at",
        "renewable_after",
        "slots",
        "state",
        "terms",
        "token",
        "trusted_until",
        "unsettled",
        "wakes_on_loss",
    )

    def __init__(  # one for each grant, and positional because keywords cost time
        self,
        asked: Asked,
        token: int,
        slots: Sequence[int],
        trusted_until: float,
        since: float,
        state: LeaseState = LeaseState.HELD,
    ) -> None:
        """The lease was granted at *since*, or later."""
        terms = asked.terms
        self.address: Address = asked.address
        self.terms: Terms = terms
        self.permits: int = asked.permits
        self.key: KeyTerms | None = asked.key
        self.hub_id: str = asked.hub_id
        self.number: int = asked.number
        self.token: int = token
        self.slots: Sequence[int] = slots
        self.state: LeaseState = state
        self.trusted_until: float = trusted_until
        self.hold_ends: float = math.inf
        if terms.max_hold is not None:
            self.hold_ends = since + terms.max_hold - clock_margin(terms.lease)
            self.trusted_until = min(trusted_until, self.hold_ends)
        self.adopted: bool = False
        self.renewable_after: float = -math.inf
        self.unsettled: int = 0
        self.refreshed_at: float | None = None
        self.lost_reason: str | None = None
        self.guard: Guard | None = None
        self.ends_with: weakref.ref[asyncio.Task[Any]] | None = None
        self.wakes_on_loss: list[asyncio.Future[None]] | None = None

    # -- transitions

    def hand_out(self) -> None:
        """A caller gets its permit."""
        self.state = _NEXT[_Event.HANDED_OUT, self.state]

    def lose(self, reason: str) -> None:
        """The permit cannot be trusted any more. Wakes those that wait for its loss."""
        self.state = _NEXT[_Event.LOST, self.state]
        self.lost_reason = reason
        if self.guard is not None:
            self.guard.lost()
        for future in self.wakes_on_loss or ():
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """The lease is released or detached."""
        self.state = _NEXT[_Event.ENDED, self.state]

    # -- facts

    @property
    def id(self) -> str:
        return permit_id(self.hub_id, self.number)

    @property
    def holding(self) -> bool:
        """Whether the server holds the lease for this process, as far as is known here."""
        return self.state <= LeaseState.HELD

    @property
    def is_nobodys(self) -> bool:
        """Whether the task of its block has ended, as in a generator that short tasks step."""
        if self.ends_with is None:
            return False
        task = self.ends_with()
        return task is None or task.done()

    def refresh_is_due(self, now: float) -> bool:
        """Whether the last refresh, or the grant, is a refresh interval ago."""
        return self.trusted_until - now <= self.terms.lease - self.terms.refresh_interval

    def trusted_at(self, now: float) -> bool:
        """Whether the permit may be trusted, by what is known *now*."""
        return now < self.trusted_until and self.state <= LeaseState.HELD

    @property
    def doubt(self) -> str:
        """Why the permit is not trusted, while it is not known to be lost."""
        if self.trusted_until == self.hold_ends:
            return f"it was held for its max_hold of {self.terms.max_hold:g} s"
        if self.is_nobodys:
            return (
                "the task that entered its block has ended: use 'async with sem.acquire()', which"
                " may be left in any task"
            )
        return "it could not be refreshed in time"

    def loss(self, doubt: str | None = None) -> PermitLost:
        """The error that says why the permit is lost. Because of *doubt*, until that is known."""
        reason = doubt or self.doubt if self.holding else "it was released"
        return PermitLost(self.address.name, self.id, self.lost_reason or reason)

    # -- trust

    def renew(self, trusted_until: float) -> None:
        """A refresh was answered."""
        self.trusted_until = min(trusted_until, self.hold_ends)

    def hold_left(self, now: float) -> float:
        """For how many more seconds the server may hold the lease, by its ``max_hold``."""
        return self.hold_ends + clock_margin(self.terms.lease) - now

    def note_hold_left(self, answer: int, sent_at: float) -> None:
        """Note how much of its ``max_hold`` is left.

        *answer* is that to a refresh that was sent at *sent_at*, in milliseconds.
        """
        if self.terms.max_hold is not None:
            ends = sent_at + answer / 1000 - clock_margin(self.terms.lease)
            self.hold_ends = min(self.hold_ends, ends)

    def shorten(self, trusted_until: float) -> None:
        """A detach is written. The lease may be shorter from now on, whatever the reply.

        The detach may be carried out after a refresh, so no refresh says for how long the permit
        is held until it is known that the detach will not be carried out any more.
        """
        self.trusted_until = min(self.trusted_until, trusted_until)
        self.renewable_after = math.inf

    def detach_settled(self, now: float) -> None:
        """A detach that was written will not be carried out any more."""
        self.unsettled -= 1
        if not self.unsettled:
            self.renewable_after = now


ENTERED: ContextVar[tuple[tuple[int, Lease], ...]] = ContextVar("entered", default=())
"""The leases whose blocks the current task is inside, or was created inside. Each comes with the
id of the task that entered it, because the task itself may be dropped."""


class Guard:
    """Guards a block. It cancels, once, the task that entered it when its permit is lost.

    It does so with ``cancel()`` and ``uncancel()``, like ``asyncio.timeout``, rather than with a
    cancel scope, because the body's own clean-up may await.
    """

    __slots__ = ("_cancelled", "_cancelling", "_later", "_lease", "_task")

    def __init__(
        self,
        lease: Lease,
        task: "asyncio.Task[Any]",
        cancel: bool,  # noqa: FBT001 - keywords cost time
    ) -> None:
        if around := ENTERED.get():  # those of generators may have ended elsewhere
            around = tuple(each for each in around if each[1].state is LeaseState.HELD)
        ENTERED.set((*around, (id(task), lease)))
        self._task = task
        self._lease = lease
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._later: asyncio.Handle | None = None
        if cancel:
            lease.guard = self

    def lost(self) -> None:
        """The permit is lost."""
        loop = self._task.get_loop()
        if asyncio.current_task(loop) is self._task:
            # The body found out by itself, say with check(), so its next await is soon enough.
            self._later = loop.call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel(f"a permit of {self._lease.address.name!r} was lost")

    def disarm(self, exc: BaseException | None) -> bool:
        """Whether the block ends by our cancellation alone."""
        self._lease.guard = None
        *around, last = ENTERED.get() or ((0, self._lease),)
        if last[1] is not self._lease:  # left in another order, or in another task
            around = [each for each in (*around, last) if each[1] is not self._lease]
        ENTERED.set(tuple(around))
        if self._later is not None:
            self._later.cancel()
        if not self._cancelled or asyncio.current_task() is not self._task:
            return False
        ours = self._task.uncancel() <= self._cancelling
        return ours and isinstance(exc, asyncio.CancelledError)
