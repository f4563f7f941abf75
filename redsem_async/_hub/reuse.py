"""Leases that are used again: by the next caller of this process, without a command.

A lease is what Redis keeps: an id, an expiry and a fencing token. A permit is one task's use of
it. Where a semaphore has `linger`, and this process has the right to reuse leases, leaving a block
passes the lease to the oldest waiter of this process, or keeps it for the next caller.

Prior art: lock caching in Chubby, and delegations with recall in NFSv4.
"""

import asyncio
from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms

from .claim import Claim, State
from .ledger import Ledger
from .operations.abandon import AbandonQueue

IN_A_ROW = 16  # acquires without a command, after which one lets the event loop run
HOLD_LEFT = 0.9  # of max_hold, which the next user of a lease has at least


class Reuse:
    """The kept leases of one semaphore, the latest last."""

    def __init__(self, ledger: Ledger, abandons: AbandonQueue, renew: Callable[[], None]) -> None:
        self.kept: list[Claim] = []
        self._ledger = ledger
        self._abandons = abandons
        self._loop = ledger.identity.loop
        self._timer: asyncio.TimerHandle | None = None
        self._in_a_row = 0
        ledger.right.on_renew, ledger.right.on_end = renew, self.give_all_back

    # -- a block is left

    def leave(self, lease: Claim, now: float) -> bool:
        """Pass *lease* on, or keep it. Returns False where it is to be released."""
        ledger = self._ledger
        if now >= ledger.right.until or ledger.identity.closing:
            return False
        if not self._may_be_reused(lease, now):
            return False
        if (claim := self._next_in_line()) is not None:
            if not lease.fits(claim.terms, claim.permits, claim.key) or not ledger.oldest_is_first:
                return False
            self._end_use(lease)
            self._pass(lease, claim)
            return True
        # A request in flight that is told to wait gets it then: see `serve_waiting`.
        self._end_use(lease)
        lease.kept_until = now + lease.terms.linger
        self.kept.append(lease)
        if self._timer is None:
            self._timer = self._loop.call_later(lease.terms.linger, self._time_passed)
        return True

    def serve_waiting(self) -> None:
        """Requests of this process were told to wait: pass what was kept meanwhile."""
        ledger, now = self._ledger, clock()
        while self.kept and ledger.waiting:
            lease, oldest = self.kept[-1], next(iter(ledger.waiting))
            fits = lease.fits(oldest.terms, oldest.permits, oldest.key)
            fits = fits and not lease.refresh_is_due(now)
            if now >= ledger.right.until or not fits or not ledger.oldest_is_first:
                self.give_all_back()
                return
            self.kept.pop()
            self._pass(lease, oldest)

    def _next_in_line(self) -> Claim | None:
        """The oldest claim that waits, or else the oldest that is not written yet."""
        waiting, new = self._ledger.waiting, self._ledger.new
        if waiting:
            return next(iter(waiting))
        while new and new[0].state is not State.NEW:
            new.popleft()  # its caller left, or was passed a lease
        return new[0] if new else None

    def _pass(self, lease: Claim, claim: Claim) -> None:
        """The caller of *claim* gets *lease*."""
        # Its request is abandoned. If the server grants it meanwhile, that is given back.
        self._abandons.leave(claim)
        claim.pass_on(lease)

    def _may_be_reused(self, lease: Claim, now: float) -> bool:
        terms = lease.terms
        return (
            lease.state is State.HELD
            and not lease.is_known
            and not lease.wakes_on_loss
            and terms.limit >= self._ledger.right.limit
            and not lease.refresh_is_due(now)
            and (not terms.max_hold or lease.hold_ends - now >= HOLD_LEFT * terms.max_hold)
        )

    def _end_use(self, lease: Claim) -> None:
        for notifier in observers.notifiers:
            notifier.released(lease)
        lease.keep()
        self._ledger.right.used = True

    # -- a permit is wanted

    def requested(self, terms: Terms) -> None:
        """A request goes to the server: kept leases go before it, because it may need one."""
        if terms.linger:
            self._ledger.right.want(terms.refresh_interval, terms.limit)
        self.give_all_back()

    def take(self, terms: Terms, permits: int, key: KeyTerms | None = None) -> Claim | None:
        """A kept lease that fits, used from now on."""
        ledger = self._ledger
        if not self.kept or ledger.acquires_in_flight:
            return None  # a request in flight may stand in line by now, and came before
        now = clock()
        if now >= ledger.right.until:
            ledger.right.end()
            return None
        lease = self.kept[-1]
        if not lease.fits(terms, permits, key) or lease.refresh_is_due(now):
            return None
        self.kept.pop()
        lease.reuse(now)
        return lease

    def others_are_due(self) -> bool:
        """Whether the loop runs before this acquire, because a recall has to be read."""
        self._in_a_row = (self._in_a_row + 1) % IN_A_ROW
        return self._in_a_row == 0

    # -- leases go back

    def give_back(self, lease: Claim) -> None:
        """Release a lease that nobody here uses."""
        if lease.state is State.KEPT:
            if lease in self.kept:
                self.kept.remove(lease)
            lease.end()
            self._abandons.releases.give_back(lease, clock(), trusted=False)

    def give_all_back(self) -> None:
        """Release every kept lease: the right has ended, or a request here cannot use them."""
        for lease in list(self.kept):
            self.give_back(lease)

    def drop(self, lease: Claim) -> None:
        """The server does not hold *lease* any more."""
        if lease in self.kept:
            self.kept.remove(lease)
        self._ledger.by_number.pop(lease.number, None)
        lease.end()

    def _time_passed(self) -> None:
        self._timer = None
        now = clock()
        for lease in [lease for lease in self.kept if lease.kept_until <= now]:
            self.give_back(lease)
        if self.kept:
            first = min(lease.kept_until for lease in self.kept)
            self._timer = self._loop.call_later(max(0.0, first - now), self._time_passed)
