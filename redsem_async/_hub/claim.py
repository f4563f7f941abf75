"""One request for permits, from the call of ``acquire`` until its permits are given back.

The table `_NEXT` has every transition between the states of a claim. Only the methods of `Claim`
change the state, and each of them goes by the table, as in h11. The future of a claim wakes its
caller and carries nothing: the facts are here.
"""

import asyncio
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import PermitLost
from redsem_async._core.keys import Address, permit_id
from redsem_async._core.lease import clock_margin
from redsem_async._protocol.operations import KeyTerms, Request, RequestOptions
from redsem_async._protocol.replies import KeyQueue, Reply


class State(enum.IntEnum):
    """Where a claim is. It goes down this list, except that some claims have to ask again."""

    NEW = enum.auto()  # to be written, or to be written again
    SENT = enum.auto()  # in a command that has no reply yet
    WAITING = enum.auto()  # the semaphore is full, and the caller waits
    GRANTED = enum.auto()  # granted, and not handed out: the grant is to be confirmed first
    HELD = enum.auto()  # the caller has the permit
    KEPT = enum.auto()  # its lease is for the next caller of this process
    LOST = enum.auto()  # held, and not to be trusted any more
    ENDED = enum.auto()  # refused, left, given back or detached


class _Event(enum.IntEnum):
    WRITTEN = enum.auto()
    TOLD_TO_WAIT = enum.auto()
    ASKED_AGAIN = enum.auto()
    GRANTED = enum.auto()
    HANDED_OUT = enum.auto()
    KEPT = enum.auto()
    REUSED = enum.auto()
    LOST = enum.auto()
    ENDED = enum.auto()


_NEXT: dict[tuple[_Event, State], State] = {
    (_Event.WRITTEN, State.NEW): State.SENT,
    (_Event.TOLD_TO_WAIT, State.SENT): State.WAITING,
    # The command was lost with its connection, or the server knows nothing of the claim.
    (_Event.ASKED_AGAIN, State.SENT): State.NEW,
    (_Event.ASKED_AGAIN, State.WAITING): State.NEW,
    # The grant came too late, or was lost before it was confirmed.
    (_Event.ASKED_AGAIN, State.GRANTED): State.NEW,
    (_Event.GRANTED, State.SENT): State.GRANTED,
    (_Event.GRANTED, State.WAITING): State.GRANTED,
    (_Event.HANDED_OUT, State.GRANTED): State.HELD,
    (_Event.KEPT, State.HELD): State.KEPT,
    (_Event.REUSED, State.KEPT): State.HELD,
    (_Event.LOST, State.HELD): State.LOST,
} | {(_Event.ENDED, state): State.ENDED for state in State}


class LineReport(NamedTuple):
    """What a reply said about the line.

    Attributes:
        sent_at: when the command was sent.
        next_ms: in how many milliseconds something may change by itself; None for never.
        waiting: the length of the line.
        set_limit: the limit that replaces the claim's own, if one is set.
        key_queues: of the keys whose requests the reply told to wait, or refused.
        competing_keys: how many keys wait for the limit in all.
    """

    sent_at: float
    next_ms: int | None
    waiting: int
    set_limit: int | None = None
    key_queues: Mapping[str, KeyQueue] = MappingProxyType({})
    competing_keys: int = 0

    @classmethod
    def of(cls, sent_at: float, reply: Reply) -> Self:
        by_key = reply.key_queues, reply.competing_keys
        return cls(sent_at, reply.next_ms, reply.waiting, reply.set_limit, *by_key)


