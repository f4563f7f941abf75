"""What is written together, and what its answers mean for those who asked.

A batch is a call on its way with the parties that it concerns. It ends in one of three ways: it
is answered, it is refused, or it has to be written again.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ._backend import Letter
from ._claim import Claim, State, Word
from ._clock import now as clock
from ._errors import PermitLost, SemaphoreError
from ._keys import permit_id
from ._lease import Outcome, confirmation_time, trusted_until
from ._protocol import (
    FULL,
    GONE,
    QUEUE_FULL,
    Abandon,
    Acquire,
    Adopt,
    Adopted,
    Answered,
    Call,
    Clear,
    Confirm,
    Detach,
    Fault,
    Heartbeat,
    Holding,
    Introduction,
    Reap,
    Refresh,
    Release,
    Reply,
    Restore,
    SetLimit,
    Trouble,
)

if TYPE_CHECKING:
    from ._lane import Lane

_PASSING = frozenset(
    {
        Trouble.AGAIN,
        Trouble.BUSY,
        Trouble.DEMOTED,
        Trouble.MOVED,
        Trouble.ASK,
        Trouble.UNSETTLED,
    }
)
_WITHOUT_EFFECT = frozenset({Trouble.MISMATCH, Trouble.NO_MEMORY})


class Batch(Letter, ABC):
    """A call of a lane's."""

    __slots__ = ("answered_at", "lane")

    def __init__(self, lane: "Lane", call: Call) -> None:
        super().__init__(lane.wire, call, lane.hub.new_tag())
        self.lane: Lane = lane
        self.answered_at: float = 0.0

    def settle(self, answer: Answered | Fault) -> None:
        """Apply what the server said."""
        if not isinstance(answer, Fault):
            self._answered(answer)
        elif answer.trouble in _PASSING:
            self.lane.introduced = False  # the server may have forgotten who we are
            self.write_again(arrived=False)
        else:
            self._refused(self.lane.error_of(answer))

    @property
    def lone(self) -> bool:
        """Whether it is for one party alone."""
        return True

    @abstractmethod
    def _answered(self, answer: Answered) -> None: ...

    @abstractmethod
    def _refused(self, error: SemaphoreError) -> None:
        """It was not carried out, or in part, and sending it again will not help."""

    @abstractmethod
    def write_again(self, *, arrived: bool) -> None:
        """Have it written again, before what is new; it may have *arrived* all the same."""


class AcquireBatch(Batch):
    """Claims that ask for permits."""

    __slots__ = ("claims", "hinted")

    def __init__(self, lane: "Lane", call: Acquire, claims: Sequence[Claim]) -> None:
        super().__init__(lane, call)
        self.claims: Sequence[Claim] = claims
        self.hinted: int = call.hinted

    @property
    def lone(self) -> bool:
        return len(self.claims) == 1

    def settle(self, answer: Answered | Fault) -> None:
        self.lane.unanswered.popleft()
        if isinstance(answer, Fault) and answer.trouble in _WITHOUT_EFFECT:
            for claim in self.claims:
                if claim.state is State.SENT:
                    end = self.lane.refuse if claim.repeated else self.lane.turn_down
                    end(claim, self.lane.error_of(answer))
            self.lane.still_hinted(self.hinted)
        else:
            super().settle(answer)

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        assert isinstance(self.call, Acquire)
        lane = self.lane
        terms = self.claims[0].terms
        trusted = trusted_until(terms.lease, sent_at=self.sent_at, left=terms.lease)
        in_time = self.answered_at < trusted
        word = Word(self.sent_at, answer.next_ms, answer.waiting)
        again: list[Claim] = []
        wait: list[Claim] = []
        numbers = self.call.numbers  # a claim's own is another, should it have asked anew
        for claim, number, said in zip(self.claims, numbers, answer.answers, strict=True):
            if isinstance(said, Holding):
                lane.grant(number, said.token, said.left_ms / 1000, self.sent_at)
            elif claim.state is not State.SENT or claim.number != number:
                continue  # its caller left, and an abandon is on its way; or it asked anew
            elif said > 0:
                claim.hold(said, trusted)
                if not in_time:
                    lane.overslept(claim)
                elif terms.min_replicas:
                    lane.hand_out(claim)
                else:
                    claim.settle()
            elif said == GONE:
                lane.forget_number(claim)
                again.append(claim)
            else:
                claim.heard, claim.hindered_by = word, None
                if said == QUEUE_FULL or not claim.waits:
                    lane.turn_away(claim)
                else:
                    wait.append(claim)
        lane.ask_again(again)
        lane.must_wait(wait)
        waits = self.call.waits
        lane.answered(word)
        if FULL in answer.answers:
            answers = zip(self.claims, answer.answers, strict=True)
            waits += sum(claim.waits for claim, said in answers if said == FULL)
        lane.apply(answer, self.sent_at, heard_from=True)
        if waits or lane.waiting:
            lane.announced(waits)
        if lane.overdue:
            lane.settle_overdue()

    def _refused(self, error: SemaphoreError) -> None:
        for claim in self.claims:
            if claim.state is State.SENT:
                self.lane.refuse(claim, error)
        self.lane.still_hinted(self.hinted)

    def write_again(self, *, arrived: bool) -> None:
        self.lane.still_hinted(self.hinted)
        if arrived:
            self.lane.unanswered.clear()
            for claim in self.claims:
                claim.repeated = True
        # Of those whose callers left, an abandon is on its way.
        self.lane.ask_again([claim for claim in self.claims if claim.state is State.SENT])


