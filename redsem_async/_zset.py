"""The lane of a Semaphore: waiters stand in line here, and try again when there may be room."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter

from ._batches import Batch, Returned
from ._claim import Claim, State, Word
from ._clock import now as clock
from ._errors import QueueFull
from ._lane import GRACE, Lane, Unusual
from ._protocol import Acquire, Heartbeat, Hint, Reply
from ._watch import watch

MOST_KEPT = 16  # releases in a row whose permits this process keeps while others wait
HINT_TIME = 1.0  # seconds for which a hub stays to pass a hint on


class ZsetLane(Lane):
    """The server knows how many wait here, but none of them; a waiter asks with a new number."""

    _hinted_permits = 0  # told of, and not asked for yet
    _hinted_at = -math.inf  # when we were told
    _others_wait = False
    _word: Word | None = None  # the server's last
    _streak = 0
    _disordered = False  # some who ask again may be written before others who came earlier

    def submit(self, claim: Claim) -> None:
        if not (claim.waits and self.waiting):
            super().submit(claim)
            return
        # Those who wait here already try first.
        self.must_wait([claim])
        if claim.state is State.WAITING:
            self._try(claim.permits)

    def _acquire(self, claims: Sequence[Claim], unusual: Unusual) -> Acquire:
        hinted, self._hinted_permits = self._hinted_permits, 0
        terms = claims[0].terms
        return Acquire(
            [claim.number for claim in claims],
            terms.lease_ms,
            terms.limit,
            unusual,
            waits=len(self.waiting),
            highest=self.highest,
            hinted=hinted,
            introduction=self._introduction(),
        )

    def must_wait(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.forget_number(claim)
            most = claim.terms.max_waiters
            if claim.tried or most is None or len(self.waiting) < most:
                claim.state = State.WAITING
                self.waiting[claim] = None
            else:
                claim.state = State.ENDED
                claim.settle(QueueFull(self.address.name, most, self.retry_after(claim)))
        for claim in reversed(claims):
            if claim.tried and claim in self.waiting:
                self.waiting.move_to_end(claim, last=False)
        if claims:
            self.mind_distance(claims)
        for teller in watch.tellers:
            teller.queued(claims)

    def answered(self, word: Word) -> None:
        self._word = word

    def last_word(self, claim: Claim) -> Word | None:
        # What others were told goes for those who wait behind them, and did not ask themselves;
        # what they were granted is not to be had any more.
        own, word = claim.heard, self._word
        return word if own is None or (word and word.sent_at > own.sent_at) else own

    def announced(self, waits: int) -> None:
        # A call does not count those who were told to wait after it was written, and it counts
        # those who left meanwhile. The server would hint at nobody, or in vain: unless something
        # on its way puts that right, it is told.
        on_way = self.unanswered or self.beating or self._beat_due
        if bool(waits) != bool(self.waiting) and not on_way:
            self.beat()

    def _try(self, permits: int) -> int:
        """Let waiters ask for up to *permits*, the first in any case. Returns what is left.

        Not those whose deadline has come: the answer to the heartbeat decides, and an acquire
        written now might be answered too late.
        """
        return self._let_ask(permits, (c for c in self.waiting if c not in self.overdue))

    def _fit(self, room: int) -> int:
        """Let waiters ask that fit into *room*. Returns what is left of it."""
        # Far away, the answer to one whose deadline is near would come too late.
        lead, now = self.post.lead, self.hub.loop.time()
        fitting = (
            claim
            for claim in self.waiting
            if claim.permits <= room and not (lead and now + lead > claim.deadline + GRACE)
        )
        return self._let_ask(room, fitting)

    def _let_ask(self, permits: int, candidates: Iterable[Claim]) -> int:
        chosen: list[Claim] = []
        for claim in candidates:
            if permits <= 0 or (chosen and claim.permits > permits):
                break
            permits -= claim.permits
            chosen.append(claim)
        for claim in chosen:
            del self.waiting[claim]
            claim.tried = True
        self._disordered |= bool(self._new)
        self.ask_again(chosen)
        return max(0, permits)

    def _kept(self, owner: str, units: Iterable[Returned]) -> int:
        if not self.waiting or owner != self.hub.hub_id:
            return 0
        self._streak = self._streak + 1 if self._others_wait else 0
        if self._streak > MOST_KEPT:
            self._streak = 0
            return 0
        freed = sum(unit.permits for unit in units)
        kept = freed - self._try(freed)
        self._hinted_permits += kept  # if nobody takes them after all, they are passed on
        self._hinted_at = clock()
        return kept

    def _standing(self, reply: Reply) -> None:
        self._others_wait = reply.waiting > bool(self.waiting)
        if reply.hinted:
            self._take_hint(reply.hinted)
        elif reply.room > 0:
            self._fit(reply.room)

    def _behind(self) -> bool:
        return self._others_wait

    def _hinted(self, hint: Hint) -> None:
        self._take_hint(hint.permits)

    def still_hinted(self, permits: int) -> None:
        if permits:
            self._hinted_permits += permits
            self.wake()

    def _take_hint(self, permits: int) -> None:
        self._hinted_permits += permits
        self._hinted_at = clock()
        self._try(permits)
        self.wake()

    def depart(self, claim: Claim) -> None:
        was_waiting = claim in self.waiting
        super().depart(claim)
        if was_waiting and not self.waiting:
            self.beat()  # nobody here waits any more: hints are for others

    @property
    def eager(self) -> bool:
        return super().eager or self._hinted_permits > 0

    @property
    def _something_due(self) -> bool:
        # A hint is worth a new link, but not for ever: whom it is for finds out more slowly.
        hinted = self._hinted_permits > 0 and clock() < self._hinted_at + HINT_TIME
        return hinted or super()._something_due

    def cut_off(self) -> None:
        super().cut_off()
        self._hinted_permits = 0

    def _take_acquires(self) -> Batch | None:
        if self._disordered:
            self._disordered = False
            self._new = deque(sorted(self._new, key=attrgetter("started")))
        batch = super()._take_acquires()
        if batch is None and self._hinted_permits:
            self._beat_due = True  # nobody here wants them: pass the hint on
            batch = self.take()
        return batch

    # -- heartbeats

    def _heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        hinted, self._hinted_permits = self._hinted_permits, 0
        return Heartbeat(
            math.ceil(1000 * self._longest),
            limit=self.highest,
            waits=len(self.waiting),
            hinted=hinted,
            introduction=self._introduction(),
            number=self.hub.new_number(),
        )
