"""Refresh extends leases. Restore puts a permit back that the server has forgotten.

A restore follows a refresh that found nothing, where state may have been lost, and one that found
a permit whose key or slots were lost.
"""

import math
from collections.abc import Sequence
from itertools import islice

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import Outcome
from redsem_async._hub import handout, trust
from redsem_async._hub.lease import Lease
from redsem_async._hub.pending import PendingRefresh
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Refresh, Restore, RestoredPermit
from redsem_async._protocol.replies import AnyReply, Reply

from .base import Batch

MAX_REFRESHES = 1250
MAX_HEAVY_REFRESHES = 64  # where some are for several permits


class RefreshBatch(Batch[PendingRefresh]):
    """Leases to be refreshed, all of one length."""

    __slots__ = ()

    @classmethod
    def take(cls, state: SemaphoreState) -> "RefreshBatch":
        """The next batch. There is one."""
        refreshes = state.refreshes
        if len(refreshes) == 1:
            pending = refreshes.popitem()[1]
            return cls(state, refresh_of([pending.lease]), [pending])
        first = next(iter(refreshes.values())).lease.terms
        alike = (p for p in refreshes.values() if refreshed_alike(p.lease.terms, first))
        batch = list(islice(alike, MAX_REFRESHES))
        if any(pending.lease.permits > 1 for pending in batch):
            batch = batch[:MAX_HEAVY_REFRESHES]
        for pending in batch:
            del refreshes[pending.lease.number]
        return cls(state, refresh_of([pending.lease for pending in batch]), batch)

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        state, sent_at = self.state, self.sent_at
        for pending, held in zip(self.items, reply.answers, strict=True):
            if held:
                assert isinstance(held, int)
                if pending.lease.terms.max_hold is not None:
                    pending.lease.note_hold_left(held, sent_at)
                settle(state, pending, Outcome.RENEWED, sent_at, now)
                if held < 0:  # the server lost its key or its slots
                    state.restore(PendingRefresh(pending.lease))
            elif state.recovers and pending.lease.trusted_at(clock()):
                state.restore(pending)
            else:
                settle(state, pending, Outcome.GONE, sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for pending in self.items:
            settle(self.state, pending, Outcome.UNKNOWN, self.sent_at, now)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self.items:
            if pending.lease.holding:
                self.state.refresh_again(pending)
            else:
                settle(self.state, pending, Outcome.UNKNOWN, self.sent_at, clock())


class RestoreBatch(Batch[PendingRefresh]):
    """Leases to be put back, all of one length."""

    __slots__ = ()

    @classmethod
    def take(cls, state: SemaphoreState) -> "RestoreBatch":
        """The next batch. There is one."""
        restores, most = state.restores, state.max_batch
        first = restores[0].lease.terms
        batch: list[PendingRefresh] = []
        while restores and len(batch) < most:
            if not refreshed_alike(restores[0].lease.terms, first):
                break
            batch.append(restores.popleft())
        operation = restore_of([pending.lease for pending in batch])
        return cls(state, operation._replace(hub_info=state.introduction.take()), batch)

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        for pending, held in zip(self.items, reply.answers, strict=True):
            outcome = Outcome.RENEWED if held else Outcome.GONE
            settle(self.state, pending, outcome, self.sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        for pending in self.items:
            settle(self.state, pending, Outcome.UNKNOWN, self.sent_at, now)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self.items:
            if pending.lease.trusted_at(clock()):
                self.state.restore(pending)
            else:
                settle(self.state, pending, Outcome.UNKNOWN, self.sent_at, clock())


def settle(
    state: SemaphoreState, pending: PendingRefresh, outcome: Outcome, sent_at: float, now: float
) -> None:
    """Apply the outcome to the lease, and wake the callers that wait for it."""
    trust.refreshed(state, pending.lease, outcome, sent_at, now)
    pending.settle(outcome)
    if pending.request is not None:
        handout.refreshed(state, pending.request, outcome, sent_at, now)


def drop_restores(state: SemaphoreState) -> None:
    """No reply will come for restores that are not written."""
    while state.restores:
        settle(state, state.restores.popleft(), Outcome.UNKNOWN, 0.0, clock())


def max_hold_ms_of(terms: Terms) -> int | None:
    """The ``max_hold``, for the server."""
    return None if terms.max_hold is None else math.ceil(1000 * terms.max_hold)


def refreshed_alike(one: Terms, other: Terms) -> bool:
    """Whether one command may refresh permits with these terms."""
    return one is other or (one.lease_ms == other.lease_ms and one.max_hold == other.max_hold)


def refresh_of(leases: Sequence[Lease]) -> Refresh:
    """The operation that refreshes *leases*, which are refreshed alike."""
    terms = leases[0].terms
    heavy = {lease.number: lease.permits for lease in leases if lease.permits > 1}
    numbers = [lease.number for lease in leases]
    return Refresh(numbers, terms.lease_ms, heavy, max_hold_ms_of(terms))


def restore_of(leases: Sequence[Lease]) -> Restore:
    """The operation that puts *leases* back, which are refreshed alike."""
    terms = leases[0].terms
    permits = [RestoredPermit(c.number, c.token, c.permits, c.key, c.slots) for c in leases]
    return Restore(permits, terms.lease_ms, None, terms.slots, max_hold_ms_of(terms))