class Returned:
    """Permits on their way back, and whoever waits to hear that they arrived.

    The future may be cancelled together with who waits; whoever cares sets another, unless the
    answer is there already.
    """

    __slots__ = ("answer", "asked_at", "future", "number", "permits", "repeated", "trusted")

    def __init__(
        self,
        number: int,
        permits: int,
        future: "asyncio.Future[bool | SemaphoreError]",
        asked_at: float,
        *,
        trusted: bool,
    ) -> None:
        self.number: int = number
        self.permits: int = permits
        self.future: asyncio.Future[bool | SemaphoreError] = future
        self.answer: bool | SemaphoreError | None = None
        self.asked_at: float = asked_at
        self.trusted: bool = trusted  # at that time
        self.repeated: bool = False  # sent once already, and the answer was lost

    def settle(self, answer: bool | SemaphoreError) -> None:  # noqa: FBT001 - the answer it is
        """Tell whether they were held until then, or why that is not known."""
        self.answer = answer
        if not self.future.done():
            self.future.set_result(answer)


class ReleaseBatch(Batch):
    """Permits on their way back, all of one hub's ids."""

    __slots__ = ("owner", "units")

    def __init__(self, lane: "Lane", owner: str, units: Sequence[Returned], keep: int) -> None:
        super().__init__(lane, Release(owner, [unit.number for unit in units], keep))
        self.owner: str = owner
        self.units: Sequence[Returned] = units

    @property
    def lone(self) -> bool:
        return len(self.units) == 1

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        for unit, held in zip(self.units, answer.answers, strict=True):
            # Sent twice, the second finds nothing although the first did.
            unit.settle(bool(held) or (unit.repeated and unit.trusted))
        self.lane.apply(answer, self.sent_at)

    def _refused(self, error: SemaphoreError) -> None:
        for unit in self.units:
            unit.settle(error)

    def write_again(self, *, arrived: bool) -> None:
        for unit in self.units:
            unit.repeated |= arrived
        self.lane.send_back_again(self.owner, self.units)


class Renewal:
    """A permit to be refreshed, and whoever waits for the outcome."""

    __slots__ = ("claim", "futures")

    def __init__(self, claim: Claim) -> None:
        self.claim: Claim = claim
        self.futures: list[asyncio.Future[Outcome]] = []

    def settle(self, outcome: Outcome, sent_at: float) -> None:
        """Apply the outcome to the permit, and wake who waits."""
        self.claim.lane.refreshed(self.claim, outcome, sent_at)
        for future in self.futures:
            if not future.done():
                future.set_result(outcome)


