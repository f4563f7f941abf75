"""Confirm: WAIT until enough replicas have what was written on this connection."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import confirmation_time
from redsem_async._hub.claim import Claim
from redsem_async._hub.handout import Handout
from redsem_async._hub.ledger import Ledger
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Confirm
from redsem_async._protocol.replies import AnyReply

from .base import Batch


class PendingConfirm(NamedTuple):
    """A grant to be confirmed."""

    ledger: Ledger
    claim: Claim
    handout: Handout


class ConfirmBatch(Batch):
    """Grants, of any semaphores, that are handed out once so many replicas know of them."""

    __slots__ = ("_pending",)

    def __init__(self, pending: Sequence[PendingConfirm], at_most: float) -> None:
        terms = [each.claim.terms for each in pending]
        time = min(at_most, *(confirmation_time(each.lease) for each in terms))
        super().__init__(pending[0].ledger, Confirm(terms[0].min_replicas, math.ceil(1000 * time)))
        self._pending = pending

    def settle(self, reply: AnyReply | CommandError) -> None:
        if isinstance(reply, CommandError) and reply.kind is ErrorKind.RETRY_LATER:
            for _, claim, handout in self._pending:
                handout.not_confirmed(claim, reply.error)
        super().settle(reply)

    def apply(self, reply: AnyReply) -> None:
        for _, claim, handout in self._pending:
            handout.confirmed(claim)

    def refused(self, error: SemaphoreError) -> None:
        for _, claim, handout in self._pending:
            handout.refuse(claim, error)

    def write_again(self, *, arrived: bool) -> None:
        for _, claim, handout in self._pending:
            if arrived:
                handout.confirm_anew(claim)
            else:
                handout.give_back_and_retry(claim)
