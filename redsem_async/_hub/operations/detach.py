"""Detach: a permit is kept in Redis for a time, and not by this process any more."""

import asyncio
import math
from contextlib import nullcontext

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import trusted_until
from redsem_async._hub.claim import Claim, State
from redsem_async._protocol.operations import Detach
from redsem_async._protocol.replies import AnyReply

from .base import Batch
from .query import Query, QueryBatch, QueryQueue
from .refresh import RefreshQueue, max_hold_ms_of


class PendingDetach(Query):
    """A detach. From when it is written the permit is trusted for *expires* seconds at most."""

    def __init__(
        self,
        claim: Claim,
        expires: float,
        future: "asyncio.Future[AnyReply | SemaphoreError]",
        refreshes: RefreshQueue,
    ) -> None:
        bound = max_hold_ms_of(claim.terms)
        operation = Detach(claim.number, math.ceil(1000 * expires), max_hold_ms=bound)
        super().__init__(operation, future)
        self.numbered: bool = True
        self._detach = operation
        self._claim = claim
        self._expires = expires
        self._refreshes = refreshes
        self._unsettled = False

    def batch(self, queue: QueryQueue) -> Batch:
        claim, expires = self._claim, self._expires
        if not self._unsettled:
            self._unsettled = True
            claim.unsettled += 1
        threaded = claim.terms.longest_stall is not None
        with queue.ledger.identity.trust_lock if threaded else nullcontext():
            claim.shorten(trusted_until(expires, sent_at=clock(), left=expires))
        return QueryBatch(queue, self._detach._replace(call=self.number), self)

    def ended(self) -> None:
        if self._unsettled:
            self._unsettled = False
            claim = self._claim
            claim.detach_settled(clock())
            held = claim.state is State.HELD and not claim.unsettled
            if not self.wanted and held:  # and was not detached once more meanwhile
                _ = self._refreshes.refresh(claim)
