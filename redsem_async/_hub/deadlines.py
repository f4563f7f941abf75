"""What becomes of a claim when the caller's deadline comes.

AcquireTimeout says that the server replied, lately enough, that the claim has to wait.
BackendUnavailable says that it did not reply. To tell one from the other, the server is asked
when the deadline comes, with one heartbeat for all claims, and GRACE is given to the reply. Far
from the server it is asked one round trip earlier.
"""

import math
from collections.abc import Iterable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import BackendUnavailable, SemaphoreError

from .claim import Claim, State
from .heartbeat_timer import HeartbeatTimer
from .ledger import Ledger
from .operations.abandon import AbandonQueue
from .route import FRESH, GRACE


class Deadlines:
    """The deadlines of one semaphore's claims."""

    def __init__(self, ledger: Ledger, heartbeats: HeartbeatTimer, abandons: AbandonQueue) -> None:
        self._ledger = ledger
        self._loop = ledger.identity.loop
        self._heartbeats = heartbeats
        self._abandons = abandons

    def expire(self, claim: Claim, lead: float = 0.0) -> None:
        """Called *lead* seconds before the deadline, at it, and GRACE after it.

        The reply to a heartbeat decides in between.
        """
        if not claim.pending:
            return
        overdue = self._ledger.overdue
        if claim.replies_since is None:
            # For a claim that has no reply yet, any reply decides.
            waits = claim.state is State.WAITING
            young = clock() - max(0.0, FRESH - lead)
            claim.replies_since = max(young, claim.started) if waits else -math.inf
            # A loop that was blocked notices a deadline late, and has GRACE from then on.
            claim.deadline = max(claim.deadline, self._loop.time() + lead)
        error = None if lead else self._verdict(claim)
        if error is None and claim not in overdue:
            claim.timer = self._loop.call_later(lead + GRACE, self.expire, claim)
            overdue[claim] = None
            if claim.state is State.WAITING and not self._heartbeats.in_flight:
                self._heartbeats.beat()
        else:
            self._abandons.refuse(claim, error or self._no_reply(claim))

    def ask_early(self, claims: Iterable[Claim]) -> None:
        """*claims* wait: far away, have the server asked before their deadlines come."""
        lead = self._ledger.route.link.lead
        if not lead:
            return
        for claim in claims:
            if claim.timer is None or claim.replies_since is not None:
                continue
            if claim.deadline - lead > self._loop.time():
                claim.timer.cancel()
                claim.timer = self._loop.call_at(claim.deadline - lead, self.expire, claim, lead)
            else:
                claim.replies_since = -math.inf  # no reply could be younger when it comes

    def settle(self) -> None:
        """A reply came: end the claims whose deadline has come, unless they are served."""
        now, overdue = self._loop.time(), self._ledger.overdue
        for claim in list(overdue):
            if claim.state is State.WAITING and (error := self._verdict(claim)):
                if now < claim.deadline and claim.timer is not None:
                    # It was asked for early, and the reply came sooner than others did.
                    del overdue[claim]
                    claim.timer.cancel()
                    claim.timer = self._loop.call_at(claim.deadline, self.expire, claim)
                else:
                    self._abandons.refuse(claim, error)
            elif not claim.pending:
                del overdue[claim]
        waiting = any(claim.state is State.WAITING for claim in overdue)
        if waiting and not self._heartbeats.in_flight:
            self._heartbeats.beat()  # the reply was to a command sent before their deadlines

    def _verdict(self, claim: Claim) -> SemaphoreError | None:
        """The error for *claim*, by what is known; None while a reply is awaited."""
        route = self._ledger.route
        if route.error is not None:
            return route.unavailable()
        if claim.unconfirmed is not None or not claim.waits:
            return self._no_reply(claim)
        return self._ledger.timed_out(claim) if self._surely_waits(claim) else None

    def _surely_waits(self, claim: Claim) -> bool:
        """Whether the server said that *claim* waits, lately enough for its deadline.

        It did where it said so itself. Where push messages come and nothing is in doubt, any reply
        says so: a push message for *claim* would have come before it. With keys, only a reply to
        *claim* says what holds it up.
        """
        since, report = claim.replies_since, claim.report
        if claim.state is not State.WAITING or since is None:
            return False
        if report is not None and report.sent_at >= since:
            return True
        route = self._ledger.route
        if self._ledger.semaphore.address.keyed:
            return False
        doubtful = self._heartbeats.expected or route.redirect or route.link.no_push
        fresh_at = route.link.fresh_at
        return not doubtful and fresh_at is not None and fresh_at >= since

    def _no_reply(self, claim: Claim) -> BackendUnavailable:
        route = self._ledger.route
        if claim.state is State.GRANTED or claim.unconfirmed is not None:
            return route.unconfirmed(claim.unconfirmed)
        return route.unavailable(TimeoutError("no answer came in time"))
