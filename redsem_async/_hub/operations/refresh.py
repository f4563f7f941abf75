"""Refresh: leases are renewed. Restore: a permit that the server has forgotten is put back.

A restore follows a refresh that found nothing, where state may have been lost, and one that found
a permit whose key or slots were lost.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import Lost, Outcome, after_refresh, clock_margin
from redsem_async._hub.claim import Claim
from redsem_async._hub.ledger import Ledger
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Refresh, Restore, RestoredPermit
from redsem_async._protocol.replies import Answer, AnyReply, Reply

from .base import Batch, max_batch

MAX_REFRESHES = 1250
MAX_HEAVY_REFRESHES = 64  # where some are for several permits


Turn = asyncio.Future[Outcome | None]


class PendingRefresh:
    """A permit to be refreshed, and who is told of the outcome.

    Attributes:
        futures: of callers that wait for the outcome.
        turns: of refresh tasks, which are told where there was no answer.
    """

    __slots__ = ("claim", "futures", "turns")

    def __init__(self, claim: Claim) -> None:
        self.claim: Claim = claim
        self.futures: list[asyncio.Future[Outcome]] = []
        self.turns: list[Turn] = []


class RefreshQueue:
    """The refreshes to be written, `by_number`, and the `restores`.

    *lose* is called with a claim that holds nothing any more, and why.
    """

    def __init__(self, ledger: Ledger, lose: Callable[[Claim, str], None]) -> None:
        self._ledger = ledger
        self._lose = lose
        self.by_number: dict[int, PendingRefresh] = {}
        self.restores: deque[PendingRefresh] = deque()

    def refresh(self, claim: Claim) -> "asyncio.Future[Outcome]":
        """Renew a lease. The claim has the outcome before the future wakes anybody."""
        future: asyncio.Future[Outcome] = self._ledger.identity.loop.create_future()
        self._pending(claim).futures.append(future)
        return future

    def refresh_in_background(self, claim: Claim, turn: Turn) -> None:
        """Renew a lease. A refresh that is not answered ends *turn*, and a renewal does not."""
        self._pending(claim).turns.append(turn)

    def _pending(self, claim: Claim) -> PendingRefresh:
        pending = self.by_number.get(claim.number)
        if pending is None:
            pending = PendingRefresh(claim)
            self.write(pending)
        return pending

    def write(self, pending: PendingRefresh) -> None:
        """Write a refresh, together with others."""
        known = self.by_number.setdefault(pending.claim.number, pending)
        if known is not pending:
            known.futures.extend(pending.futures)
            known.turns.extend(pending.turns)
        self._ledger.wake()

    def restore(self, pending: PendingRefresh) -> None:
        """Put a permit back that a refresh did not find."""
        self.restores.append(pending)
        self._ledger.wake()

    def forget(self, claim: Claim) -> None:
        """*claim* is given back: a refresh that is not written yet is of no use."""
        self.by_number.pop(claim.number, None)

    def take(self) -> Batch:
        """The next batch; there is one."""
        return self._take_refreshes() if self.by_number else self._take_restores()

    def _take_refreshes(self) -> Batch:
        first = next(iter(self.by_number.values())).claim.terms
        alike = (p for p in self.by_number.values() if refreshed_alike(p.claim.terms, first))
        batch = list(islice(alike, MAX_REFRESHES))
        if any(pending.claim.permits > 1 for pending in batch):
            batch = batch[:MAX_HEAVY_REFRESHES]
        for pending in batch:
            del self.by_number[pending.claim.number]
        return RefreshBatch(self._ledger, self, batch)

    def _take_restores(self) -> Batch:
        first = self.restores[0].claim.terms
        batch: list[PendingRefresh] = []
        most = max_batch(self._ledger)
        while self.restores and len(batch) < most:
            if not refreshed_alike(self.restores[0].claim.terms, first):
                break
            batch.append(self.restores.popleft())
        return RestoreBatch(self._ledger, self, batch)

    def settle(
        self, pending: PendingRefresh, outcome: Outcome, sent_at: float, now: float | None = None
    ) -> None:
        """Apply the outcome to the permit, and wake the callers that wait for it."""
        self.refreshed(pending.claim, outcome, sent_at, clock() if now is None else now)
        for future in pending.futures:
            if not future.done():
                future.set_result(outcome)
        if outcome is Outcome.UNKNOWN:
            for turn in pending.turns:
                if not turn.done():
                    turn.set_result(outcome)

    def refreshed(self, claim: Claim, outcome: Outcome, sent_at: float, now: float) -> None:
        """A refresh that was sent at *sent_at* has ended by *now*."""
        if not claim.holding:
            return
        if outcome is Outcome.RENEWED and sent_at <= claim.renewable_after:
            outcome = Outcome.UNKNOWN  # a detach may have been carried out after it
        verdict = after_refresh(
            claim.trusted_until, claim.terms.lease, outcome, sent_at=sent_at, now=now
        )
        if isinstance(verdict, Lost):
            gone = outcome is Outcome.GONE
            self._lose(claim, verdict.reason if gone else self._ledger.doubt(claim))
        else:
            claim.renew(verdict)
            if outcome is Outcome.RENEWED:
                for notifier in observers.notifiers:
                    notifier.refreshed(claim, claim.trusted_until - now)

    def drop_restores(self) -> None:
        """No reply will come for restores that are not written."""
        while self.restores:
            self.settle(self.restores.popleft(), Outcome.UNKNOWN, 0.0)


class RefreshBatch(Batch):
    """Permits to be refreshed, all with one lease."""

    __slots__ = ("_pending", "_queue")

    def __init__(
        self, ledger: Ledger, queue: RefreshQueue, pending: Sequence[PendingRefresh]
    ) -> None:
        super().__init__(ledger, refresh_of([each.claim for each in pending]))
        self._queue = queue
        self._pending = pending

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        settle, sent_at, now = self._queue.settle, self.sent_at, clock()
        for pending, held in zip(self._pending, reply.answers, strict=True):
            if held:
                note_hold_left(pending.claim, held, sent_at)
                settle(pending, Outcome.RENEWED, sent_at, now)
                if is_incomplete(held):
                    self._queue.restore(PendingRefresh(pending.claim))
            elif self.semaphore.recovers and pending.claim.trusted_at(clock()):
                self._queue.restore(pending)
            else:
                settle(pending, Outcome.GONE, sent_at, now)

    def refused(self, error: SemaphoreError) -> None:
        for pending in self._pending:
            self._queue.settle(pending, Outcome.UNKNOWN, self.sent_at)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self._pending:
            if pending.claim.holding:
                self._queue.write(pending)
            else:
                self._queue.settle(pending, Outcome.UNKNOWN, self.sent_at)


class RestoreBatch(Batch):
    """Permits to be put back, all with one lease."""

    __slots__ = ("_pending", "_queue")

    def __init__(
        self, ledger: Ledger, queue: RefreshQueue, pending: Sequence[PendingRefresh]
    ) -> None:
        claims = [each.claim for each in pending]
        hub_info = ledger.introduction.take()
        super().__init__(ledger, restore_of(claims)._replace(hub_info=hub_info))
        self._queue = queue
        self._pending = pending

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        for pending, held in zip(self._pending, reply.answers, strict=True):
            outcome = Outcome.RENEWED if held else Outcome.GONE
            self._queue.settle(pending, outcome, self.sent_at)

    def refused(self, error: SemaphoreError) -> None:
        for pending in self._pending:
            self._queue.settle(pending, Outcome.UNKNOWN, self.sent_at)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self._pending:
            if pending.claim.trusted_at(clock()):
                self._queue.restore(pending)
            else:
                self._queue.settle(pending, Outcome.UNKNOWN, self.sent_at)


def max_hold_ms_of(terms: Terms) -> int | None:
    """The ``max_hold``, for the server."""
    return None if terms.max_hold is None else math.ceil(1000 * terms.max_hold)


def refreshed_alike(one: Terms, other: Terms) -> bool:
    """Whether one command may refresh permits with these terms."""
    return one is other or (one.lease_ms == other.lease_ms and one.max_hold == other.max_hold)


def refresh_of(claims: Sequence[Claim]) -> Refresh:
    """The operation that renews the leases of *claims*, which are refreshed alike."""
    terms = claims[0].terms
    heavy = {claim.number: claim.permits for claim in claims if claim.permits > 1}
    numbers = [claim.number for claim in claims]
    return Refresh(numbers, terms.lease_ms, heavy, max_hold_ms_of(terms))


def note_hold_left(claim: Claim, answer: Answer, sent_at: float) -> None:
    """Note how much of its ``max_hold`` is left. May be called in any thread.

    *answer* is that to a refresh that was sent at *sent_at*, in milliseconds.
    """
    if claim.terms.max_hold is not None:
        assert isinstance(answer, int)
        ends = sent_at + abs(answer) / 1000 - clock_margin(claim.terms.lease)
        claim.hold_ends = min(claim.hold_ends, ends)


def is_incomplete(answer: Answer) -> bool:
    """Whether the server lost the key or the slots of the permit that a refresh found."""
    return isinstance(answer, int) and answer < 0


def restore_of(claims: Sequence[Claim]) -> Restore:
    """The operation that puts the permits of *claims* back, which are refreshed alike."""
    terms = claims[0].terms
    permits = [RestoredPermit(c.number, c.token, c.permits, c.key, c.slots) for c in claims]
    return Restore(permits, terms.lease_ms, None, terms.slots, max_hold_ms_of(terms))
