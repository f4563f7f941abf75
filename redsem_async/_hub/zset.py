"""Semaphore: waiters stand in line in this process, and ask again when there may be room."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import QueueFull
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Acquire, Heartbeat
from redsem_async._protocol.replies import Reply

from .claim import Claim, LineReport, State
from .route import GRACE
from .waiters import Exceptional, Waiters

# While other processes wait, this one keeps a released permit for its own next request
# at most so many times in a row, and for at most so many seconds.
MAX_KEPT = 16
KEPT_FOR = 0.25
HINT_TIME = 1.0  # seconds for which a hub stays to pass a hint on


class ZsetWaiters(Waiters):
    """The server knows how many wait here, but none of them: a waiter asks with a new number."""

    _hinted_at = -math.inf
    _others_wait = False
    _kept_in_a_row = 0
    _kept_since = -math.inf

    def join(self, claim: Claim) -> bool:
        if not (claim.waits and self._ledger.waiting):
            return False
        self.must_wait([claim])
        report = self._ledger.line_report
        # Where it was full and others wait, it would come before the process that is hinted at.
        gives_way = self._others_wait and (report is None or report.room == 0)
        if claim.state is State.WAITING and not gives_way:
            self._ask_for(claim.permits)  # those that wait here already ask first
        return True

    def acquire(self, claims: Sequence[Claim], exceptional: Exceptional) -> Acquire:
        hinted, self.hint = self.hint, 0
        terms = claims[0].terms
        return Acquire(
            [claim.number for claim in claims],
            terms.lease_ms,
            terms.limit,
            exceptional,
            waits=len(self._ledger.waiting),
            highest=self._ledger.highest_limit,
            hinted=hinted,
            hub_info=self._ledger.introduction.take(),
            right=self._ledger.right.ask(),
            slots=claims[0].terms.slots,
        )

    def must_wait(self, claims: Sequence[Claim]) -> None:
        ledger, waiting = self._ledger, self._ledger.waiting
        last = next(reversed(waiting)).started if waiting else -math.inf
        back = [claim for claim in claims if claim.was_waiting or claim.started < last]
        for claim in claims:
            ledger.forget_number(claim)
            bound = claim.terms.max_waiters
            if claim.was_waiting or bound is None or len(waiting) < bound:
                ledger.wait([claim])
            else:
                claim.fail(QueueFull(ledger.name, bound, ledger.retry_after(claim)))
        if back:
            # To the front, among those there that came earlier and asked in another command.
            latest = max(claim.started for claim in back)
            front = dict.fromkeys(takewhile(lambda other: other.started < latest, waiting))
            front |= dict.fromkeys(claim for claim in back if claim in waiting)
            for claim in sorted(front, key=attrgetter("started"), reverse=True):
                waiting.move_to_end(claim, last=False)
        queued = [claim for claim in claims if claim.state is State.WAITING]
        for notifier in observers.notifiers:
            notifier.queued(queued)

    def line_reported(self, report: LineReport) -> None:
        self._ledger.line_report = report

    def announced(self, waits: int) -> None:
        # A command does not count the claims that began to wait after it was written, and counts
        # those that left. The server would hint at no waiter, or in vain. A heartbeat
        # corrects that, unless a command in flight does.
        ledger = self._ledger
        corrected = ledger.acquires_in_flight or self._heartbeats.expected
        if bool(waits) != bool(ledger.waiting) and not corrected:
            self._heartbeats.beat()

    def _ask_for(self, permits: int) -> int:
        """Let waiters ask for up to *permits*, the first in any case. Returns what is left.

        Not those whose deadline has come: the reply to the heartbeat decides, and the reply to an
        acquire that is written now might come too late.
        """
        overdue = self._ledger.overdue
        return self._let_ask(permits, (c for c in self._ledger.waiting if c not in overdue))

    def _fill(self, room: int) -> None:
        """Let those waiters ask that fit into *room*."""
        # Where a deadline has come, the reply has to come soon after it: see `Deadlines.settle`.
        due = self._ledger.identity.loop.time() + 2 * self._ledger.route.link.round_trip
        fitting = (
            claim
            for claim in self._ledger.waiting
            if claim.permits <= room and due <= claim.deadline + 2 * GRACE
        )
        self._let_ask(room, fitting)

    def _let_ask(self, permits: int, candidates: Iterable[Claim]) -> int:
        """Let *candidates* ask for up to *permits*, and those that declare a higher limit.

        Because there may be room under that limit, and none under the limit of those before.
        """
        chosen: list[Claim] = []
        highest = 0  # limit that one of them declares
        for claim in candidates:
            enough = permits <= 0 or (chosen and claim.permits > permits)
            if enough and (not chosen or highest >= self._ledger.highest_limit):
                break
            if enough and claim.terms.limit <= highest:
                continue
            chosen.append(claim)
            permits -= claim.permits
            highest = max(highest, claim.terms.limit)
        for claim in chosen:
            del self._ledger.waiting[claim]
        self.unsorted |= bool(self._ledger.new)
        self._ledger.ask_again(chosen)
        return max(0, permits)

    def kept(self, owner: str, permits: int) -> int:
        if owner != self._ledger.identity.id:
            return 0
        now = clock()
        self._kept_in_a_row = self._kept_in_a_row + 1 if self._others_wait else 0
        if self._kept_in_a_row <= 1:
            self._kept_since = now
        if self._kept_in_a_row > MAX_KEPT or now > self._kept_since + KEPT_FOR:
            self._kept_in_a_row = 0
            return 0
        kept = permits - self._ask_for(permits)
        self.hint += kept  # where no waiter takes them after all, they are passed on
        self._hinted_at = now
        return kept

    def apply(self, reply: Reply) -> None:
        self._others_wait = reply.waiting > bool(self._ledger.waiting)
        if reply.hinted:
            self.hinted(reply.hinted)
        elif reply.room > 0 and self._ledger.waiting:
            self._fill(reply.room)

    @property
    def behind(self) -> bool:
        return self._others_wait

    @property
    def lets_others_ask_first(self) -> bool:
        # Written with the release, the next acquire would always come before the process that
        # the release hints at. What this process keeps or is hinted at is for its own waiters.
        asked_first = self._others_wait and self._ledger.releases_in_flight > 0
        return asked_first and self.hint == 0

    # -- hints

    def hinted(self, permits: int) -> None:
        self.hint += permits
        self._hinted_at = clock()
        self._ask_for(permits)
        self._ledger.wake()

    def hint_unsent(self, permits: int) -> None:
        if permits:
            self.hint += permits
            self._ledger.wake()

    @property
    def hint_is_young(self) -> bool:
        # The process that the hint is meant for finds out by itself, but more slowly.
        return self.hint > 0 and clock() < self._hinted_at + HINT_TIME

    def forget_in_flight(self) -> None:
        self.hint = 0

    # -- heartbeats

    def heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        hinted, self.hint = self.hint, 0
        return Heartbeat(
            math.ceil(1000 * self._ledger.longest_lease),
            limit=self._ledger.highest_limit,
            waits=len(self._ledger.waiting),
            hinted=hinted,
            hub_info=self._ledger.introduction.take(),
            number=self._ledger.identity.new_number(),
            right=self._ledger.right.ask(),
        )

    def left(self) -> None:
        if not self._ledger.waiting:
            self._heartbeats.beat()  # hints are for other processes from now on