class RefreshBatch(Batch):
    """Permits to be refreshed, all with one lease."""

    __slots__ = ("renewals",)

    def __init__(self, lane: "Lane", lease_ms: int, renewals: Sequence[Renewal]) -> None:
        claims = [renewal.claim for renewal in renewals]
        heavy = {claim.number: claim.permits for claim in claims if claim.permits > 1}
        super().__init__(lane, Refresh([claim.number for claim in claims], lease_ms, heavy))
        self.renewals: Sequence[Renewal] = renewals

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        for renewal, held in zip(self.renewals, answer.answers, strict=True):
            if held:
                renewal.settle(Outcome.RENEWED, self.sent_at)
            elif self.lane.wire.recovers and renewal.claim.trusted_at(clock()):
                self.lane.restore(renewal)
            else:
                renewal.settle(Outcome.GONE, self.sent_at)

    def _refused(self, error: SemaphoreError) -> None:
        for renewal in self.renewals:
            renewal.settle(Outcome.UNKNOWN, self.sent_at)

    def write_again(self, *, arrived: bool) -> None:
        for renewal in self.renewals:
            if renewal.claim.state is State.HELD:
                self.lane.renew(renewal)
            else:
                renewal.settle(Outcome.UNKNOWN, self.sent_at)


class Restoration:
    """Permits to be put back, all with one lease."""

    __slots__ = ("lease_ms", "renewals")

    acts_once = alone = False

    def __init__(self, lease_ms: int, renewals: list[Renewal]) -> None:
        self.lease_ms: int = lease_ms
        self.renewals: list[Renewal] = renewals

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all."""
        return True

    def settle(self, _: SemaphoreError) -> None:
        """It will not be answered."""
        for renewal in self.renewals:
            renewal.settle(Outcome.UNKNOWN, 0.0)


class RestoreBatch(Batch):
    """A restoration."""

    __slots__ = ("renewals",)

    def __init__(
        self, lane: "Lane", restoration: Restoration, introduction: Introduction | None
    ) -> None:
        permits = [
            (claim.number, claim.token, claim.permits)
            for claim in (renewal.claim for renewal in restoration.renewals)
        ]
        super().__init__(lane, Restore(permits, restoration.lease_ms, introduction))
        self.renewals: Sequence[Renewal] = restoration.renewals

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        for renewal, held in zip(self.renewals, answer.answers, strict=True):
            renewal.settle(Outcome.RENEWED if held else Outcome.GONE, self.sent_at)

    def _refused(self, error: SemaphoreError) -> None:
        for renewal in self.renewals:
            renewal.settle(Outcome.UNKNOWN, self.sent_at)

    def write_again(self, *, arrived: bool) -> None:
        for renewal in self.renewals:
            if renewal.claim.trusted_at(clock()):
                self.lane.restore(renewal)
            else:
                renewal.settle(Outcome.UNKNOWN, self.sent_at)


class ConfirmBatch(Batch):
    """Claims, of any lanes, that are handed out once so many replicas know that they hold."""

    __slots__ = ("claims",)

    def __init__(self, claims: Sequence[Claim], most: float) -> None:
        first = claims[0]
        time = min(most, *(confirmation_time(claim.terms.lease) for claim in claims))
        call = Confirm(first.terms.min_replicas, math.ceil(1000 * time))
        super().__init__(first.lane, call)
        self.claims: Sequence[Claim] = claims

    def settle(self, answer: Answered | Fault) -> None:
        if isinstance(answer, Fault) and answer.trouble is Trouble.UNSETTLED:
            for claim in self.claims:
                claim.lane.hinder(claim, answer.error)
        super().settle(answer)

    def _answered(self, answer: Answered) -> None:
        for claim in self.claims:
            claim.lane.confirmed(claim)

    def _refused(self, error: SemaphoreError) -> None:
        for claim in self.claims:
            if claim.confirming:
                claim.lane.refuse(claim, error)

    def write_again(self, *, arrived: bool) -> None:
        for claim in self.claims:
            if arrived:
                claim.lane.confirm_anew(claim)
            else:
                claim.lane.start_anew(claim)


class AbandonBatch(Batch):
    """Claims and calls whose callers left."""

    __slots__ = ("claims", "void")

    def __init__(
        self, lane: "Lane", claims: Sequence[Claim], void: "Sequence[Question]" = ()
    ) -> None:
        numbers = [*(claim.call for claim in claims), *(question.number for question in void)]
        requests = [claim.request for claim in claims]
        super().__init__(lane, Abandon(requests, max(numbers)))
        self.claims: Sequence[Claim] = claims
        self.void: Sequence[Question] = void

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        self._forget()
        for question in self.void:
            question.ended()
        self.lane.apply(answer, self.sent_at)

    def _refused(self, error: SemaphoreError) -> None:
        self._forget()  # what is left of them ends with its lease

    def _forget(self) -> None:
        for claim in self.claims:
            self.lane.claims.pop(claim.number, None)

    def write_again(self, *, arrived: bool) -> None:
        self.lane.abandon_again(self.claims, self.void)


class HeartbeatBatch(Batch):
    """A sign of life, and a question about some waiters."""

    __slots__ = ("asked", "hinted")

    def __init__(self, lane: "Lane", call: Heartbeat, asked: Sequence[Claim]) -> None:
        super().__init__(lane, call)
        self.asked: Sequence[Claim] = asked
        self.hinted: int = call.hinted

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Reply)
        assert isinstance(self.call, Heartbeat)
        lane = self.lane
        lane.beating = False
        gone: list[Claim] = []
        word = Word(self.sent_at, answer.next_ms, answer.waiting)
        lane.answered(word)
        requests = self.call.requests
        for claim, request, said in zip(self.asked, requests, answer.answers, strict=True):
            number = request.number  # the claim's own is another, should it have asked anew
            if isinstance(said, Holding):
                lane.grant(number, said.token, said.left_ms / 1000, self.sent_at)
            elif claim.state is not State.WAITING or claim.number != number:
                continue
            elif said == GONE:
                gone.append(claim)
            else:
                claim.heard = word
        lane.apply(answer, self.sent_at, heard_from=True)
        lane.announced(self.call.waits)
        lane.found_gone(gone)
        if lane.overdue:
            lane.settle_overdue()

    def _refused(self, error: SemaphoreError) -> None:
        self.lane.beating = False
        if self.lane.wire.recovers:
            # Whether state was lost is not known, so nobody new is admitted.
            self.lane.fail_asking(lambda: error)
        for claim in list(self.lane.waiting):
            self.lane.refuse(claim, error)

    def write_again(self, *, arrived: bool) -> None:
        self.lane.beating = False
        self.lane.still_hinted(self.hinted)
        self.lane.beat()


class Question:
    """A call of its own kind, and whoever waits for its answer."""

    __slots__ = ("call", "future", "number", "renumber", "repeated")

    def __init__(
        self, call: Call, future: "asyncio.Future[Answered | SemaphoreError] | None"
    ) -> None:
        self.call: Call = call
        self.future: asyncio.Future[Answered | SemaphoreError] | None = future
        self.number: int = 0  # of a call that acts once: drawn when it is written
        self.renumber: bool = True
        self.repeated: bool = False  # sent before, and not answered

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all: not when who asked was told that it failed."""
        return self.future is None or not self.future.cancelled()

    @property
    def acts_once(self) -> bool:
        """Whether it is numbered, since it would change something again if it were run again."""
        return isinstance(self.call, Detach | SetLimit | Clear)

    @property
    def alone(self) -> bool:
        """Whether it is written when no other numbered call is on its way, and before the next.

        So the server tells from its number alone whether it was carried out.
        """
        return isinstance(self.call, SetLimit | Clear)

    def written(self, number: int) -> Call:
        """The call as it is written now, under *number*."""
        self.number, self.renumber = number, False
        assert isinstance(self.call, Detach | SetLimit | Clear)
        return self.call._replace(call=number)

    def settle(self, answer: Answered | SemaphoreError) -> None:
        """Pass the answer on."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)

    def ended(self) -> None:
        """It was answered or refused, or made void: it runs no more."""


class Detachment(Question):
    """A detach of a claim's permit, from whose writing on the permit is trusted for less."""

    __slots__ = ("_unsettled", "claim", "expires")

    def __init__(
        self, claim: Claim, expires: float, future: "asyncio.Future[Answered | SemaphoreError]"
    ) -> None:
        super().__init__(Detach(claim.number, math.ceil(1000 * expires)), future)
        self.claim: Claim = claim
        self.expires: float = expires
        self._unsettled = False

    def written(self, number: int) -> Call:
        expires, claim = self.expires, self.claim
        if not self._unsettled:
            self._unsettled = True
            claim.unsettled += 1
        thread = claim.terms.longest_stall is not None
        with claim.lane.hub.guardian().trust_lock if thread else nullcontext():
            claim.shorten(trusted_until(expires, sent_at=clock(), left=expires))
        return super().written(number)

    def ended(self) -> None:
        if self._unsettled:
            self._unsettled = False
            claim = self.claim
            claim.detach_settled(clock())
            going_on = claim.state is State.HELD and not claim.unsettled
            if not self.wanted and going_on:  # and was not detached once more meanwhile
                _ = claim.lane.refresh(claim)


