"""The two things here that have a life: a request for permits, and the lease that it is granted.

A request is one call of ``acquire``, from its call until the caller has a permit or an error. A
lease is what Redis keeps for this process, with an id, an expiry and a fencing token. A permit is
a task's use of a lease.

`_REQUEST` and `_LEASE` are one table of every transition between their states, with a row for each
verb, as in h11. Only the verbs of `Request` and `Lease` change a state, each by its own row. To
serve a request is to hand out its lease. What is not in the table raises `WrongTransition`.
"""

import asyncio
import enum
import heapq
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import Address, permit_id
from redsem_async._core.lease import Outcome
from redsem_async._core.rates import settled
from redsem_async._protocol.operations import (
    KeyTerms,
    Operation,
    QueuedRequest,
    RequestOptions,
)
from redsem_async._protocol.replies import Reply

CLEAN_UP = 64  # entries of an agenda, from which on those of the past are looked for


class RequestState(enum.IntEnum):
    """Where a request is. It goes down this list, except that some have to ask again."""

    NEW = enum.auto()  # to be written, or to be written again
    SENT = enum.auto()  # in a command that has no reply yet
    WAITING = enum.auto()  # the semaphore is full, and the caller waits
    GRANTED = enum.auto()  # it has a lease that is refreshed before the caller gets it
    DONE = enum.auto()  # served or refused, or its caller left


class LeaseState(enum.IntEnum):
    """What this process has of a lease."""

    GRANTED = enum.auto()  # nothing yet, as the lease is refreshed first
    HELD = enum.auto()  # a permit
    LOST = enum.auto()  # a permit that can no longer be trusted
    ENDED = enum.auto()  # nothing, because it was released or detached


class WrongTransition(RuntimeError):
    """A verb was called of something in a state in which it means nothing."""


State = TypeVar("State", bound=enum.IntEnum)


class _Verb(dict[State, State]):
    """A row of a table: the states of which a verb may be called, and those that it leads to."""

    def __init__(self, name: str, row: Mapping[State, State]) -> None:
        super().__init__(row)
        self._name = name

    def __missing__(self, state: State) -> NoReturn:
        raise WrongTransition(f"{self._name} is not for what is {state.name}")


def _table(**rows: Mapping[State, State]) -> Mapping[str, _Verb[State]]:
    return {name: _Verb(name, row) for name, row in rows.items()}


_NEW, _SENT, _WAITING, _GRANTED, _DONE = RequestState

_REQUEST = _table(
    written={_NEW: _SENT},
    told_to_wait={_SENT: _WAITING},
    ask_again={
        _SENT: _NEW,  # the command was lost with its connection, or the server knows nothing of it
        _WAITING: _NEW,  # the server knows nothing of it any more
        _GRANTED: _NEW,  # the grant came too late, or was lost before it was refreshed
    },
    accept={_SENT: _GRANTED, _WAITING: _GRANTED},
    serve={_SENT: _DONE, _GRANTED: _DONE},
    end=dict.fromkeys(RequestState, _DONE),
)
_LEASE = _table(
    hand_out={LeaseState.GRANTED: LeaseState.HELD},
    lose={LeaseState.HELD: LeaseState.LOST},
    end=dict.fromkeys(LeaseState, LeaseState.ENDED),
)


