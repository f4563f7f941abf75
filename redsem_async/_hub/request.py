"""A request for permits, from the call of ``acquire`` until its caller has a permit or an error.

The table `_NEXT` has every transition between the states of a request, as in h11. The future of
a request wakes its caller and carries nothing, because the facts are here.
"""

import asyncio
import enum
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Self

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.keys import Address
from redsem_async._protocol import operations
from redsem_async._protocol.operations import KeyTerms, RequestOptions
from redsem_async._protocol.replies import KeyQueue, Ramp, Reply

from .lease import Lease


class RequestState(enum.IntEnum):
    """Where a request is. It goes down this list, except that some have to ask again."""

    NEW = enum.auto()  # to be written, or to be written again
    SENT = enum.auto()  # in a command that has no reply yet
    WAITING = enum.auto()  # the semaphore is full, and the caller waits
    GRANTED = enum.auto()  # it has a lease that is refreshed before the caller gets it
    DONE = enum.auto()  # served or refused, or its caller left


class _Event(enum.IntEnum):
    WRITTEN = enum.auto()
    TOLD_TO_WAIT = enum.auto()
    ASKED_AGAIN = enum.auto()
    GRANTED = enum.auto()
    SERVED = enum.auto()
    ENDED = enum.auto()


_NEXT: dict[tuple[_Event, RequestState], RequestState] = {
    (_Event.WRITTEN, RequestState.NEW): RequestState.SENT,
    (_Event.TOLD_TO_WAIT, RequestState.SENT): RequestState.WAITING,
    # The command was lost with its connection, or the server knows nothing of the request.
    (_Event.ASKED_AGAIN, RequestState.SENT): RequestState.NEW,
    (_Event.ASKED_AGAIN, RequestState.WAITING): RequestState.NEW,
    # The grant came too late, or was lost before it was refreshed.
    (_Event.ASKED_AGAIN, RequestState.GRANTED): RequestState.NEW,
    (_Event.GRANTED, RequestState.SENT): RequestState.GRANTED,
    (_Event.GRANTED, RequestState.WAITING): RequestState.GRANTED,
    (_Event.SERVED, RequestState.SENT): RequestState.DONE,
    (_Event.SERVED, RequestState.GRANTED): RequestState.DONE,
} | {(_Event.ENDED, state): RequestState.DONE for state in RequestState}


class QueueReport(NamedTuple):
    """What a reply said about the queue.

    Attributes:
        sent_at: when the command was sent.
        next_ms: in how many milliseconds something may change by itself. None for never.
        waiting: the length of the queue.
        set_limit: the limit that replaces the request's own, if one is set.
        key_queues: of the keys whose requests the reply told to wait, or refused.
        competing_keys: how many keys wait for the overall limit.
        ramp: of the back-off that runs, if one does.
    """

    sent_at: float
    next_ms: int | None
    waiting: int
    set_limit: int | None = None
    key_queues: Mapping[str, KeyQueue] = MappingProxyType({})
    competing_keys: int = 0
    ramp: Ramp | None = None

    @classmethod
    def of(cls, sent_at: float, reply: Reply) -> Self:
        by_key = reply.key_queues, reply.competing_keys
        own = reply.next_ms, reply.waiting, reply.set_limit
        return cls(sent_at, *own, *by_key, reply.ramp)


_calls = itertools.count(1)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Request:
    """A request for permits of one semaphore.

    Attributes:
        terms: of the semaphore that it was made with.
        waits: False for ``timeout=0`` and for an adoption.
        deadline: of the caller. Infinite where there is none.
        ahead: seconds by which its place in the queue is that of an earlier request (fair).
        key: the key that it also counts against, with its terms (fair).
        number: half of the permit's id. 0 until it is drawn, which is when it is written.
        call: the number of the adopt that asks for it, if one does.
        was_sent: sent before under this number, without a reply.
        lease: that it was granted.
        report: the last reply that told it to wait.
        waits_for_key: the limit of its key holds it up, as the server said last.
        again: it has waited, and the server dropped it. It asks again with its age.
        look_at: when the deadline is looked at next.
        replies_since: set when the deadline has come. The reply to any command sent since then
            decides the request.
        order: of its call among all calls, for those that began at the same moment.
    """

    address: Address
    terms: Terms
    permits: int
    started: float
    waits: bool
    future: "asyncio.Future[None]"
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
    look_at: float = math.inf
    replies_since: float | None = None
    order: int = field(default_factory=_calls.__next__)

    # -- transitions

    def written(self) -> None:
        """A command that asks for the permit is written."""
        self.state = _NEXT[_Event.WRITTEN, self.state]

    def told_to_wait(self) -> None:
        """The semaphore is full."""
        self.state = _NEXT[_Event.TOLD_TO_WAIT, self.state]

    def ask_again(self) -> None:
        """The request will be written again, in its place and with the same deadline."""
        self.state = _NEXT[_Event.ASKED_AGAIN, self.state]

    def granted(self, lease: Lease) -> None:
        """The server granted the request. The caller is not notified yet."""
        self.state = _NEXT[_Event.GRANTED, self.state]
        self.lease = lease

    def serve(self, lease: Lease) -> None:
        """The caller gets *lease*, which is held from now on."""
        self.state = _NEXT[_Event.SERVED, self.state]
        self.lease = lease
        if not self.future.done():
            self.future.set_result(None)

    def end(self) -> None:
        """The caller left."""
        self.state = _NEXT[_Event.ENDED, self.state]

    def fail(self, error: Exception) -> None:
        """The caller gets *error*."""
        self.end()
        self.error = error
        if not self.future.done():
            self.future.set_result(None)

    # -- facts

    @property
    def place(self) -> tuple[float, int]:
        """Its place among those that wait to be written, sent before or not, is its call's."""
        return self.started - self.ahead, self.order

    @property
    def queued(self) -> operations.Request:
        """The request as the queue of the server has it."""
        terms = self.terms
        return operations.Request(
            self.number, terms.lease_ms, terms.limit, self.permits, self.waits, key=self.key
        )

    @property
    def plain(self) -> bool:
        """Whether the request asks for one permit and nothing else."""
        usual = self.permits == 1 and self.waits and not self.ahead
        return usual and self.key is None and not self.again

    @property
    def options(self) -> RequestOptions:
        """What the request asks for, unless it is plain."""
        ahead = self.ahead + (clock() - self.started if self.again else 0)
        ahead_ms = math.ceil(1000 * ahead)
        return RequestOptions(self.permits, self.waits, ahead_ms, self.key, self.again)

    @property
    def pending(self) -> bool:
        """Whether the caller still waits for the outcome."""
        return self.state is not RequestState.DONE

    @property
    def unserved(self) -> bool:
        """Whether the server may grant the request."""
        return self.state is RequestState.SENT or self.state is RequestState.WAITING