class QuestionBatch(Batch):
    """A question."""

    __slots__ = ("question",)

    def __init__(self, lane: "Lane", call: Call, question: Question) -> None:
        super().__init__(lane, call)
        self.question: Question = question

    def settle(self, answer: Answered | Fault) -> None:
        if self.question.acts_once:
            self.lane.call_ended(self.question)
        super().settle(answer)

    def _answered(self, answer: Answered) -> None:
        if isinstance(answer, Reply) and not isinstance(self.call, Detach):  # silent on the line
            asked_on = isinstance(self.call, Reap) and self.question.future is not None
            self.lane.apply(answer, self.sent_at, go_on=not asked_on)
        self.question.settle(answer)
        self.question.ended()
        if isinstance(self.call, Clear):
            self.lane.cleared()

    def _refused(self, error: SemaphoreError) -> None:
        self.question.settle(error)
        self.question.ended()

    def write_again(self, *, arrived: bool) -> None:
        question = self.question
        if arrived:
            question.repeated = True
            if question.acts_once:
                self.lane.call_ended(question)
        elif not question.alone:
            question.renumber = True
        self.lane.ask_first(question)


class Adoption:
    """A permit to be taken over under a number of a claim's."""

    __slots__ = ("claim", "old", "owner", "renumber")

    acts_once = True
    alone = False

    def __init__(self, claim: Claim, owner: str, old: int) -> None:
        self.claim: Claim = claim
        self.owner: str = owner
        self.old: int = old
        self.renumber: bool = True

    @property
    def wanted(self) -> bool:
        """Whether to send it, again or at all: not when its caller has left."""
        return self.claim.state is State.SENT

    def settle(self, error: SemaphoreError) -> None:
        """It will not be answered."""
        if self.claim.state is State.SENT:
            self.claim.lane.refuse(self.claim, error)


