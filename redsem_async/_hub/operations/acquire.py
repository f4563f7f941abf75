"""Acquire: claims ask for permits."""

from collections import deque
from collections.abc import Callable, Sequence

from redsem_async._core.config import Slot, Terms
from redsem_async._core.errors import QueueFull, SemaphoreError
from redsem_async._core.lease import trusted_until
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.deadlines import Deadlines
from redsem_async._hub.handout import Handout
from redsem_async._hub.ledger import Ledger
from redsem_async._hub.waiters import Waiters
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Acquire, RequestOptions
from redsem_async._protocol.replies import (
    FULL,
    FULL_FOR_KEY,
    GONE,
    QUEUE_FULL,
    QUEUE_FULL_FOR_KEY,
    WAITING_FOR_KEY,
    AnyReply,
    Holding,
    Reply,
)

from .abandon import AbandonQueue
from .base import Batch, error_for, max_batch

_ANY_FULL = frozenset({FULL, FULL_FOR_KEY, QUEUE_FULL, QUEUE_FULL_FOR_KEY})
_NO_EFFECT = frozenset(
    {
        ErrorKind.MODE_MISMATCH,
        ErrorKind.LAYOUT_MISMATCH,
        ErrorKind.SLOTS_MISMATCH,
        ErrorKind.NO_MEMORY,
    }
)


def _begun(claim: Claim) -> float:
    """When the wait of *claim* counts as begun."""
    return claim.started - claim.ahead


class AcquireQueue:
    """Writes the claims that are new, or ask again; `Ledger.new` has them.

    *apply* applies what a reply says beside its answers.
    """

    def __init__(
        self,
        ledger: Ledger,
        waiters: Waiters,
        handout: Handout,
        abandons: AbandonQueue,
        deadlines: Deadlines,
        apply: Callable[..., None],
    ) -> None:
        self.ledger: Ledger = ledger
        self.waiters: Waiters = waiters
        self.handout: Handout = handout
        self.abandons: AbandonQueue = abandons
        self.deadlines: Deadlines = deadlines
        self.apply: Callable[..., None] = apply

    def take(self) -> Batch | None:
        """The next batch, of claims with the same terms; None where no claim is to be written."""
        ledger = self.ledger
        if self.waiters.unsorted:
            self.waiters.unsorted = False
            ledger.new = deque(sorted(ledger.new, key=_begun))
        new = ledger.new
        claims: list[Claim] = []
        exceptional: dict[int, RequestOptions] = {}
        terms: Terms | None = None
        most = max_batch(ledger)
        while new and len(claims) < most:
            claim = new[0]
            if claim.state is State.NEW:
                if terms is not claim.terms:
                    if terms is not None and terms != claim.terms:
                        break
                    terms = claim.terms
                ledger.give_number(claim)
                claim.written()
                claims.append(claim)
                if claim.permits != 1 or not claim.waits or claim.ahead or claim.key:
                    exceptional[claim.number] = claim.unusual
            new.popleft()
        if not claims:
            return None
        batch = AcquireBatch(self, self.waiters.acquire(claims, exceptional), claims)
        ledger.acquires_in_flight.append(claims[-1].number)
        return batch

    def reject_full(self, claim: Claim, *, for_key: bool = False) -> None:
        """The server replied "full" to a claim that does not wait, or may not."""
        ledger, terms = self.ledger, claim.terms
        bound = terms.max_waiters_per_key if for_key else terms.max_waiters
        if claim.waits and bound is not None:
            facts = (ledger.name, bound, ledger.retry_after(claim), for_key)
            ledger.turn_down(claim, QueueFull(*facts))
        else:
            ledger.turn_down(claim, ledger.timed_out(claim))


class AcquireBatch(Batch):
    """Claims that ask for permits."""

    __slots__ = ("_claims", "_queue")

    def __init__(self, queue: AcquireQueue, operation: Acquire, claims: Sequence[Claim]) -> None:
        super().__init__(queue.ledger, operation)
        self._queue = queue
        self._claims = claims

    @property
    def lone(self) -> bool:
        return len(self._claims) == 1

    @property
    def slots(self) -> Sequence[Slot] | None:
        return self._claims[0].terms.slots

    def settle(self, reply: AnyReply | CommandError) -> None:
        self.ledger.acquires_in_flight.popleft()
        if isinstance(reply, CommandError) and reply.kind in _NO_EFFECT:
            for claim in self._claims:
                if claim.state is State.SENT:
                    # One that was sent before may be known to the server from then.
                    known = claim.was_sent
                    end = self._queue.abandons.refuse if known else self.ledger.turn_down
                    end(claim, error_for(self.ledger, reply, self.slots))
        else:
            super().settle(reply)

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        assert isinstance(self.operation, Acquire)
        queue, ledger = self._queue, self.ledger
        terms = self._claims[0].terms
        trusted = trusted_until(terms.lease, sent_at=self.sent_at, left=terms.lease)
        at_once = self.replied_at < trusted and not terms.min_replicas
        report = ledger.line_report_of(self.sent_at, reply)
        again: list[Claim] = []
        wait: list[Claim] = []
        stopped_early = reply.next_ms == 0  # a reap goes on: there may be room afterwards
        numbers = self.operation.numbers  # a claim that asked anew has another by now
        for claim, number, answer in zip(self._claims, numbers, reply.answers, strict=True):
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                queue.handout.granted(number, answer.token, left, self.sent_at, answer.slots)
            elif claim.state is not State.SENT or claim.number != number:
                continue  # its caller left, and an abandon is on its way; or it asked anew
            elif answer > 0:
                claim.granted(answer, trusted, self.sent_at)
                claim.slots = reply.slots.get(number, ())
                if at_once:
                    claim.hand_out()
                else:
                    queue.handout.hand_out(claim)
            elif answer == GONE or (stopped_early and answer in _ANY_FULL):
                ledger.forget_number(claim)
                again.append(claim)
            else:
                claim.report, claim.unconfirmed = report, None
                claim.waits_for_key = answer in (WAITING_FOR_KEY, FULL_FOR_KEY)
                if not claim.waits or answer in (QUEUE_FULL, QUEUE_FULL_FOR_KEY):
                    queue.reject_full(claim, for_key=answer == QUEUE_FULL_FOR_KEY)
                else:
                    wait.append(claim)
        if again:
            ledger.ask_again(again)
        if wait:
            queue.waiters.must_wait(wait)
            queue.deadlines.ask_early(wait)
        if (asked := self.operation.right) is not None:
            ledger.right.answered(reply.right, asked, self.sent_at)
        queue.apply(reply, self.sent_at)
        if ledger.overdue:
            queue.deadlines.settle()

    def refused(self, error: SemaphoreError) -> None:
        for claim in self._claims:
            if claim.state is State.SENT:
                self._queue.abandons.refuse(claim, error)

    def write_again(self, *, arrived: bool) -> None:
        if arrived:
            self.ledger.acquires_in_flight.clear()
            for claim in self._claims:
                claim.was_sent = True
        # For those whose callers left, an abandon is on its way.
        self.ledger.ask_again([claim for claim in self._claims if claim.state is State.SENT])