@dataclass(slots=True, weakref_slot=True, eq=False, init=False, repr=False)
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
        asked_at: when it was granted, or a refresh was asked for last.
        unsettled: how many detaches were written that may yet be carried out.
        guard: cancels the block, when its permit is lost.
        ends_with: the task of its block, after whose end nothing refreshes it.
        wakes_on_loss: futures of those that wait for its loss.
        met_overload: an upstream refused the work, so it says nothing of the usual hold.
        costs: what it took from each rate, as the queue has it. '' for nothing, or if adopted.
        settled: how much more the work cost, or less, as a release tells it.
        noted_at: when the refresher looks at it next.
    """

    address: Address
    terms: Terms
    permits: int
    key: KeyTerms | None
    hub_id: str
    number: int
    token: int
    slots: Sequence[int]
    state: LeaseState
    trusted_until: float
    hold_ends: float
    adopted: bool
    met_overload: bool
    costs: str
    settled: str
    renewable_after: float
    unsettled: int
    asked_at: float
    noted_at: float | None
    lost_reason: str | None
    guard: Callable[[], None] | None
    ends_with: "weakref.ref[asyncio.Task[Any]] | None"
    wakes_on_loss: "list[asyncio.Future[None]] | None"

    def __init__(  # one for each grant, and positional because keywords cost time
        self,
        request: "Request",
        token: int,
        slots: Sequence[int],
        trusted_until: float,
        since: float,
    ) -> None:
        """The lease was granted at *since*, or later."""
        self.address, self.terms = request.address, (terms := request.terms)
        self.permits, self.key = request.permits, request.key
        self.costs, self.settled = request.costs, ""
        self.hub_id, self.number = request.hub_id, request.number
        self.token, self.slots, self.state = token, slots, LeaseState.GRANTED
        self.trusted_until, self.hold_ends = trusted_until, math.inf
        if terms.max_hold is not None:
            self.hold_ends = since + terms.max_hold - terms.margin
            self.trusted_until = min(trusted_until, self.hold_ends)
        self.adopted = self.met_overload = False
        self.renewable_after, self.unsettled = -math.inf, 0
        self.asked_at, self.noted_at, self.lost_reason = since, None, None
        self.guard = self.ends_with = self.wakes_on_loss = None

    # -- transitions

    def lose(self, reason: str) -> None:
        """The permit cannot be trusted any more. Wakes those that wait for its loss."""
        self.state = _LEASE["lose"][self.state]
        self.lost_reason = reason
        if self.guard is not None:
            self.guard()
        for future in self.wakes_on_loss or ():
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """The lease is released or detached."""
        self.state = _LEASE["end"][self.state]

    def unused(self) -> None:
        """Its caller never had it, so it cost nothing."""
        if self.costs:
            rates = self.terms.rates
            self.settled = settled(rates, [0.0] * len(rates), self.costs)

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
        """Why the permit is not trusted, while it is not known to be lost. In any thread."""
        if self.trusted_until == self.hold_ends:
            return f"it was held for its max_hold of {self.terms.max_hold:g} s"
        if self.is_nobodys:
            return (
                "the task that entered its block has ended: use 'async with sem.acquire()', which"
                " may be left in any task"
            )
        # A loop that runs asks for a refresh in each interval, whether or not a reply comes.
        terms, silent = self.terms, clock() - self.asked_at
        spare = min(terms.lease - terms.refresh_interval - terms.margin, terms.lease / 4)
        if silent >= terms.refresh_interval + spare and not self.unsettled:
            return f"the event loop was blocked for {silent:.3g} s"
        return "it could not be refreshed in time"

    def loss(self) -> PermitLost:
        """The error that says why the permit is lost. Because of a doubt, until that is known."""
        reason = self.doubt if self.holding else "it was released"
        return PermitLost(self.address.name, self.id, self.lost_reason or reason)

    # -- trust

    def renew(self, trusted_until: float) -> None:
        """A refresh was answered."""
        self.trusted_until = min(trusted_until, self.hold_ends)

    def hold_left(self, now: float) -> float:
        """Seconds for which the server may still hold the lease, by its ``max_hold``."""
        return self.hold_ends + self.terms.margin - now

    def note_hold_left(self, answer: int, sent_at: float) -> None:
        """Note how much of its ``max_hold`` is left.

        *answer* is that to a refresh that was sent at *sent_at*, in milliseconds.
        """
        if self.terms.max_hold is not None:
            ends = sent_at + answer / 1000 - self.terms.margin
            self.hold_ends = min(self.hold_ends, ends)

    def shorten(self, trusted_until: float) -> None:
        """A detach is written. The lease may be shorter from now on, whatever the reply.

        The detach may be carried out after a refresh, so no refresh says how long the permit is
        held until it is known that the detach will not be carried out any more.
        """
        self.trusted_until = min(self.trusted_until, trusted_until)
        self.renewable_after = math.inf

    def detach_settled(self, now: float) -> None:
        """A detach that was written will not be carried out any more."""
        self.unsettled -= 1
        if not self.unsettled:
            self.renewable_after = now


class QueueReport(NamedTuple):
    """What the reply to a command that was sent at *sent_at* said about the queue."""

    sent_at: float
    reply: Reply


_calls = itertools.count(1)


@dataclass(slots=True, eq=False, repr=False)
class Request(asyncio.Future[None]):
    """A request for permits of one semaphore.

    As a future it wakes the caller and carries nothing, because the facts are here.

    Attributes:
        terms: of the semaphore that it was made with.
        waits: False for ``timeout=0`` and for an adoption.
        deadline: of the caller. Infinite where there is none.
        ahead: seconds by which its place in the queue is that of an earlier request (fair).
        key: the key that it also counts against, with its terms (fair).
        costs: what it takes from each rate, as the queue has it.
        number: half of the permit's id. 0 until it is drawn, which is when it is written.
        call: the number of the adopt that asks for it, if one does.
        was_sent: sent before under this number, without a reply.
        lease: that it was granted.
        report: the last reply that told it to wait.
        waits_for_key: the limit of its key holds it up, as the server said last.
        again: it has waited, and the server dropped it. It asks again for its place.
        asked_us: that place, in microseconds of this process's clock. No other request has it.
        asked_at: when the server was asked whether it waits, because the deadline is near.
        order: of its call among all calls, for those that began at the same moment.
        overlong: called once if it waits for long.
    """

    address: Address
    terms: Terms
    permits: int
    started: float
    waits: bool
    loop: InitVar[asyncio.AbstractEventLoop]
    deadline: float = math.inf
    ahead: float = 0.0
    key: KeyTerms | None = None
    state: RequestState = RequestState.NEW
    number: int = 0
    hub_id: str = ""
    call: int = 0
    was_sent: bool = False
    lease: Lease | None = None
    error: Exception | None = None
    report: QueueReport | None = None
    waits_for_key: bool = False
    again: bool = False
    asked_us: int | None = None
    asked_at: float = -math.inf
    order: int = field(default_factory=_calls.__next__)
    overlong: Callable[[], None] | None = None
    costs: str = ""

    def __post_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.Future.__init__(self, loop=loop)  # pyright: ignore[reportUnknownMemberType]

    # -- transitions

    def written(self) -> None:
        """A command that asks for the permit is written."""
        self.state = _REQUEST["written"][self.state]

    def told_to_wait(self) -> None:
        """The semaphore is full."""
        self.state = _REQUEST["told_to_wait"][self.state]

    def ask_again(self) -> None:
        """The request will be written again, in its place and with the same deadline."""
        self.state = _REQUEST["ask_again"][self.state]

    def accept(self, lease: Lease) -> None:
        """The server granted the request. The caller is not notified yet."""
        self.state = _REQUEST["accept"][self.state]
        self.lease = lease

    def serve(self, lease: Lease) -> None:
        """The caller gets *lease*, which is held from now on."""
        self.state = _REQUEST["serve"][self.state]
        lease.state = _LEASE["hand_out"][lease.state]
        self.lease = lease
        if not self.done():
            self.set_result(None)

    def end(self) -> None:
        """The caller left."""
        self.state = _REQUEST["end"][self.state]

    def fail(self, error: Exception) -> None:
        """The caller gets *error*."""
        self.end()
        self.error = error
        if not self.done():
            self.set_result(None)

    # -- facts

    @property
    def queued(self) -> QueuedRequest:
        """The request as the queue of the server has it."""
        terms, of_key = self.terms, self.key
        declared = terms.lease_ms, terms.limit
        return QueuedRequest(self.number, *declared, self.permits, of_key, self.costs)

    @property
    def options(self) -> RequestOptions:
        """What the request asks for, unless it is for one permit and nothing else."""
        ahead_ms = math.ceil(1000 * self.ahead)
        asked_us = self.asked_us if self.again else None
        return RequestOptions(self.permits, self.waits, ahead_ms, self.key, asked_us, self.costs)

    @property
    def pending(self) -> bool:
        """Whether the caller still waits for the outcome."""
        return self.state is not RequestState.DONE


class Agenda(list[tuple[float, int, Request]]):
    """A heap of when to look at which request. Those that have ended are passed over."""

    _clean_up_at = CLEAN_UP

    def add(self, request: Request, at: float) -> None:
        """Look at *request* at that time."""
        if len(self) > self._clean_up_at:  # most may be of the past
            self[:] = [entry for entry in self if entry[2].pending]
            heapq.heapify(self)
            self._clean_up_at = CLEAN_UP + 2 * len(self)
        heapq.heappush(self, (at, request.order, request))

    def next(self) -> float:
        """When to look next."""
        while self and not self[0][2].pending:
            heapq.heappop(self)
        return self[0][0] if self else math.inf

    def come(self, now: float) -> tuple[float, Request] | None:
        """The next request whose time has come by *now*, and that time. It is looked at once."""
        if self.next() > now:
            return None
        at, _, request = heapq.heappop(self)
        return at, request


Wakeup = asyncio.Future[Outcome | None]
"""When a refresh task continues."""

Confirmed = asyncio.Future[bool | SemaphoreError]
"""Gets whether the permit was held until its release, or why that is not known."""


@dataclass(slots=True, eq=False)
class PendingRefresh:
    """A lease to be refreshed, and who is told of the outcome.

    Attributes:
        request: that gets the lease once it is refreshed.
        futures: of callers that wait for the outcome.
        wakeups: of refresh tasks, which are told if there was no answer.
    """

    lease: Lease
    request: Request | None = None
    futures: list[asyncio.Future[Outcome]] = field(default_factory=list[asyncio.Future[Outcome]])
    wakeups: list[Wakeup] = field(default_factory=list[Wakeup])

    def join(self, other: "PendingRefresh") -> None:
        """Also tell those that *other* was to tell."""
        self.request = self.request or other.request
        self.futures += other.futures
        self.wakeups += other.wakeups

    def settle(self, outcome: Outcome) -> None:
        """Wake the callers that wait for the refresh."""
        for future in self.futures:
            if not future.done():
                future.set_result(outcome)
        if outcome is Outcome.UNKNOWN:
            for wakeup in self.wakeups:
                if not wakeup.done():
                    wakeup.set_result(outcome)


@dataclass(slots=True, eq=False)
class PendingRelease:
    """A permit on its way back, and the caller that waits for the reply, if one does.

    The future may be cancelled with the task that awaits it. That task sets another one if there
    is no answer yet.

    Attributes:
        lease_ends: when the permit has surely expired, so that it need not be released.
        trusted: whether the permit was trusted at the time of the release.
        was_sent: sent before, without a reply.
        settled: how much more its work cost than it had asked for, or less.
    """

    number: int
    asked_at: float
    lease_ends: float
    trusted: bool
    future: Confirmed | None
    answer: bool | SemaphoreError | None = None
    was_sent: bool = False
    settled: str = ""

    def settle(self, answer: bool | SemaphoreError) -> None:  # noqa: FBT001 - the answer it is
        """Pass on whether the permit was held until then, or why that is not known."""
        self.answer = answer
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


@dataclass(eq=False, kw_only=True)
class Call(Operation[Any]):
    """An operation that is not batched. `calls` has its kinds.

    Attributes:
        is_change: a set limit, a deletion or a back-off.
        future: of the caller that waits for the reply, if one does.
        was_sent: sent before, without a reply.
        in_flight: written, without a reply yet.
    """

    is_change: ClassVar[bool] = False

    future: "asyncio.Future[Any] | None" = field(default=None, repr=False)
    was_sent: bool = False
    in_flight: bool = False

    def __eq__(self, other: object) -> bool:
        return self is other  # as two calls of one operation differ

    def __hash__(self) -> int:
        return id(self)

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all. Not when its caller has got an error."""
        return self.future is None or not self.future.cancelled()

    @property
    def keeps_connection(self) -> bool:
        return self.wanted

    def ended(self) -> None:
        """It is not carried out any more."""
        raise NotImplementedError

    def settle(self, answer: object) -> None:
        """Pass the reply on, or the error that says why there is none."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)
