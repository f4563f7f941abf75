"""Delivers grants to callers.

Most grants are handed out at once. One that came late, or that replicas have to confirm, is
confirmed first: until then the claim is GRANTED, and its caller waits on.
"""

import asyncio
from collections.abc import Callable, Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome, trusted_until

from .claim import Claim, State
from .ledger import Ledger
from .operations.abandon import AbandonQueue
from .operations.refresh import RefreshQueue


class Handout:
    """Hands grants out, or gives them back and asks again.

    *confirm* has the pipeline wait until enough replicas know of a grant; `confirmed`,
    `not_confirmed`, `confirm_anew` or `give_back_and_retry` is called then.
    """

    def __init__(
        self,
        ledger: Ledger,
        refreshes: RefreshQueue,
        abandons: AbandonQueue,
        confirm: Callable[[Claim], None],
    ) -> None:
        self._ledger = ledger
        self._refreshes = refreshes
        self._abandons = abandons
        self._confirm = confirm

    def granted(
        self,
        number: int,
        token: int,
        left: float | None,
        sent_at: float,
        slots: Sequence[int] = (),
    ) -> None:
        """The server granted *number*, with *left* seconds of its lease left (None: all of it).

        It said so in reply to a command sent at *sent_at*, or later.
        """
        ledger = self._ledger
        claim = ledger.by_number.get(number)
        if claim is None and ledger.identity.drew(number):
            # No caller waits with that number any more.
            self._abandons.releases.give_back_unknown(ledger.identity.id, number)
        if claim is None or not claim.unserved:
            return  # known already; or its caller left, and an abandon is on its way
        ledger.stop_waiting(claim)
        lease, claim.slots = claim.terms.lease, slots
        if left is None:
            claim.granted(token, trusted_until(lease, sent_at=sent_at, left=lease), sent_at)
            self.hand_out(claim)
            return
        claim.granted(token, trusted_until(lease, sent_at=sent_at, left=left))
        if claim.terms.min_replicas:
            self.confirm_anew(claim)
            return
        # The message came late, or the lease is short: a refresh makes it whole. It is sent
        # before the body can block the loop. Where much of the lease is gone, or where that is
        # unknown, the caller gets the permit once the refresh has its reply.
        renewed = self._refreshes.refresh(claim)
        if claim.trusted_until - clock() >= left / 2:
            claim.hand_out()
        else:
            renewed.add_done_callback(lambda _: self.confirmed(claim))

    def hand_out(self, claim: Claim) -> None:
        """Give the caller its permit, once enough replicas know of the grant."""
        if not claim.trusted_at(clock()):
            self.give_back_and_retry(claim)  # the loop stood still for a lease
        elif claim.terms.min_replicas:
            self._confirm(claim)
        else:
            claim.hand_out()

    def confirm_anew(self, claim: Claim) -> None:
        """Refresh *claim*, so that there is a write on this connection to confirm."""
        if claim.state is not State.GRANTED:
            return

        def refreshed(outcome: "asyncio.Future[Outcome]") -> None:
            if claim.state is not State.GRANTED:
                return
            if outcome.result() is Outcome.RENEWED:
                self.hand_out(claim)
            else:
                self.confirmed(claim)

        self._refreshes.refresh(claim).add_done_callback(refreshed)

    def confirmed(self, claim: Claim) -> None:
        """What was awaited before the caller of *claim* gets its permit has happened."""
        if claim.state is not State.GRANTED:
            return
        if claim.trusted_at(clock()):
            claim.hand_out()
        else:
            self.give_back_and_retry(claim)

    def not_confirmed(self, claim: Claim, error: Exception) -> None:
        """Too few replicas know of the grant."""
        now = clock()
        if claim.unconfirmed is None:
            claim.unconfirmed_since = now
        claim.unconfirmed = error
        lasts = claim.timer is None and now - claim.unconfirmed_since > claim.terms.lease
        if claim.state is State.GRANTED and (lasts or not claim.waits):
            self._abandons.refuse(claim, self._ledger.route.unconfirmed(error))

    def give_back_and_retry(self, claim: Claim) -> None:
        """Give back what was granted, and ask again: before the caller came to hold it."""
        if claim.state is not State.GRANTED:
            return
        # Not trusted here, it may be held there: perhaps only the reply came too late.
        self._abandons.releases.give_back(claim, clock(), trusted=False)
        self._ledger.ask_anew(claim)

    def refuse(self, claim: Claim, error: Exception) -> None:
        """The grant cannot be confirmed, and another attempt is of no use."""
        if claim.state is State.GRANTED:
            self._abandons.refuse(claim, error)
