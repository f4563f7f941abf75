"""Calls, which are operations that are not batched, until they have their replies."""

import asyncio
import math
from dataclasses import replace
from typing import Any, ClassVar

from redsem_async._core.clock import now as clock
from redsem_async._protocol.operations import Adopt, AnyOperation, Detach, StartBackOff

from .model import Lease, Request, RequestState


class Call:
    """An operation that is not batched, and the future of the caller that waits, if one does.

    A detach or an adoption draws a number each time it is written. It may be carried out twice
    while its caller waits, and not after the server knows a higher number.

    Attributes:
        operation: that was asked for. What is written may differ, as it has its number.
        number: that it was written with last.
        was_sent: sent before, without a reply.
        in_flight: written, without a reply yet.
    """

    numbered: ClassVar[bool] = False  # each time that it is written

    def __init__(
        self, operation: AnyOperation, future: "asyncio.Future[Any] | None" = None
    ) -> None:
        self.operation: AnyOperation = operation
        self.future: asyncio.Future[Any] | None = future
        self.number: int = 0
        self.was_sent: bool = False
        self.in_flight: bool = False

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all. Not when its caller has got an error."""
        return self.future is None or not self.future.cancelled()

    @property
    def keeps_connection(self) -> bool:
        return self.wanted

    def settle(self, answer: object) -> None:
        """Pass the reply on, or the error that says why there is none."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class DetachCall(Call):
    """A detach. From when it is written *lease* is trusted for *expires* seconds at most."""

    numbered = True

    def __init__(
        self, operation: Detach, future: "asyncio.Future[Any]", lease: Lease, expires: float
    ) -> None:
        super().__init__(operation, future)
        self.lease: Lease = lease
        self.expires: float = expires
        self.unsettled: bool = False


class AdoptCall(Call):
    """The permit of the operation will be taken over by *request*."""

    numbered = True

    def __init__(self, operation: Adopt, request: Request) -> None:
        super().__init__(operation)
        self.request: Request = request

    @property
    def wanted(self) -> bool:
        return self.request.state <= RequestState.SENT


class ChangeCall(Call):
    """A set limit, a deletion or a back-off, which is carried out once at most.

    The server carries out no number that is not above the last one. So a change keeps its number
    for as long as it may have been carried out, and no other is written meanwhile.
    """

    @property
    def alone(self) -> bool:
        """Whether no other change is in flight with it. A permit's back-offs may be, at first."""
        return self.was_sent or self.future is not None

    @property
    def keeps_connection(self) -> bool:
        return self.wanted or self.was_sent


class BackOffCall(ChangeCall):
    """A back-off until *ends*, by the clock of this process.

    One that is written later is shorter. One that is over is not written any more, unless its
    caller waits for the reply.
    """

    def __init__(
        self,
        operation: StartBackOff,
        ends: float,
        future: "asyncio.Future[Any] | None" = None,
    ) -> None:
        super().__init__(operation, future)
        self.back_off: StartBackOff = operation
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
        self.back_off = replace(mine, token=max(mine.token, theirs.token))
        self.ends = max(self.ends, other.ends)
        return True

    def due(self) -> StartBackOff:
        """The operation, when it is written now."""
        left = math.ceil(1000 * (self.ends - clock()))
        pause_ms = max(1, left) if self.back_off.pause_ms else 0
        return replace(self.back_off, pause_ms=pause_ms)
