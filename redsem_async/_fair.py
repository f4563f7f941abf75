"""The lane of a FairSemaphore: waiters stand in the server's line, and are served from it."""

import math
from collections.abc import Sequence
from itertools import islice

from ._claim import Claim, State
from ._config import Terms
from ._lane import Batch, Lane
from ._protocol import GONE, Acquire, Heartbeat, Holding, Reply

MOST_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when all is well
FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment


class FairLane(Lane):
    """A waiter keeps its number, and with it its place, until it is served or leaves."""

    _line = 0  # requests in line, of all processes, as last heard
    _unsure: tuple[Claim, ...] = ()  # waiters to be asked about before all others

    def _may_be_known(self, claim: Claim, state: State) -> bool:
        return state is State.WAITING or super()._may_be_known(claim, state)

    def _acquire(self, claims: Sequence[Claim], terms: Terms) -> Acquire:
        first = claims[0].number
        before = [number for number in self._unanswered if number < first]
        return Acquire(
            [claim.request for claim in claims],
            max_waiters=terms.max_waiters,
            after=max(before, default=0),
            introduction=self._introduction(),
        )

    def _must_wait(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            claim.state = State.WAITING
            self.waiting[claim] = None

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
        """The first in line, whose answer tells whether the line is still there; all of them
        where grants may have gone unheard."""
        if self.hub.deaf and not self._unsure:
            self._unsure = tuple(self.waiting)
        unsure = [claim for claim in self._unsure if claim.state is State.WAITING]
        self._unsure = tuple(unsure[MOST_ASKED:])
        return unsure[:MOST_ASKED] or list(islice(self.waiting, FIRST_ASKED))

    def _heard_about(self, batch: Batch, reply: Reply) -> None:
        """Grants whose message was lost are found; one that is gone makes all others doubtful."""
        gone: list[Claim] = []
        for claim, answer in zip(batch.parties, reply.answers, strict=True):
            if claim.state is not State.WAITING:
                continue
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                self._granted(claim.number, answer.token, left, batch.sent_at)
            elif answer == GONE:
                gone.append(claim)
        for claim in reversed(gone):
            self._ask_anew(claim)
        if gone and not self._unsure:
            self._unsure = tuple(self.waiting)
        if self._unsure:
            self.beat()

    def reconnected(self) -> None:
        self._unsure = tuple(self.waiting)
        super().reconnected()
