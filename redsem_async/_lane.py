"""What one process asks of one semaphore: collected into batches, and the answers applied.

A lane decides what is written next and what an answer means; its hub decides when to write.
Everything here is synchronous. Between two turns of the event loop the state of a claim and
what was said to the server agree.
"""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._backend import Letter
from ._claim import Claim, State
from ._clock import now as clock
from ._config import Terms
from ._errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreError,
)
from ._keys import Address, permit_id
from ._lease import (
    Lost,
    Outcome,
    after_refresh,
    granted,
    heartbeat_interval,
    patience,
    retry_after,
)
from ._protocol import (
    FULL,
    GONE,
    QUEUE_FULL,
    WAITING,
    Abandon,
    Acquire,
    Adopt,
    Adopted,
    Answered,
    Call,
    Clear,
    Cleared,
    Detach,
    Fault,
    Granted,
    Heartbeat,
    Hint,
    Holding,
    Introduction,
    Message,
    Reap,
    Refresh,
    Release,
    Reply,
    Standing,
    Taken,
    Trouble,
)
from ._wire import kind_in_use

if TYPE_CHECKING:
    from ._hub import Hub

MOST_ACQUIRES = 256  # bounds for how long one script holds the server
MOST_RELEASES = 512
MOST_REFRESHES = 1250
GRACE = 0.05  # seconds that an answer may be overdue when the deadline comes
STAGGER = 0.03  # seconds between the processes that see to an expiry


class Batch(Letter):
    """A letter, and whom its answers concern."""

    __slots__ = ("lane", "parties")

    def __init__(self, lane: "Lane", call: Call, tag: int, parties: Sequence[Any]) -> None:
        super().__init__(lane.address, call, tag)
        self.lane = lane
        self.parties = parties


class Returned:
    """Permits on their way back, and whoever waits to hear that they arrived.

    The future may be cancelled together with who waits; whoever cares sets another.
    """

    __slots__ = ("asked_at", "future", "number", "permits", "repeated", "trusted")

    def __init__(
        self,
        number: int,
        permits: int,
        future: "asyncio.Future[bool | SemaphoreError]",
        *,
        trusted: bool,
    ) -> None:
        self.number = number
        self.permits = permits
        self.future = future
        self.asked_at = clock()
        self.trusted = trusted  # when the release was asked for
        self.repeated = False  # sent once already, and the answer was lost

    def settle(self, answer: bool | SemaphoreError) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class Question:
    """A call of its own, and whoever waits for its answer."""

    __slots__ = ("call", "future")

    def __init__(self, call: Call, future: "asyncio.Future[Answered | SemaphoreError]") -> None:
        self.call = call
        self.future = future

    def settle(self, answer: Answered | SemaphoreError) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class Adoption:
    """A permit to be taken over under a number of a claim's."""

    __slots__ = ("claim", "old", "owner")

    def __init__(self, claim: Claim, owner: str, old: int) -> None:
        self.claim = claim
        self.owner = owner
        self.old = old

    def settle(self, answer: Answered | SemaphoreError) -> None:
        """Refused: what was adopted, if anything, is given back."""
        if isinstance(answer, SemaphoreError) and self.claim.state is State.SENT:
            self.claim.lane.refuse(self.claim, answer)