class Claim:
    """A request for permits of one semaphore.

    Attributes:
        terms: of the semaphore that it was made with.
        waits: False for ``timeout=0`` and for an adoption.
        ahead: seconds by which its place in line is that of an earlier request (fair).
        key: the key that it also counts against, with its terms (fair).
        waits_for_key: the limit of its key holds it up, as the server said last.
        number: half of the permit's id; 0 until it is drawn, which is when it is written.
        call: the number of the adopt that asks for it, if one does.
        was_sent: sent before under this number, without a reply.
        report: the last reply that told this claim to wait.
        unconfirmed: why the last grant could not be confirmed.
        deadline: of the caller, by the loop's clock.
        replies_since: set when the deadline has come. The reply to any command sent since then
            decides the claim.
        trusted_until: until when the permit may be trusted unless it is refreshed.
        hold_ends: when trust ends although it is refreshed, because of ``max_hold``.
        renewable_after: a refresh that was sent before does not renew that trust.
        unsettled: how many detaches were written that may yet be carried out.
        on_lost: called when the permit is lost.
        refreshed_by: what refreshes it: see `_keepalive.refresher`.
        is_known: somebody has read its id or token, so that its lease is for one permit only.
        kept_until: when a kept lease is released unless it was used.
        passed: the lease that its caller got from another caller of this process.
        slots: that the permit has, by their places in `terms.slots`.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "ahead",
        "call",
        "deadline",
        "error",
        "future",
        "hold_ends",
        "hub_id",
        "is_known",
        "kept_until",
        "key",
        "lost_reason",
        "number",
        "on_lost",
        "passed",
        "permits",
        "refreshed_by",
        "renewable_after",
        "replies_since",
        "report",
        "slots",
        "started",
        "state",
        "terms",
        "timer",
        "token",
        "trusted_until",
        "unconfirmed",
        "unconfirmed_since",
        "unsettled",
        "waits",
        "waits_for_key",
        "wakes_on_loss",
        "was_sent",
    )

    def __init__(  # one for each acquire: positional, because keywords cost time
        self,
        address: Address,
        terms: Terms,
        permits: int,
        started: float,
        waits: bool,  # noqa: FBT001
        future: "asyncio.Future[None]",
        ahead: float = 0.0,
        key: KeyTerms | None = None,
    ) -> None:
        self.address: Address = address
        self.terms: Terms = terms
        self.permits: int = permits
        self.started: float = started
        self.waits: bool = waits
        self.ahead: float = ahead
        self.key: KeyTerms | None = key
        self.waits_for_key: bool = False
        self.future: asyncio.Future[None] = future
        self.state: State = State.NEW
        self.number: int = 0
        self.call: int = 0
        self.hub_id: str = ""
        self.was_sent: bool = False
        self.token: int = 0
        self.error: Exception | None = None
        self.report: LineReport | None = None
        self.unconfirmed: Exception | None = None
        self.unconfirmed_since: float = 0.0
        self.deadline: float = math.inf
        self.timer: asyncio.TimerHandle | None = None
        self.replies_since: float | None = None
        self.trusted_until: float = 0.0
        self.hold_ends: float = math.inf
        self.renewable_after: float = -math.inf
        self.unsettled: int = 0
        self.lost_reason: str | None = None
        self.on_lost: Callable[[], None] | None = None
        self.wakes_on_loss: list[asyncio.Future[None]] | None = None
        self.refreshed_by: object = None
        self.is_known: bool = False
        self.kept_until: float = 0.0
        self.passed: Claim | None = None
        self.slots: Sequence[int] = ()

    # -- transitions

    def written(self) -> None:
        """A command that asks for it is written."""
        self.state = _NEXT[_Event.WRITTEN, self.state]

    def told_to_wait(self) -> None:
        """The semaphore is full."""
        self.state = _NEXT[_Event.TOLD_TO_WAIT, self.state]

    def ask_again(self) -> None:
        """It is to be written again: before new claims, with the same deadline."""
        self.state = _NEXT[_Event.ASKED_AGAIN, self.state]

    def granted(self, token: int, trusted_until: float, since: float | None = None) -> None:
        """The server granted it, at *since* or later. The caller is not told yet.

        Where that is not known, the first refresh tells how much of ``max_hold`` is left.
        """
        self.state = _NEXT[_Event.GRANTED, self.state]
        self.token = token
        self.trusted_until = trusted_until
        if (max_hold := self.terms.max_hold) is not None:
            since = clock() if since is None else since
            self.hold_ends = since + max_hold - clock_margin(self.terms.lease)
            self.trusted_until = min(trusted_until, self.hold_ends)

    def hand_out(self) -> None:
        """The caller gets the permit."""
        self.state = _NEXT[_Event.HANDED_OUT, self.state]
        if self.timer is not None:
            self.stop_timer()
        if not self.future.done():
            self.future.set_result(None)

    def keep(self) -> None:
        """Its permit is given back here, and not to the server: the lease has no user."""
        self.state = _NEXT[_Event.KEPT, self.state]

    def reuse(self, started: float) -> None:
        """Another caller of this process, which came at *started*, uses the lease."""
        self.state = _NEXT[_Event.REUSED, self.state]
        self.started = started

    def pass_on(self, lease: "Claim") -> None:
        """The caller, which has left the line, gets *lease* instead of one of its own."""
        self.passed = lease
        if not self.future.done():
            self.future.set_result(None)

    def lose(self, reason: str) -> None:
        """The permit cannot be trusted any more. Wakes those that wait for its loss."""
        self.state = _NEXT[_Event.LOST, self.state]
        self.lost_reason = reason
        if self.on_lost is not None:
            self.on_lost()
        for future in self.wakes_on_loss or ():
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """It was given back or detached, or its caller left."""
        self.state = _NEXT[_Event.ENDED, self.state]
        if self.timer is not None:
            self.stop_timer()

    def fail(self, error: Exception) -> None:
        """The caller gets *error*."""
        self.end()
        self.error = error
        if not self.future.done():
            self.future.set_result(None)

    # -- facts

    @property
    def id(self) -> str:
        return permit_id(self.hub_id, self.number)

    @property
    def request(self) -> Request:
        terms = self.terms
        return Request(
            self.number, terms.lease_ms, terms.limit, self.permits, self.waits, key=self.key
        )

    @property
    def unusual(self) -> RequestOptions:
        return RequestOptions(self.permits, self.waits, math.ceil(1000 * self.ahead), self.key)

    @property
    def pending(self) -> bool:
        """Whether the caller still waits for the outcome."""
        return self.state <= State.GRANTED

    @property
    def unserved(self) -> bool:
        """Whether the server may grant it."""
        return self.state is State.SENT or self.state is State.WAITING

    @property
    def holding(self) -> bool:
        """Whether the server holds a permit for it, as far as is known here."""
        return State.GRANTED <= self.state <= State.KEPT

    @property
    def may_outlast_its_lease(self) -> bool:
        """Whether the server may hold it for longer: it was adopted, or a detach was written."""
        return self.call != 0 or self.renewable_after != -math.inf

    def fits(self, terms: Terms, permits: int, key: KeyTerms | None = None) -> bool:
        """Whether a caller with these terms may use the lease."""
        same_key = key is self.key or key == self.key
        same_terms = terms is self.terms or terms == self.terms
        return permits == self.permits and same_terms and same_key

    def refresh_is_due(self, now: float) -> bool:
        """Whether the last refresh, or the grant, is a refresh interval ago."""
        return self.trusted_until - now <= self.terms.lease - self.terms.refresh_interval

    def trusted_at(self, now: float) -> bool:
        """Whether the permit may be trusted, by what is known *now*."""
        state = self.state
        return now < self.trusted_until and (state is State.HELD or state is State.GRANTED)

    @property
    def doubt(self) -> str:
        """Why the permit is not trusted, while it is not known to be lost."""
        if self.trusted_until == -math.inf:
            return "the server does not hold it any more"
        if self.trusted_until == self.hold_ends:
            return f"it was held for its max_hold of {self.terms.max_hold:g} s"
        return "it could not be refreshed in time"

    def loss(self, doubt: str | None = None) -> PermitLost:
        """The error that says why it is lost: because of *doubt*, while that is not known."""
        reason = doubt or self.doubt if self.holding else "it was given back"
        return PermitLost(self.address.name, self.id, self.lost_reason or reason)

    # -- trust

    def renew(self, trusted_until: float) -> None:
        """A refresh was answered. May be called in any thread."""
        self.trusted_until = min(trusted_until, self.hold_ends)

    def hold_left(self, now: float) -> float:
        """For how many more seconds the server may hold it, by its ``max_hold``."""
        return self.hold_ends + clock_margin(self.terms.lease) - now

    def disown(self) -> None:
        """The server does not hold it any more. May be called in any thread."""
        self.trusted_until = -math.inf

    def shorten(self, trusted_until: float) -> None:
        """A detach is written: the lease may be shorter from now on, whatever its reply.

        Until it is known that the detach will not be carried out any more, no refresh says for
        how long the permit is held, because the detach may be carried out after it.
        """
        self.trusted_until = min(self.trusted_until, trusted_until)
        self.renewable_after = math.inf

    def detach_settled(self, now: float) -> None:
        """A detach that was written will not be carried out any more."""
        self.unsettled -= 1
        if not self.unsettled:
            self.renewable_after = now

    def stop_timer(self) -> None:
        """The deadline does not matter any more."""
        assert self.timer is not None
        self.timer.cancel()
        self.timer = None


class SpentClaim(Claim):
    """What is left of a claim whose lease other permits use: facts, and that it has ended.

    It has no number and no token, because those of the lease are now another permit's.
    """

    __slots__ = ()

    def __init__(self, lease: Claim) -> None:
        self.address = lease.address
        self.terms = lease.terms
        self.permits = lease.permits
        self.hub_id, self.number, self.token = lease.hub_id, 0, 0
        self.slots = lease.slots
        self.state = State.ENDED
        self.lost_reason = self.on_lost = self.wakes_on_loss = self.refreshed_by = None
        self.trusted_until = -math.inf
