"""The lane of a FairSemaphore: waiters stand in the server's line, and are served from it."""

import math
from collections.abc import Sequence
from itertools import islice

from ._claim import Claim, State
from ._lane import Lane, Unusual
from ._protocol import Acquire, Heartbeat, Reply
from ._watch import watch

MOST_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when all is well
FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment


class FairLane(Lane):
    """A waiter keeps its number, and with it its place, until it is served or leaves."""

    _line = 0  # requests in line, of all processes, as last heard
    _unsure: tuple[Claim, ...] = ()  # waiters to be asked about before all others

    def _may_be_known(self, claim: Claim, state: State) -> bool:
        return state is State.WAITING or super()._may_be_known(claim, state)

    def _acquire(self, claims: Sequence[Claim], unusual: Unusual) -> Acquire:
        terms, first = claims[0].terms, claims[0].number
        before = [number for number in self.unanswered if number < first]
        return Acquire(
            [claim.number for claim in claims],
            terms.lease_ms,
            terms.limit,
            unusual,
            max_waiters=terms.max_waiters,
            after=max(before, default=0),
            introduction=self._introduction(),
        )

    def must_wait(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            claim.state = State.WAITING
            self.waiting[claim] = None
        if claims:
            self.mind_distance(claims)
        for teller in watch.tellers:
            teller.queued(claims)

    def _standing(self, reply: Reply) -> None:
        self._line = reply.waiting

    def _behind(self) -> bool:
        return self._line - len(self.waiting) > FIRST_FEW

    # -- heartbeats

    def _heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        return Heartbeat(
            math.ceil(1000 * self._longest),
            [claim.request for claim in asked],
            introduction=self._introduction(),
        )

    def _asked_about(self) -> Sequence[Claim]:
        """Those whose deadline has come; then the first in line, to see that it is still there.

        Or all of them, where grants may have gone unheard.
        """
        if self.post.deaf and not self._unsure:
            self._unsure = tuple(self.waiting)
        overdue = [claim for claim in self.overdue if claim.state is State.WAITING]
        unsure = [claim for claim in self._unsure if claim.state is State.WAITING]
        others = unsure or islice(self.waiting, FIRST_ASKED)
        asked = dict.fromkeys(islice(dict.fromkeys((*overdue, *others)), MOST_ASKED))
        self._unsure = tuple(claim for claim in unsure if claim not in asked)
        return list(asked)

    def found_gone(self, claims: Sequence[Claim]) -> None:
        """One that is gone makes all others doubtful."""
        for claim in reversed(claims):
            self._ask_anew(claim)
        if claims and not self._unsure:
            self._unsure = tuple(self.waiting)
        if self._unsure:
            self.beat()

    def reconnected(self) -> None:
        self._unsure = tuple(self.waiting)
        super().reconnected()
