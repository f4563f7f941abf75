"""What is to be written besides requests, that is, refreshes, releases and unbatched calls."""

import asyncio
import math
from dataclasses import dataclass, field

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import Outcome
from redsem_async._protocol.operations import (
    Adopt,
    BackOff,
    Detach,
    Operation,
    Reap,
)
from redsem_async._protocol.replies import AnyReply

from .lease import Lease
from .request import Request, RequestState

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
    """

    number: int
    asked_at: float
    lease_ends: float
    trusted: bool
    future: Confirmed | None
    answer: bool | SemaphoreError | None = None
    was_sent: bool = False

    def settle(self, answer: bool | SemaphoreError) -> None:  # noqa: FBT001 - the answer it is
        """Pass on whether the permit was held until then, or why that is not known."""
        self.answer = answer
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class Call:
    """An operation that is not batched, and the future of the caller that waits, if one does.

    A detach or an adoption draws a number each time it is written. It may be carried out twice
    while its caller waits, and not after the server knows a higher number.

    Attributes:
        number: that it was written with last.
        was_sent: sent before, without a reply.
    """

    def __init__(
        self,
        operation: Operation,
        future: "asyncio.Future[AnyReply | SemaphoreError] | None" = None,
    ) -> None:
        self.operation: Operation = operation
        self.future: asyncio.Future[AnyReply | SemaphoreError] | None = future
        self.number: int = 0
        self.was_sent: bool = False

    @property
    def is_reap(self) -> bool:
        return isinstance(self.operation, Reap)

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all. Not when its caller has got an error."""
        return self.future is None or not self.future.cancelled()

    def settle(self, answer: AnyReply | SemaphoreError) -> None:
        """Pass the reply on, or why there is none."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class DetachCall(Call):
    """A detach. From when it is written *lease* is trusted for *expires* seconds at most."""

    def __init__(
        self,
        operation: Detach,
        future: "asyncio.Future[AnyReply | SemaphoreError]",
        lease: Lease,
        expires: float,
    ) -> None:
        super().__init__(operation, future)
        self.lease: Lease = lease
        self.expires: float = expires
        self.unsettled: bool = False


class Change(Call):
    """A set limit, a deletion or a back-off, which is carried out once at most.

    The server carries out no number that is not above the last one. So a change keeps its number
    for as long as it may have been carried out, and no other is written meanwhile.

    Attributes:
        in_flight: written, without a reply yet.
    """

    in_flight: bool = False

    @property
    def alone(self) -> bool:
        """Whether no other change is in flight with it. A permit's back-offs may be, at first."""
        return self.was_sent or self.future is not None


class BackOffCall(Change):
    """A back-off until *ends*, by the clock of this process.

    One that is written later is shorter. One that is over is not written any more, unless its
    caller waits for the reply.
    """

    def __init__(
        self,
        operation: BackOff,
        ends: float,
        future: "asyncio.Future[AnyReply | SemaphoreError] | None" = None,
    ) -> None:
        super().__init__(operation, future)
        self.back_off: BackOff = operation
        self.ends: float = ends

    @property
    def wanted(self) -> bool:
        return super().wanted and (self.future is not None or clock() < self.ends)

    def join(self, other: "BackOffCall") -> bool:
        """Back off for *other*, too. False if that is of another key, or an operator's."""
        mine, theirs = self.back_off, other.back_off
        if self.alone or other.alone or self.in_flight or mine.key != theirs.key:
            return False
        assert mine.token is not None
        assert theirs.token is not None
        self.back_off = mine._replace(token=max(mine.token, theirs.token))
        self.ends = max(self.ends, other.ends)
        return True

    def due(self) -> BackOff:
        """The operation, when it is written now."""
        left = math.ceil(1000 * (self.ends - clock()))
        pause_ms = max(1, left) if self.back_off.pause_ms else 0
        return self.back_off._replace(pause_ms=pause_ms, call=self.number)


class AdoptCall(Call):
    """The permit of the operation is to be taken over by *request*."""

    def __init__(self, operation: Adopt, request: Request) -> None:
        super().__init__(operation)
        self.request: Request = request

    @property
    def wanted(self) -> bool:
        return self.request.state <= RequestState.SENT
