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

IN_A_ROW = 16  # uses of kept leases, the last of which lets the event loop run
HOLD_LEFT = 0.9  # of max_hold, which the next user of a lease has at least


class Reuse:
    """The kept leases of one semaphore, the latest last."""

    def __init__(self, ledger: Ledger, abandons: AbandonQueue, renew: Callable[[], None]) -> None:
        self.kept: list[Claim] = []
        self._ledger = ledger
        self._abandons = abandons
        self._loop = ledger.identity.loop
        self._timer: asyncio.TimerHandle | None = None
        self._uses = 0
        self._yielding = 0
        ledger.right.on_renew, ledger.right.on_end = renew, self.give_all_back

    # -- a block is left

    def leave(self, lease: Claim, now: float) -> bool:
        """Pass *lease* on, or keep it. Returns False where it is to be released."""
        if not (self._may_be_reused(lease) and self._is_fresh(lease, now)):
            return False
        if (claim := self._next_in_line()) is not None:
            if not self._may_have(claim, lease):
                return False
            self._end_use(lease)
            self._pass(lease, claim)
            return True
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
            if not (self._is_fresh(lease, now) and self._may_have(oldest, lease)):
                self.give_all_back()
                return
            self.kept.pop()
            self._pass(lease, oldest)

    def _next_in_line(self) -> Claim | None:
        """The oldest claim that waits, or else the oldest that is not written yet.

        None where requests are in flight: one that is told to wait gets what is kept until then.
        """
        waiting, new = self._ledger.waiting, self._ledger.new
        if waiting:
            return next(iter(waiting))
        if self._ledger.acquires_in_flight:
            return None
        while new and new[0].state is not State.NEW:
            new.popleft()  # its caller left, or was passed a lease
        return new[0] if new else None

    def _pass(self, lease: Claim, claim: Claim) -> None:
        """The caller of *claim* gets *lease*."""
        # Its request is abandoned. If the server grants it meanwhile, that is given back.
        self._abandons.leave(claim)
        claim.pass_on(lease)

    def _may_have(self, claim: Claim, lease: Claim) -> bool:
        """Whether *lease* is for the oldest claim of this process."""
        fits = lease.fits(claim.terms, claim.permits, claim.key)
        return fits and self._ledger.oldest_is_first

    def _may_be_reused(self, lease: Claim) -> bool:
        return (
            lease.state is State.HELD
            and not lease.is_known
            and not lease.wakes_on_loss
            and not self._ledger.identity.closing
        )

    def _is_fresh(self, lease: Claim, now: float) -> bool:
        """Whether the right lasts, no refresh of *lease* is due, and its hold goes on."""
        max_hold = lease.terms.max_hold
        return (
            now < self._ledger.right.until
            and not lease.refresh_is_due(now)
            and (not max_hold or lease.hold_ends - now >= HOLD_LEFT * max_hold)
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

    def take(self, terms: Terms, permits: int, key: KeyTerms | None, now: float) -> Claim | None:
        """A kept lease that fits, for `Claim.reuse`."""
        if not self.kept or self._ledger.acquires_in_flight:
            return None  # a request in flight may stand in line by now, and came before
        lease = self.kept[-1]
        if not (lease.fits(terms, permits, key) and self._is_fresh(lease, now)):
            return None
        self._uses += 1
        return self.kept.pop()

    @property
    def others_are_due(self) -> bool:
        """Whether who has taken a lease lets the loop run first, because a recall is to be read.

        Others do then, too: whoever came first goes on first.
        """
        return self._uses >= IN_A_ROW or self._yielding > 0

    async def let_others_run(self, lease: Claim) -> Claim | None:
        """Let the loop run before the caller uses *lease*, which it has taken.

        Returns None where the lease is gone then. Cancelled, it gives the lease back.
        """
        self._uses = 0
        self._yielding += 1
        try:
            await asyncio.sleep(0)
        except BaseException:
            self.give_back(lease)
            raise
        finally:
            self._yielding -= 1
        if not self._is_fresh(lease, clock()):
            self.give_back(lease)  # the right has ended, or the loop was blocked for long
        return lease if lease.state is State.KEPT else None

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
