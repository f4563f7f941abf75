"""Adopt: a permit of another process is taken over, under a number of this one's."""

import math
from collections.abc import Callable, Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot
from redsem_async._core.errors import PermitLost, SemaphoreError
from redsem_async._core.keys import permit_id
from redsem_async._core.lease import trusted_until
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.handout import Handout
from redsem_async._protocol.operations import Adopt, KeyTerms
from redsem_async._protocol.replies import AdoptReply, AnyReply

from .abandon import AbandonQueue
from .base import Batch
from .query import QueryQueue, QueuedCall
from .refresh import RefreshQueue


class PendingAdopt(QueuedCall):
    """The permit *old* of the hub *owner*, to be taken over by a claim.

    *revoked* is called with *old* where it was this hub's: no push message says so then.
    """

    numbered: bool = True

    def __init__(
        self,
        claim: Claim,
        owner: str,
        old: int,
        refreshes: RefreshQueue,
        handout: Handout,
        revoked: Callable[[Sequence[int]], None],
    ) -> None:
        super().__init__()
        self.claim: Claim = claim
        self.owner: str = owner
        self.old: int = old
        self.refreshes: RefreshQueue = refreshes
        self.handout: Handout = handout
        self.revoked: Callable[[Sequence[int]], None] = revoked

    @property
    def wanted(self) -> bool:
        return self.claim.state <= State.SENT

    def batch(self, queue: QueryQueue) -> Batch:
        claim, ledger = self.claim, queue.ledger
        ledger.give_number(claim)
        claim.written()
        claim.call = self.number
        hub_info, lease_ms = ledger.introduction.take(), claim.terms.lease_ms
        longest = claim.terms.max_hold
        operation = Adopt(
            self.owner,
            self.old,
            claim.number,
            lease_ms,
            hub_info,
            self.number,
            None if longest is None else math.ceil(1000 * longest),
            claim.terms.slots,
        )
        return AdoptBatch(queue, operation, self)

    def fail(self, error: SemaphoreError, abandons: AbandonQueue) -> None:
        if self.wanted:
            abandons.refuse(self.claim, error)


class AdoptBatch(Batch):
    """An adoption."""

    __slots__ = ("_adopt", "_queue")

    def __init__(self, queue: QueryQueue, operation: Adopt, adopt: PendingAdopt) -> None:
        super().__init__(queue.ledger, operation)
        self._queue = queue
        self._adopt = adopt

    @property
    def slots(self) -> Sequence[Slot] | None:
        return self._adopt.claim.terms.slots

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, AdoptReply)
        adopt, claim, ledger = self._adopt, self._adopt.claim, self.ledger
        self._queue.landed(adopt)
        if claim.state is not State.SENT:
            return  # its caller left, and an abandon is on its way
        if reply.holding is None:
            old_id = permit_id(adopt.owner, adopt.old)
            reason = "that id holds nothing any more"
            ledger.turn_down(claim, PermitLost(ledger.name, old_id, reason))
            return
        if adopt.owner == ledger.identity.id:
            adopt.revoked([adopt.old])
        lease = claim.terms.lease
        left = min(lease, reply.holding.left_ms / 1000)
        claim.permits, claim.slots = reply.permits, reply.holding.slots
        claim.key = None if reply.key is None else KeyTerms(reply.key)
        trusted = trusted_until(lease, sent_at=self.sent_at, left=left)
        claim.granted(reply.holding.token, trusted, self.sent_at - reply.held_ms / 1000)
        if left < lease:
            _ = adopt.refreshes.refresh(claim)  # carried out before, and the reply was lost
        if not claim.trusted_at(clock()):
            # The loop stood still for a lease. Another permit would not do: it is this one's job.
            self._queue.abandons.refuse(claim, claim.loss())
            return
        adopt.handout.hand_out(claim)

    def refused(self, error: SemaphoreError) -> None:
        self._queue.landed(self._adopt)
        self._adopt.fail(error, self._queue.abandons)

    def write_again(self, *, arrived: bool) -> None:
        adopt = self._adopt
        self._queue.landed(adopt)
        adopt.renumber |= not arrived
        if adopt.claim.state is State.SENT:
            adopt.claim.ask_again()
        self._queue.write_again(adopt)
