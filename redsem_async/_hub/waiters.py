"""The waiters of this process: they stand in the server's queue, and are served from it."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice

from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Acquire, Heartbeat, RequestOptions

from .claim import Claim, State
from .heartbeat_timer import HeartbeatTimer
from .ledger import Ledger

MAX_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when nothing is in doubt
FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment


class Waiters:
    """A waiter keeps its number, and with it its place, until it is served or leaves.

    Attributes:
        queued: requests in the queue, of all processes, by the last reply.
        unsorted: claims are to be written before others that came earlier.
    """

    def __init__(self, ledger: Ledger, heartbeats: HeartbeatTimer) -> None:
        self.queued: int = 0
        self.unsorted: bool = False
        self._ledger = ledger
        self._heartbeats = heartbeats
        self._unsure: tuple[Claim, ...] = ()  # waiters to be asked about before all others

    def acquire(self, claims: Sequence[Claim], unusual: Mapping[int, RequestOptions]) -> Acquire:
        """The operation with which *claims*, all with the same terms, ask for permits."""
        terms, first = claims[0].terms, claims[0].number
        before = [n for n in self._ledger.acquires_in_flight if n < first]
        return Acquire(
            [claim.number for claim in claims],
            terms.lease_ms,
            terms.limit,
            unusual,
            max_waiters=terms.max_waiters,
            max_waiters_per_key=terms.max_waiters_per_key,
            after=max(before, default=0),
            hub_info=self._ledger.introduction.take(),
            right=self._ledger.right.ask(),
            slots=terms.slots,
        )

    def must_wait(self, claims: Sequence[Claim]) -> None:
        """The server replied to *claims*, in this order, that they have to wait."""
        self._ledger.wait(claims)
        for notifier in observers.notifiers:
            notifier.queued(claims)

    @property
    def behind(self) -> bool:
        """Whether other processes are likelier to be served first."""
        return self.queued - len(self._ledger.waiting) > FIRST_FEW

    def heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        """The operation that keeps the process alive there, and asks about some waiters."""
        return Heartbeat(
            math.ceil(1000 * self._ledger.longest_lease),
            [claim.request for claim in asked],
            hub_info=self._ledger.introduction.take(),
            right=self._ledger.right.ask(),
        )

    def asked_about(self) -> Sequence[Claim]:
        """The waiters that the next heartbeat asks about.

        Those whose deadline has come; then the first in the queue, to see that it is still there.
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
        """The server does not know *claims* any more: ask again.

        One that is gone makes all others doubtful.
        """
        for claim in reversed(claims):
            self._ledger.ask_anew(claim)
        if claims and not self._unsure:
            self._unsure = tuple(self._ledger.waiting)
        if self._unsure:
            self._heartbeats.beat()

    def reconnected(self) -> None:
        """There is a new connection: messages may have been missed."""
        self._unsure = tuple(self._ledger.waiting)
