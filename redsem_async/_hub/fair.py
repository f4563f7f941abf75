"""FairSemaphore: waiters stand in the server's line, and are served from it."""

import math
from collections.abc import Sequence
from itertools import islice

from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Acquire, Heartbeat
from redsem_async._protocol.replies import Reply

from .claim import Claim, LineReport, State
from .waiters import Exceptional, Waiters

MAX_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when nothing is in doubt
FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment


class FairWaiters(Waiters):
    """A waiter keeps its number, and with it its place, until it is served or leaves."""

    _line = 0  # requests in line, of all processes, by the last reply
    _unsure: tuple[Claim, ...] = ()  # waiters to be asked about before all others

    def acquire(self, claims: Sequence[Claim], exceptional: Exceptional) -> Acquire:
        terms, first = claims[0].terms, claims[0].number
        before = [n for n in self._ledger.acquires_in_flight if n < first]
        return Acquire(
            [claim.number for claim in claims],
            terms.lease_ms,
            terms.limit,
            exceptional,
            max_waiters=terms.max_waiters,
            max_waiters_per_key=terms.max_waiters_per_key,
            after=max(before, default=0),
            hub_info=self._ledger.introduction.take(),
            right=self._ledger.right.ask(),
            slots=terms.slots,
        )

    def must_wait(self, claims: Sequence[Claim]) -> None:
        self._ledger.wait(claims)
        for notifier in observers.notifiers:
            notifier.queued(claims)

    def line_reported(self, report: LineReport) -> None:
        """Each waiter goes by what was said of itself."""

    def apply(self, reply: Reply) -> None:
        self._line = reply.waiting

    @property
    def behind(self) -> bool:
        return self._line - len(self._ledger.waiting) > FIRST_FEW

    # -- heartbeats

    def heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        return Heartbeat(
            math.ceil(1000 * self._ledger.longest_lease),
            [claim.request for claim in asked],
            hub_info=self._ledger.introduction.take(),
            right=self._ledger.right.ask(),
        )

    def asked_about(self) -> Sequence[Claim]:
        """Those whose deadline has come; then the first in line, to see that it is still there.

        Or all of them, where push messages may have been missed.
        """
        waiting = self._ledger.waiting
        if self._ledger.route.link.no_push and not self._unsure:
            self._unsure = tuple(waiting)
        overdue = [claim for claim in self._ledger.overdue if claim.state is State.WAITING]
        unsure = [claim for claim in self._unsure if claim.state is State.WAITING]
        others = unsure or islice(waiting, FIRST_ASKED)
        asked = dict.fromkeys(islice(dict.fromkeys((*overdue, *others)), MAX_ASKED))
        self._unsure = tuple(claim for claim in unsure if claim not in asked)
        return list(asked)

    def found_gone(self, claims: Sequence[Claim]) -> None:
        """Ask again for *claims*. One that is gone makes all others doubtful."""
        for claim in reversed(claims):
            self._ledger.ask_anew(claim)
        if claims and not self._unsure:
            self._unsure = tuple(self._ledger.waiting)
        if self._unsure:
            self._heartbeats.beat()

    def reconnected(self) -> None:
        self._unsure = tuple(self._ledger.waiting)
