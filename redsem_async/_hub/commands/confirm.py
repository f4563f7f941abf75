"""Confirm waits (WAIT) until enough replicas have what was written on this connection."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import confirmation_time
from redsem_async._hub import handout
from redsem_async._hub.request import Request
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Confirm
from redsem_async._protocol.replies import AnyReply

from .base import Batch


class PendingConfirm(NamedTuple):
    """A grant to be confirmed."""

    state: SemaphoreState
    request: Request


class ConfirmBatch(Batch[PendingConfirm]):
    """Grants, of any semaphores, that are handed out once enough replicas know of them."""

    __slots__ = ()

    @classmethod
    def of(cls, pending: Sequence[PendingConfirm], at_most: float) -> "ConfirmBatch":
        """A confirm that takes *at_most* so many seconds."""
        terms = [each.request.terms for each in pending]
        time = min(at_most, *(confirmation_time(each.lease) for each in terms))
        operation = Confirm(terms[0].min_replicas, math.ceil(1000 * time))
        return cls(pending[0].state, operation, pending)

    def settle_error(self, error: CommandError, now: float) -> None:
        if error.kind is ErrorKind.RETRY_LATER:
            for state, request in self.items:
                handout.not_confirmed(state, request, error.error)
        super().settle_error(error, now)

    def apply(self, reply: AnyReply, now: float) -> None:
        for state, request in self.items:
            handout.confirmed(state, request)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for state, request in self.items:
            handout.refuse(state, request, error)

    def write_again(self, *, arrived: bool) -> None:
        for state, request in self.items:
            if arrived:
                handout.confirm_anew(state, request)
            else:
                state.give_back_and_retry(request)