class AdoptBatch(Batch):
    """An adoption."""

    __slots__ = ("adoption",)

    def __init__(self, lane: "Lane", call: Adopt, adoption: Adoption) -> None:
        super().__init__(lane, call)
        self.adoption: Adoption = adoption

    def settle(self, answer: Answered | Fault) -> None:
        self.lane.call_ended(self.adoption)
        super().settle(answer)

    def _answered(self, answer: Answered) -> None:
        assert isinstance(answer, Adopted)
        claim = self.adoption.claim
        if claim.state is not State.SENT:
            return  # its caller left, and an abandon is on its way
        if answer.holding is None:
            self.lane.claims.pop(claim.number, None)
            claim.state = State.ENDED
            old_id = permit_id(self.adoption.owner, self.adoption.old)
            reason = "that id holds nothing any more"
            claim.settle(PermitLost(self.lane.address.name, old_id, reason))
            return
        if self.adoption.owner == self.lane.hub.hub_id:
            self.lane.taken([self.adoption.old])  # our own: no message tells of it
        lease = claim.terms.lease
        left = min(lease, answer.holding.left_ms / 1000)
        claim.permits = answer.permits
        claim.hold(answer.holding.token, trusted_until(lease, sent_at=self.sent_at, left=left))
        if left < lease:
            _ = self.lane.refresh(claim)  # carried out before, when the answer was lost
        self.lane.hand_out(claim)

    def _refused(self, error: SemaphoreError) -> None:
        self.adoption.settle(error)

    def write_again(self, *, arrived: bool) -> None:
        if arrived:
            self.lane.call_ended(self.adoption)
        else:
            self.adoption.renumber = True
        self.lane.ask_first(self.adoption)