class Lane:
    """Base of the two modes' lanes."""

    def __init__(self, hub: "Hub", address: Address, label: str | None) -> None:
        self.hub = hub
        self.address = address
        self.label = label
        self.introduced = False
        self.ready = False  # in the hub's line of lanes that have something to write
        self.claims: dict[int, Claim] = {}  # sent, waiting or held, by number
        self.waiting: OrderedDict[Claim, None] = OrderedDict()  # told to wait, first come first
        self._new: deque[Claim] = deque()
        self._returned: dict[str, list[Returned]] = {}  # by the hub that owns the ids
        self._leaving: list[Claim] = []
        self._refreshing: dict[int, tuple[Claim, list[asyncio.Future[Outcome]]]] = {}
        self._questions: deque[Question | Adoption] = deque()
        self._unanswered: deque[int] = deque()  # highest number of each acquire on its way
        self._longest, self.shortest = 0.0, math.inf  # lease of any claim so far
        self._beat_due = False
        self._beating = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = math.inf
        self._moment_at = math.inf

    # -- what the tasks ask for

    def submit(self, claim: Claim) -> None:
        """Ask for a permit. The claim's future wakes the caller."""
        self._longest = max(self._longest, claim.terms.lease)
        self.shortest = min(self.shortest, claim.terms.lease)
        self._new.append(claim)
        self._wake()

    def depart(self, claim: Claim) -> None:
        """The caller left without a permit: whatever it was or will be granted is undone."""
        state, claim.state = claim.state, State.ENDED
        if claim.timer is not None:
            claim.timer.cancel()
            claim.timer = None
        if self._may_be_known(claim, state):
            self._leaving.append(claim)
            self._wake()
        elif state is State.HELD or state is State.LOST:
            self.claims.pop(claim.number, None)
            self._give_back(claim, trusted=False)
        self.waiting.pop(claim, None)

    def release(self, claim: Claim) -> Returned:
        """Give a held permit back. The answer tells whether it was held until then."""
        trusted = claim.state is State.HELD and clock() < claim.lease.trusted_until
        claim.state = State.ENDED
        self.claims.pop(claim.number, None)
        return self._give_back(claim, trusted=trusted)

    def release_by_id(self, owner: str, number: int) -> Returned:
        """Give back a permit known by its id alone."""
        claim = self.claims.get(number) if owner == self.hub.hub_id else None
        if claim is not None and claim.state is State.HELD:
            self.claims.pop(number)
            claim.lose("released by its id")
        return self._send_back(owner, number, 1, trusted=False)

    def refresh(self, claim: Claim) -> "asyncio.Future[Outcome]":
        """Renew a lease. The claim knows the outcome before the future wakes anybody."""
        future: asyncio.Future[Outcome] = self.hub.loop.create_future()
        _, waiters = self._refreshing.setdefault(claim.number, (claim, []))
        waiters.append(future)
        self._wake()
        return future

    def detach(self, claim: Claim) -> None:
        """Let go of a held permit without giving it back."""
        claim.state = State.ENDED
        self.claims.pop(claim.number, None)

    def adopt(self, claim: Claim, owner: str, old: int) -> None:
        """Take over the permit known to *owner* as *old*. The claim's future wakes the caller."""
        claim.state = State.SENT
        self._questions.append(Adoption(claim, owner, old))
        self._wake()

    async def ask(self, call: Call) -> Answered:
        """Send a call of its own kind, and wait for its answer within a bounded time.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        question = Question(call, self.hub.loop.create_future())
        self._questions.append(question)
        self._wake()
        await asyncio.wait([question.future], timeout=2 * patience(min(self.shortest, 10.0)))
        if not question.future.done():
            raise self.hub.unavailable(self.address.name, self.hub.trouble)
        answer = question.future.result()
        if isinstance(answer, SemaphoreError):
            raise answer
        return answer

    def expire(self, claim: Claim) -> None:
        """The caller's deadline has come."""
        if not claim.pending:
            return
        unheard = claim.confirming or claim.heard is None
        if unheard and claim.waits and not claim.overdue and self.hub.trouble is None:
            # A word may be on its way: the deadline is kept within GRACE.
            claim.overdue = True
            claim.timer = self.hub.loop.call_later(GRACE, self.expire, claim)
            return
        self.refuse(claim, self._timed_out(claim))

    def refuse(self, claim: Claim, error: Exception) -> None:
        """End a claim whose caller waits, with *error*."""
        self.depart(claim)
        claim.confirming = False
        claim.settle(error)

    def _timed_out(self, claim: Claim) -> SemaphoreError:
        trouble = self.hub.trouble
        if trouble is not None or claim.heard is None or claim.confirming:
            return self.hub.unavailable(self.address.name, trouble)
        waited = clock() - claim.started
        return AcquireTimeout(self.address.name, waited, self._retry_after(claim))

    def _retry_after(self, claim: Claim) -> float:
        next_ms, waiting = claim.heard or (None, 0)
        return retry_after(
            None if next_ms is None else next_ms / 1000,
            claim.terms.lease,
            waiting,
            claim.terms.limit,
        )

    # -- what differs between the modes

    def _may_be_known(self, claim: Claim, state: State) -> bool:
        """Whether the server may have something for *claim*, which was in *state*."""
        return state is State.SENT or (state is State.NEW and claim.number > 0)

    def _acquire(self, claims: list[Claim], terms: Terms) -> Acquire:
        raise NotImplementedError

    def _heartbeat(self) -> Heartbeat:
        raise NotImplementedError

    def _must_wait(self, claims: Sequence[Claim]) -> None:
        """The server said to *claims*, in this order, that they have to wait."""
        raise NotImplementedError

    def _standing(self, reply: Reply) -> None:
        """A reply told how things stand."""

    # -- what is written next

    def _wake(self) -> None:
        if not self.ready:
            self.ready = True
            self.hub.enlist(self)

    @property
    def active(self) -> bool:
        """Whether anything is held, waited for or to be written."""
        return bool(
            self.claims
            or self._new
            or self._returned
            or self._leaving
            or self._questions
            or self.waiting
        )

    def take(self) -> Batch | None:
        """The next batch to write, if any: refreshes, releases, questions, then acquires."""
        if self._refreshing:
            return self._take_refreshes()
        if self._returned:
            return self._take_returned()
        if self._leaving:
            claims, self._leaving = self._leaving[:MOST_RELEASES], self._leaving[MOST_RELEASES:]
            return self._batch(Abandon([claim.request for claim in claims]), claims)
        if self._questions:
            return self._take_question(self._questions.popleft())
        if self._beat_due:
            self._beat_due, self._beating = False, True
            asked = self._asked_about()
            return self._batch(self._heartbeat(asked), asked)
        return self._take_acquires()

    def _take_question(self, question: Question | Adoption) -> Batch:
        if isinstance(question, Question):
            return self._batch(question.call, [question])
        claim = question.claim
        if claim.number == 0:
            claim.number, claim.hub_id = self.hub.new_number(), self.hub.hub_id
        self.claims[claim.number] = claim
        call = Adopt(
            question.owner,
            question.old,
            claim.number,
            claim.terms.lease_ms,
            self._introduction(),
        )
        return self._batch(call, [question])

    def _batch(self, call: Call, parties: Sequence[Any]) -> Batch:
        return Batch(self, call, self.hub.new_tag(), parties)

    def _introduction(self) -> Introduction | None:
        if self.introduced:
            return None
        self.introduced = True
        return self.hub.introduction(self.label)

    def _take_refreshes(self) -> Batch:
        waiting = self._refreshing
        first = next(iter(waiting.values()))[0].terms.lease_ms
        chosen: list[tuple[Claim, list[asyncio.Future[Outcome]]]] = []
        for number, (claim, _) in list(waiting.items()):
            if claim.terms.lease_ms == first and len(chosen) < MOST_REFRESHES:
                chosen.append(waiting.pop(number))
        numbers = [claim.number for claim, _ in chosen]
        heavy = any(claim.permits > 1 for claim, _ in chosen)
        return self._batch(Refresh(numbers, first, heavy), chosen)

    def _take_returned(self) -> Batch:
        owner, returned = next(iter(self._returned.items()))
        batch = returned[:MOST_RELEASES]
        if len(batch) < len(returned):
            self._returned[owner] = returned[MOST_RELEASES:]
        else:
            del self._returned[owner]
        numbers = [unit.number for unit in batch]
        return self._batch(Release(owner, numbers, self._keep(owner, batch)), batch)

    def _keep(self, owner: str, returned: Iterable[Returned]) -> int:
        """How many of these permits this process takes again itself."""
        return 0

    def _take_acquires(self) -> Batch | None:
        claims: list[Claim] = []
        while self._new and len(claims) < MOST_ACQUIRES:
            claim = self._new[0]
            if claim.state is not State.NEW:
                self._new.popleft()
                continue
            if claims and claim.terms != claims[0].terms:
                break
            self._new.popleft()
            if claim.number == 0:
                claim.number, claim.hub_id = self.hub.new_number(), self.hub.hub_id
            claim.state = State.SENT
            self.claims[claim.number] = claim
            claims.append(claim)
        if not claims:
            return None
        batch = self._batch(self._acquire(claims, claims[0].terms), claims)
        self._unanswered.append(claims[-1].number)
        return batch

    # -- what answers mean

    def answered(self, batch: Batch, answer: Answered | Fault) -> None:
        """Apply the answer to *batch*."""
        if isinstance(batch.call, Acquire) and self._unanswered:
            self._unanswered.popleft()
        if isinstance(answer, Fault):
            self._failed(batch, answer)
            return
        match batch.call:
            case Acquire():
                assert isinstance(answer, Reply)
                for number, token in answer.granted:
                    self._granted(number, token, None, batch.sent_at)
                self._acquired(batch, answer)
            case Release():
                assert isinstance(answer, Reply)
                for unit, held in zip(batch.parties, answer.answers, strict=True):
                    # Sent twice, the second finds nothing although the first did.
                    unit.settle(bool(held) or (unit.repeated and unit.trusted))
                self._serve_own(answer, batch.sent_at)
            case Refresh():
                assert isinstance(answer, Reply)
                for (claim, waiters), held in zip(batch.parties, answer.answers, strict=True):
                    outcome = Outcome.RENEWED if held else Outcome.GONE
                    self._refreshed(claim, waiters, outcome, batch.sent_at)
            case Abandon():
                assert isinstance(answer, Reply)
                for claim in batch.parties:
                    self.claims.pop(claim.number, None)
                self._serve_own(answer, batch.sent_at)
            case Heartbeat():
                assert isinstance(answer, Reply)
                self._beating = False
                self._heard_about(batch, answer)
                self._serve_own(answer, batch.sent_at, heard_from=True)
            case Adopt():
                assert isinstance(answer, Adopted)
                self._adopted(batch.parties[0], answer, batch.sent_at)
            case _:
                if isinstance(answer, Reply):
                    self._serve_own(answer, batch.sent_at)
                batch.parties[0].settle(answer)
                if isinstance(batch.call, Clear):
                    self._cleared()

    def _serve_own(self, reply: Reply, sent_at: float, *, heard_from: bool = False) -> None:
        for number, token in reply.granted:
            self._granted(number, token, None, sent_at)
        self._standing(reply)
        self._expect(reply, heard_from=heard_from)

    def _acquired(self, batch: Batch, reply: Reply) -> None:
        again: list[Claim] = []
        refused: list[Claim] = []
        must_wait: list[Claim] = []
        for claim, answer in zip(batch.parties, reply.answers, strict=True):
            if isinstance(answer, Holding):
                self._granted(claim.number, answer.token, answer.left_ms / 1000, batch.sent_at)
            elif answer > 0:
                self._granted(claim.number, answer, None, batch.sent_at)
            elif claim.state is not State.SENT:
                continue  # its caller left, or it was served on the way
            elif answer == GONE:
                del self.claims[claim.number]
                claim.number = 0
                again.append(claim)
            else:
                claim.heard = (reply.next_ms, reply.waiting)
                if answer == QUEUE_FULL or not claim.waits:
                    refused.append(claim)
                else:
                    must_wait.append(claim)
        self._write_again(again)
        self._must_wait(must_wait)
        for claim in refused:
            self._end_refused(claim)
        self._standing(reply)
        self._expect(reply, heard_from=True)

    def _end_refused(self, claim: Claim) -> None:
        """The server said full to a claim that does not wait: nothing of it is left there."""
        self.claims.pop(claim.number, None)
        claim.state = State.ENDED
        error: SemaphoreError
        most = claim.terms.max_waiters
        if claim.waits and most is not None:
            error = QueueFull(self.address.name, most, self._retry_after(claim))
        else:
            waited = clock() - claim.started
            error = AcquireTimeout(self.address.name, waited, self._retry_after(claim))
        claim.settle(error)

    def _write_again(self, claims: Sequence[Claim]) -> None:
        for claim in reversed(claims):
            claim.state = State.NEW
            self._new.appendleft(claim)
        if claims:
            self._wake()

    def _adopted(self, adoption: Adoption, answer: Adopted, sent_at: float) -> None:
        claim = adoption.claim
        if claim.state is not State.SENT:
            return  # its caller left, and an abandon is on its way
        if answer.holding is None:
            self.claims.pop(claim.number, None)
            claim.state = State.ENDED
            old_id = permit_id(adoption.owner, adoption.old)
            claim.settle(PermitLost(self.address.name, old_id, "that id holds nothing any more"))
            return
        claim.state = State.HELD
        claim.token = answer.holding.token
        claim.permits = answer.permits
        claim.lease = granted(claim.terms.lease, sent_at=sent_at, left=claim.terms.lease)
        claim.settle()

    def _granted(self, number: int, token: int, left: float | None, sent_at: float) -> None:
        """The server says that *number* holds a permit, for *left* seconds (a whole lease)."""
        claim = self.claims.get(number)
        if claim is None or claim.state not in _UNSERVED:
            return  # told already; or its caller left, and an abandon is on its way
        claim.token = token
        claim.state = State.HELD
        self.waiting.pop(claim, None)
        length = claim.terms.lease
        claim.lease = granted(length, sent_at=sent_at, left=length if left is None else left)
        if left is None:
            claim.settle()
            return
        # Told late, or of a short lease: a refresh makes it a whole one. Where much of it is
        # gone, or unknown, nobody is told before that.
        future = self.refresh(claim)
        if claim.lease.trusted_until - clock() >= left / 2:
            claim.settle()
        else:
            claim.confirming = True
            future.add_done_callback(lambda _: self._confirmed(claim))

    def _confirmed(self, claim: Claim) -> None:
        if not claim.confirming:
            return
        claim.confirming = False
        if claim.state is State.HELD and clock() < claim.lease.trusted_until:
            claim.settle()
        elif claim.state is State.HELD or claim.state is State.LOST:
            self._ask_anew(claim)

    def _ask_anew(self, claim: Claim) -> None:
        """What the server had for *claim* is gone: a new number, the same deadline."""
        if claim.state is State.HELD:
            self._give_back(claim, trusted=False)
        self.claims.pop(claim.number, None)
        self.waiting.pop(claim, None)
        claim.number = 0
        claim.lost_reason = None
        self._write_again([claim])

    def _refreshed(
        self,
        claim: Claim,
        waiters: Iterable[asyncio.Future[Outcome]],
        outcome: Outcome,
        sent_at: float,
    ) -> None:
        if claim.state is State.HELD:
            verdict = after_refresh(claim.lease, outcome, sent_at=sent_at, now=clock())
            if isinstance(verdict, Lost):
                if outcome is Outcome.GONE:
                    self.claims.pop(claim.number, None)
                claim.lose(verdict.reason)
            else:
                claim.lease = verdict
        for future in waiters:
            if not future.done():
                future.set_result(outcome)

    def _failed(self, batch: Batch, fault: Fault) -> None:
        if fault.trouble in _UNHARMED:
            self.requeue(batch, arrived=False)
            return
        name = self.address.name
        error: SemaphoreError
        if fault.trouble is Trouble.MISMATCH:
            error = ModeMismatch(name, self.address.kind, kind_in_use(fault.error))
        else:
            error = BackendError(name, str(fault.error))
        error.__cause__ = fault.error
        match batch.call:
            case Acquire():
                for claim in batch.parties:
                    if claim.state is State.SENT:
                        self.refuse(claim, error)
            case Refresh():
                for claim, waiters in batch.parties:
                    self._refreshed(claim, waiters, Outcome.UNKNOWN, batch.sent_at)
            case Heartbeat():
                self._beating = False
                self._refuse_waiters(error)
            case Abandon():
                for claim in batch.parties:
                    self.claims.pop(claim.number, None)
            case _:
                for party in batch.parties:
                    party.settle(error)

    def _refuse_waiters(self, error: SemaphoreError) -> None:
        for claim in list(self.waiting):
            self.refuse(claim, error)

    def requeue(self, batch: Batch, *, arrived: bool) -> None:
        """Write *batch* again, before what is new; it may have *arrived* all the same."""
        match batch.call:
            case Acquire():
                if arrived:
                    self._unanswered.clear()
                claims = [claim for claim in batch.parties if claim.state is State.SENT]
                self._write_again(claims)
            case Release(owner=owner):
                for unit in batch.parties:
                    unit.repeated |= arrived
                self._returned[owner] = [*batch.parties, *self._returned.get(owner, ())]
            case Refresh():
                for claim, waiters in batch.parties:
                    if claim.state is State.HELD:
                        _, later = self._refreshing.setdefault(claim.number, (claim, []))
                        later.extend(waiters)
                    else:
                        self._refreshed(claim, waiters, Outcome.UNKNOWN, batch.sent_at)
            case Abandon():
                self._leaving[:0] = batch.parties
            case Heartbeat():
                self._beating = False
                self._beat_due = True
            case Adopt():
                adoption: Adoption = batch.parties[0]
                if adoption.claim.state is State.SENT:
                    if not arrived:
                        # Later numbers may have been used meanwhile, which made this one void.
                        self.claims.pop(adoption.claim.number, None)
                        adoption.claim.number = 0
                    self._questions.appendleft(adoption)
            case _:
                self._questions.appendleft(batch.parties[0])
        self._wake()

    # -- what messages mean

    def told(self, message: Message, fresh_at: float | None) -> None:
        """Apply a message. *fresh_at* is when the newest answered letter was sent."""
        match message:
            case Granted(grants=grants):
                for number, holding in grants:
                    if number not in self.claims:
                        self._stray(number)
                    else:
                        # The server had run that letter before it granted this.
                        sent_at = -1e9 if fresh_at is None else fresh_at
                        self._granted(number, holding.token, holding.left_ms / 1000, sent_at)
            case Taken(numbers=numbers):
                for number in numbers:
                    claim = self.claims.get(number)
                    if claim is not None and claim.state is State.HELD:
                        del self.claims[number]
                        claim.lose("released or adopted by somebody else")
            case Cleared():
                self._cleared()
            case Hint():
                self._hinted(message)

    def _stray(self, number: int) -> None:
        """A grant for a number that nobody here waits with: it goes back."""
        self._send_back(self.hub.hub_id, number, 1, trusted=False)

    def _hinted(self, hint: Hint) -> None:
        """Permits are free to try for."""

    def _cleared(self) -> None:
        """The semaphore was deleted: holders lose, waiters start again."""
        for claim in list(self.claims.values()):
            if claim.state is State.HELD:
                del self.claims[claim.number]
                claim.lose("the semaphore was cleared")
        for claim in reversed(list(self.waiting)):
            self._ask_anew(claim)

    # -- what time brings

    def _expect(self, reply: Reply, *, heard_from: bool = False) -> None:
        """Note when something may change by itself, and when to be heard from again."""
        if not self.waiting:
            self._stop_timer()
            return
        now = self.hub.loop.time()
        if heard_from or self._timer is None:
            self._beat_at = now + heartbeat_interval(self._longest)
        self._moment_at = math.inf
        if reply.next_ms is not None:
            stagger = STAGGER * self.hub.jitter() if self._behind() else 0.001
            self._moment_at = now + reply.next_ms / 1000 + stagger
        at = min(self._beat_at, self._moment_at)
        if self._timer is None or at < self._timer.when():
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        self._stop_timer()
        self._timer = self.hub.loop.call_at(at, self._time_passed)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_passed(self) -> None:
        self._timer = None
        at = min(self._beat_at, self._moment_at)
        if not self.waiting:
            return
        if self.hub.loop.time() < at:
            self._set_timer(at)  # what it was set for has moved
        elif not self._beating:
            self.beat()

    def _behind(self) -> bool:
        """Whether other processes are likelier to be served first."""
        return False

    def beat(self) -> None:
        """Send a heartbeat."""
        self._beat_due = True
        self._wake()

    def _asked_about(self) -> Sequence[Claim]:
        return ()

    def _heard_about(self, batch: Batch, reply: Reply) -> None:
        """A heartbeat told what became of the claims it asked about."""

    # -- what happens to the link

    def reconnected(self) -> None:
        """A new link: the hub is introduced again, and asks about all that waits."""
        self.introduced = False
        self._beating = False
        if self.waiting:
            self.beat()

    def fail_outlasted(self, since: float, error: Callable[[], SemaphoreError]) -> None:
        """End the waiting, without a deadline, whose patience an outage has outlasted."""
        for claim in self._pending():
            waited = clock() - max(since, claim.started)
            if claim.timer is None and waited > claim.terms.lease:
                self.refuse(claim, error())
        for returned in self._returned.values():
            for unit in returned:
                if clock() - unit.asked_at > patience(self.shortest):
                    unit.settle(error())  # and is sent all the same, once that is possible

    def fail_hurried(self, error: Callable[[], Exception]) -> None:
        """End the claims that do not wait: the server cannot be asked now."""
        for claim in self._pending():
            if not claim.waits:
                self.refuse(claim, error())

    def fail_waiting(self, error: Callable[[], Exception]) -> None:
        """End every claim whose caller waits."""
        for claim in self._pending():
            self.refuse(claim, error())

    def fail_all(self, error: Callable[[], SemaphoreError]) -> None:
        """End whatever waits for a word: none will come."""
        self.fail_waiting(error)
        while self._questions:
            self._questions.popleft().settle(error())
        for returned in self._returned.values():
            for unit in returned:
                unit.settle(error())
        self._returned.clear()
        self._leaving.clear()

    def close(self, claim: Claim) -> None:
        """Take a held permit from its holder, and give it back."""
        claim.lose("the semaphore was closed in this process")
        self.release(claim)

    def _pending(self) -> list[Claim]:
        pending = [claim for claim in self.claims.values() if claim.state is State.SENT or claim.confirming]
        pending += [claim for claim in self._new if claim.state is State.NEW]
        return [*pending, *self.waiting]

    def held(self) -> list[Claim]:
        """The permits that this process holds."""
        return [claim for claim in self.claims.values() if claim.state is State.HELD]

    def _give_back(self, claim: Claim, *, trusted: bool) -> Returned:
        self._refreshing.pop(claim.number, None)
        return self._send_back(claim.hub_id, claim.number, claim.permits, trusted=trusted)

    def _send_back(self, owner: str, number: int, permits: int, *, trusted: bool) -> Returned:
        unit = Returned(number, permits, self.hub.loop.create_future(), trusted=trusted)
        self._returned.setdefault(owner, []).append(unit)
        self._wake()
        return unit


_UNSERVED = frozenset({State.SENT, State.WAITING})
_UNHARMED = frozenset({Trouble.AGAIN, Trouble.BUSY, Trouble.MOVED})
