"""What one process asks of one semaphore: what it holds, waits for, and writes next.

A lane decides what is written next and what becomes of its claims; its hub decides when to
write. Everything here is synchronous: between two turns of the event loop the state of a claim
and what was said to the server agree.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ._backend import Node
from ._batches import (
    AbandonBatch,
    AcquireBatch,
    AdoptBatch,
    Adoption,
    Batch,
    Detachment,
    HeartbeatBatch,
    Question,
    QuestionBatch,
    RefreshBatch,
    ReleaseBatch,
    Renewal,
    Restoration,
    RestoreBatch,
    Returned,
)
from ._claim import Claim, State, Word
from ._clock import now as clock
from ._config import Terms
from ._errors import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    ModeMismatch,
    QueueFull,
    SemaphoreError,
)
from ._hindrance import Hindrance
from ._keys import Address
from ._lease import (
    Lost,
    Outcome,
    after_refresh,
    heartbeat_interval,
    margin,
    patience,
    retry_after,
    trusted_until,
)
from ._protocol import (
    Acquire,
    Adopt,
    Answered,
    Call,
    Cleared,
    Fault,
    Granted,
    Heartbeat,
    Hint,
    Introduction,
    Message,
    Reap,
    Reply,
    Taken,
    Trouble,
)
from ._pulse import STAGGER, Pulse
from ._watch import watch
from ._wire import Wire, use_of

if TYPE_CHECKING:
    from ._guardian import Guardian

MOST_ACQUIRES = 256  # bounds for how long one script holds the server
MOST_RELEASES = 256
MOST_REFRESHES = 1250
MOST_HEAVY_REFRESHES = 64  # when some are for several permits
GRACE = 0.05  # seconds: the age of a reply that decides at a deadline, and how long to await one

Unusual = dict[int, tuple[int, bool]]
"""Permits and whether it waits, by number: requests for more than one, or that do not wait."""

_UNSERVED = frozenset({State.SENT, State.WAITING})


class Identity(Protocol):
    """What a lane needs of its hub."""

    loop: asyncio.AbstractEventLoop
    hub_id: str
    usable: bool
    closing: bool

    def drew(self, number: int) -> bool:
        """Whether *number* was drawn here."""
        ...

    def new_number(self) -> int:
        """For an id, when it is written: numbers go up in the order of the wire."""
        ...

    def new_tag(self) -> int:
        """For a letter."""
        ...

    def jitter(self) -> float:
        """Between 1 and 2."""
        ...

    def introduction(
        self, label: str | None, limit: int, *, deaf: bool, recovers: bool
    ) -> Introduction:
        """Who we are, for ``status`` to show, and which *limit* we declare."""
        ...

    def guardian(self) -> "Guardian":
        """Keeps permits refreshed while this loop is blocked; made when first asked for."""
        ...


class Writer(Protocol):
    """What a lane needs of its post."""

    node: Node
    deaf: bool
    trouble: Exception | None
    enough: int
    """How many requests make a letter that need not wait for others to join it."""

    @property
    def linked(self) -> bool:
        """Whether there is a link to write to."""
        ...

    @property
    def fresh_at(self) -> float | None:
        """When the newest letter was sent that was answered on this link, for any lane."""
        ...

    @property
    def lead(self) -> float:
        """How long before an answer is needed to ask for it: 0 where GRACE is enough."""
        ...

    def enlist(self, lane: "Lane", *, asked: bool) -> None:
        """*lane* has something to write, *asked* for by a task."""
        ...

    def fill(self) -> None:
        """There is enough for a letter before the turn of the loop has ended."""
        ...

    def confirm(self, claim: Claim) -> None:
        """Tell the lane of *claim*, granted on this link, when enough replicas know of it."""
        ...

    def hurry(self) -> None:
        """Somebody does not wait: find out at once whether there is anybody to ask."""
        ...

    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used: silence is noticed in time for them."""
        ...

    def unavailable(self, name: str, cause: Exception | None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        ...


class Lane(ABC):
    """Base of the two modes' lanes."""

    def __init__(self, hub: Identity, post: Writer, address: Address, label: str | None) -> None:
        self.hub: Identity = hub
        self.post: Writer = post
        self.address: Address = address
        self.wire: Wire = Wire(address)
        self.claims: dict[int, Claim] = {}  # sent, waiting, held or leaving, by number
        self.waiting: OrderedDict[Claim, None] = OrderedDict()  # told to wait, first come first
        self.overdue: dict[Claim, None] = {}  # whose deadline has come: the next reply decides
        self.unanswered: deque[int] = deque()  # highest number of each acquire on its way
        self.introduced: bool = False
        self.beating: bool = False  # a heartbeat is on its way
        self.ready: bool = False  # its post knows of it: takes from it, or holds it back
        self.declared: int = 0  # the limit, by the semaphore that was used last
        self.highest: int = 0  # limit that any claim so far declared
        self.shortest: float = math.inf  # lease of any claim so far
        self._longest: float = 0.0
        self._label = label
        self._new: deque[Claim] = deque()
        # By the hub that owns the ids.
        self._returned: defaultdict[str, list[Returned]] = defaultdict(list)
        self._leaving: list[Claim] = []
        self._void: list[Question] = []  # sent before, unanswered, and not wanted any more
        self._acting: int = 0  # calls on their way that act once
        self._acting_alone: bool = False
        self._renewals: dict[int, Renewal] = {}
        self._questions: deque[Question | Adoption | Restoration] = deque()
        self._beat_due = False
        self._pulse = Pulse(hub.loop, self._time_passed)
        self.hindrance: Hindrance | None = None

    # -- what the tasks ask for

    def recover(self, lease: float) -> None:
        """Look for losses of state from now on, for permits of *lease* seconds."""
        self._longest = max(self._longest, lease)
        if not self.wire.recovers:
            self.wire.recover()
            self.introduced = False

    def submit(self, claim: Claim) -> None:
        """Ask for a permit. The claim's future wakes the caller."""
        if not claim.waits:
            self.post.hurry()
        lease = claim.terms.lease
        self._longest = max(self._longest, lease)
        if lease < self.shortest:
            self.shortest = lease
            self.post.expect_lease(lease)
        self.highest = max(self.highest, claim.terms.limit)
        self._new.append(claim)
        self.wake(asked=True)
        if len(self._new) >= self.post.enough:
            self.post.fill()

    def depart(self, claim: Claim) -> None:
        """The caller left without a permit: whatever it was or will be granted is undone."""
        state, claim.state = claim.state, State.ENDED
        claim.confirming = False
        if claim.timer is not None:
            claim.stop_timer()
        self.waiting.pop(claim, None)
        self.overdue.pop(claim, None)
        if self._may_be_known(claim, state):
            self._leaving.append(claim)
            self.wake()
        elif state is State.HELD or state is State.LOST:
            self._give_back(claim, clock(), trusted=False)

    def release(self, claim: Claim, now: float) -> Returned:
        """Give a held permit back. The answer tells whether it was held until *now*."""
        trusted = claim.trusted_at(now)
        claim.state = State.ENDED
        returned = self._give_back(claim, now, trusted=trusted, asked=True)
        for teller in watch.tellers:
            teller.released(claim)
        return returned

    def release_by_id(self, owner: str, number: int) -> Returned:
        """Give back a permit known by its id alone."""
        claim = self.claims.get(number) if owner == self.hub.hub_id else None
        if claim is not None and claim.state is State.HELD:
            del self.claims[number]
            claim.lose("released by its id", meant=True)
        return self._send_back(owner, self._unknown(number))

    def refresh(self, claim: Claim) -> "asyncio.Future[Outcome]":
        """Renew a lease. The claim knows the outcome before the future wakes anybody."""
        future: asyncio.Future[Outcome] = self.hub.loop.create_future()
        renewal = self._renewals.get(claim.number)
        if renewal is None:
            renewal = Renewal(claim)
            self.renew(renewal)
        renewal.futures.append(future)
        return future

    async def detach(self, claim: Claim, expires: float) -> None:
        """Have the server keep a held permit for *expires* seconds more, and let go of it.

        Raises:
            PermitLost: when it is lost, or given back meanwhile.
            BackendError: when the server refused, or could not be asked.
        """
        future: asyncio.Future[Answered | SemaphoreError] = self.hub.loop.create_future()
        detachment = Detachment(claim, expires, future)
        # Once it is written, and unanswered, the permit is trusted for no longer than that.
        left = claim.trusted_until - clock()
        most = max(0.0, min(expires - margin(expires), patience(self.shortest), left))
        answer = await self._ask(detachment, most)
        assert isinstance(answer, Reply)
        if not answer.answers[0]:
            self._lose(claim, "the server does not hold it any more")
        if claim.state is not State.HELD:
            raise claim.loss()
        claim.state = State.ENDED
        self.claims.pop(claim.number, None)
        for teller in watch.tellers:
            teller.detached(claim)

    def adopt(self, claim: Claim, owner: str, old: int) -> None:
        """Take over the permit known to *owner* as *old*. The claim's future wakes the caller."""
        claim.state = State.SENT
        self._questions.append(Adoption(claim, owner, old))
        self.wake()

    async def ask(self, call: Call) -> Answered:
        """Send a call of its own kind, and wait for its answer within a bounded time.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        future: asyncio.Future[Answered | SemaphoreError] = self.hub.loop.create_future()
        return await self._ask(Question(call, future), patience(min(self.shortest, 10.0)))

    async def _ask(self, question: Question, timeout: float) -> Answered:
        future = question.future
        assert future is not None
        self._questions.append(question)
        self.wake()
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise self.unavailable()
        finally:
            if future.cancel() and question in self._questions:
                # Nobody asks any more: what is not sent yet never will be, nor keeps the hub.
                self._questions.remove(question)
                self._withdraw(question)
        answer = future.result()
        if isinstance(answer, SemaphoreError):
            raise answer
        return answer

    def expire(self, claim: Claim, lead: float = 0.0) -> None:
        """The caller's deadline comes in *lead* seconds, or has come; or GRACE ago."""
        if not claim.pending:
            return
        if claim.word_since is None:
            # One that was not answered yet takes whatever answer comes.
            asked = claim.state is not State.WAITING
            young = clock() - max(0.0, GRACE - lead)
            claim.word_since = -math.inf if asked else max(young, claim.started)
        error = None if lead else self._verdict(claim)
        if error is None and claim not in self.overdue:
            claim.timer = self.hub.loop.call_later(lead + GRACE, self.expire, claim)
            self.overdue[claim] = None
            if claim.state is State.WAITING and not self.beating:
                self.beat()  # one for all whose deadline comes now
        else:
            self.refuse(claim, error or self._unanswered(claim))

    def mind_distance(self, claims: Iterable[Claim]) -> None:
        """*claims* wait: far away, the question at a deadline has to leave before it comes."""
        lead, loop = self.post.lead, self.hub.loop
        if not lead:
            return
        for claim in claims:
            if claim.timer is None or claim.word_since is not None:
                continue
            if claim.deadline - lead > loop.time():
                claim.timer.cancel()
                claim.timer = loop.call_at(claim.deadline - lead, self.expire, claim, lead)
            else:
                claim.word_since = -math.inf  # nothing could be younger when it comes

    def settle_overdue(self) -> None:
        """The server has answered: end those whose deadline has come, unless it serves them."""
        now = self.hub.loop.time()
        for claim in list(self.overdue):
            if claim.state is State.WAITING and (error := self._verdict(claim)):
                if now < claim.deadline and claim.timer is not None:
                    # Asked from afar, and answered sooner than others were.
                    del self.overdue[claim]
                    claim.timer.cancel()
                    claim.timer = self.hub.loop.call_at(claim.deadline, self.expire, claim)
                else:
                    self.refuse(claim, error)
            elif not claim.pending:
                del self.overdue[claim]
        if not self.beating and any(claim.state is State.WAITING for claim in self.overdue):
            self.beat()  # what was answered had been asked before their deadline, or not for them

    def _verdict(self, claim: Claim) -> SemaphoreError | None:
        """What its deadline gives *claim*, by what is known; None while a reply is awaited."""
        if self.trouble is not None:
            return self.unavailable()
        if claim.hindered_by is not None or not claim.waits:
            return self._unanswered(claim)
        return self._too_late(claim) if self._surely_waits(claim) else None

    def _surely_waits(self, claim: Claim) -> bool:
        """Whether the server has said that *claim* waits, lately enough for its deadline.

        It has where it said so itself. And where messages are heard, and nothing is in doubt, by
        any answer: a message to *claim* would have come before that.
        """
        since, word = claim.word_since, self.last_word(claim)
        if claim.state is not State.WAITING or since is None:
            return False
        if word is not None and word.sent_at >= since:
            return True
        doubtful = self.beating or self._beat_due or self.hindrance or self.post.deaf
        fresh_at = self.post.fresh_at
        return not doubtful and fresh_at is not None and fresh_at >= since

    def _unanswered(self, claim: Claim) -> BackendUnavailable:
        if claim.confirming or claim.hindered_by is not None:
            return self.unconfirmed(claim)
        return self.unavailable(TimeoutError("no answer came in time"))

    @property
    def trouble(self) -> Exception | None:
        """Why nothing can be had for now, if that is known."""
        return (self.hindrance.error if self.hindrance else None) or self.post.trouble

    def unavailable(self, cause: Exception | None = None) -> BackendUnavailable:
        """An error that says what could not be reached, and why."""
        return self.post.unavailable(self.address.name, cause or self.trouble)

    def unconfirmed(self, claim: Claim) -> BackendUnavailable:
        """An error that says why no grant could be handed out."""
        reason = claim.hindered_by or "no answer in time"
        error = BackendUnavailable(self.address.name, f"a grant was not confirmed: {reason}")
        error.__cause__ = claim.hindered_by
        return error

    def refuse(self, claim: Claim, error: Exception) -> None:
        """End a claim whose caller waits, with *error*."""
        self.depart(claim)
        claim.settle(error)

    def _too_late(self, claim: Claim) -> AcquireTimeout:
        waited = clock() - claim.started
        return AcquireTimeout(self.address.name, waited, self.retry_after(claim))

    def retry_after(self, claim: Claim) -> float:
        """When asking again may be worth it, by the server's last word to *claim*."""
        word = self.last_word(claim)
        _, next_ms, waiting = word or (0.0, None, 0)
        moment = None if next_ms is None else next_ms / 1000
        return retry_after(moment, claim.terms.lease, waiting, claim.terms.limit)

    def last_word(self, claim: Claim) -> Word | None:
        """What the server said last that goes for *claim*."""
        return claim.heard

    # -- what differs between the modes

    @abstractmethod
    def _acquire(self, claims: Sequence[Claim], unusual: Unusual) -> Acquire:
        """The call with which *claims*, all with the same terms, ask for permits."""

    @abstractmethod
    def must_wait(self, claims: Sequence[Claim]) -> None:
        """The server said to *claims*, in this order, that they have to wait."""

    def answered(self, word: Word) -> None:
        """An acquire or a heartbeat was answered, for whomever."""

    def announced(self, waits: int) -> None:
        """The server was told that so many wait here, by a call that is answered now."""

    @abstractmethod
    def _heartbeat(self, asked: Sequence[Claim]) -> Heartbeat:
        """The call that keeps the process alive there, and asks about some waiters."""

    @abstractmethod
    def _behind(self) -> bool:
        """Whether other processes are likelier to be served first."""

    @abstractmethod
    def _standing(self, reply: Reply) -> None:
        """A reply told how things stand."""

    def _may_be_known(self, claim: Claim, state: State) -> bool:
        """Whether the server may have something for *claim*, which was in *state*."""
        return claim.number > 0 and (state is State.SENT or state is State.NEW)

    def _kept(self, owner: str, units: Iterable[Returned]) -> int:
        """How many of these permits this process takes again itself."""
        return 0

    def _asked_about(self) -> Sequence[Claim]:
        """The waiters that the next heartbeat asks about."""
        return ()

    def found_gone(self, claims: Sequence[Claim]) -> None:
        """A heartbeat told that the server knows nothing of *claims* any more."""

    def _hinted(self, hint: Hint) -> None:
        """Permits are free to try for."""

    def still_hinted(self, permits: int) -> None:
        """A call was not carried out that said what becomes of hinted *permits*."""

    # -- what is written next

    def wake(self, *, asked: bool = False) -> None:
        """Have the hub ask what to write; at once where it is *asked* for by a lone task."""
        if not self.ready:
            self.ready = True
            self.post.enlist(self, asked=asked)

    @property
    def eager(self) -> bool:
        """Whether there is more to write."""
        return bool(
            self._new
            or self._returned
            or self._renewals
            or self._leaving
            or self._void
            or self._beat_due
            or (self._questions and self._next_question() is not None)
        )

    @property
    def active(self) -> bool:
        """Whether anything is held, waited for or to be written: then its hub stays."""
        while self._new and self._new[0].state is not State.NEW:
            self._new.popleft()
        return bool(
            self.claims
            or self._new
            or self._returned
            or self._leaving
            or self._void
            or self._questions
            or self.waiting
            or self._something_due
        )

    @property
    def _something_due(self) -> bool:
        """Whether something is due that is worth saying while the server listens, and not after.

        That nobody waits here any more, it finds out by itself once the link is gone: what it
        tells us then, nobody hears. And of what is lost, there is nothing to be refreshed.
        """
        due = self._beat_due or bool(self._renewals)
        return due and self.post.linked and self.trouble is None

    def take(self) -> Batch | None:
        """The next batch to write, if any: refreshes, releases, questions, then acquires."""
        if self.wire.recovers and not self.introduced:
            return self._take_heartbeat()  # a loss is to be noticed before anything is done
        if self._renewals:
            return self._take_renewals()
        if self._returned:
            return self._take_returned()
        if self._leaving or self._void:
            claims, self._leaving = self._leaving[:MOST_RELEASES], self._leaving[MOST_RELEASES:]
            void, self._void = self._void, []
            return AbandonBatch(self, claims, void)
        question = self._next_question()
        if question is not None:
            self._questions.popleft()
            return self._take_question(question)
        if self._beat_due:
            return self._take_heartbeat()
        return self._take_acquires()

    def _take_heartbeat(self) -> Batch:
        self._beat_due, self.beating = False, True
        asked = self._asked_about()
        return HeartbeatBatch(self, self._heartbeat(asked), asked)

    def _take_renewals(self) -> Batch:
        lease_ms = next(iter(self._renewals.values())).claim.terms.lease_ms
        renewals = [r for r in self._renewals.values() if r.claim.terms.lease_ms == lease_ms]
        if any(renewal.claim.permits > 1 for renewal in renewals):
            renewals = renewals[:MOST_HEAVY_REFRESHES]
        renewals = renewals[:MOST_REFRESHES]
        for renewal in renewals:
            del self._renewals[renewal.claim.number]
        return RefreshBatch(self, lease_ms, renewals)

    def _take_returned(self) -> Batch:
        owner, units = next(iter(self._returned.items()))
        if len(units) > MOST_RELEASES:
            self._returned[owner] = units[MOST_RELEASES:]
            units = units[:MOST_RELEASES]
        else:
            del self._returned[owner]
        return ReleaseBatch(self, owner, units, self._kept(owner, units))

    def _next_question(self) -> Question | Adoption | Restoration | None:
        """The next question that may be written now, which is the first in the queue then."""
        while self._questions:
            question = self._questions[0]
            if not question.wanted:
                self._questions.popleft()  # an adoption: its claim is among those that leave
            elif question.acts_once and (
                self._acting_alone or (question.alone and self._acting > 0)
            ):
                return None
            else:
                return question
        return None

    def _take_question(self, question: Question | Adoption | Restoration) -> Batch:
        if isinstance(question, Restoration):
            return RestoreBatch(self, question, self._introduction())
        if question.acts_once:
            self._acting += 1
            self._acting_alone = question.alone
        if isinstance(question, Adoption):
            return self._take_adoption(question)
        call = question.call
        if question.acts_once:
            number = self.hub.new_number() if question.renumber else question.number
            call = question.written(number)
        return QuestionBatch(self, call, question)

    def _take_adoption(self, adoption: Adoption) -> Batch:
        claim = adoption.claim
        self._number(claim)
        if adoption.renumber:
            claim.call, adoption.renumber = self.hub.new_number(), False
        call = Adopt(
            *(adoption.owner, adoption.old, claim.number, claim.terms.lease_ms),
            introduction=self._introduction(),
            call=claim.call,
        )
        return AdoptBatch(self, call, adoption)

    def call_ended(self, question: Question | Adoption) -> None:
        """A call that acts once is not on its way any more."""
        self._acting -= 1
        self._acting_alone = self._acting_alone and not question.alone
        if self._questions:
            self.wake()

    def _withdraw(self, question: Question) -> None:
        """Nobody asks any more, and *question* is not on its way."""
        if question.acts_once and question.repeated:
            # Its bytes may lie somewhere still: it is made void.
            self._void.append(question)
            self.wake()
        else:
            question.ended()

    def _take_acquires(self) -> Batch | None:
        new = self._new
        claims: list[Claim] = []
        unusual: Unusual = {}
        terms: Terms | None = None
        while new and len(claims) < MOST_ACQUIRES:
            claim = new[0]
            if claim.state is State.NEW:
                if terms is not claim.terms:
                    if terms is not None and terms != claim.terms:
                        break
                    terms = claim.terms
                self._number(claim)
                claim.state = State.SENT
                claims.append(claim)
                if claim.permits != 1 or not claim.waits:
                    unusual[claim.number] = (claim.permits, claim.waits)
            new.popleft()
        if not claims:
            return None
        batch = AcquireBatch(self, self._acquire(claims, unusual), claims)
        self.unanswered.append(claims[-1].number)
        return batch

    def _number(self, claim: Claim) -> None:
        """Numbers are drawn when they are written, so they go up in the order of the wire."""
        if claim.number == 0:
            claim.number, claim.hub_id = self.hub.new_number(), self.hub.hub_id
        self.claims[claim.number] = claim

    def _introduction(self) -> Introduction | None:
        if self.introduced:
            return None
        self.introduced = True
        return self.introduction()

    def introduction(self) -> Introduction:
        """Who we are, to a server that has forgotten it. May be asked in any thread."""
        return self.hub.introduction(
            self._label, self.declared, deaf=self.post.deaf, recovers=self.wire.recovers
        )

    # -- what batches and messages bring about

    def grant(self, number: int, token: int, left: float | None, sent_at: float) -> None:
        """The server says that *number* holds a permit, for *left* seconds (a whole lease)."""
        claim = self.claims.get(number)
        if claim is None and self.hub.drew(number):
            self._send_back(self.hub.hub_id, self._unknown(number))  # nobody waits with it
        if claim is None or claim.state not in _UNSERVED:
            return  # told already; or its caller left, and an abandon is on its way
        self.waiting.pop(claim, None)
        self.overdue.pop(claim, None)
        lease = claim.terms.lease
        whole = left is None
        left = lease if left is None else left
        claim.hold(token, trusted_until(lease, sent_at=sent_at, left=left))
        if whole:
            (self.hand_out if claim.trusted_at(clock()) else self.overslept)(claim)
            return
        if claim.terms.min_replicas:
            self.confirm_anew(claim)
            return
        # Told late, or of a short lease: a refresh makes it a whole one, and leaves before the
        # body can block the loop. Where much of the lease is gone, or unknown, nobody is told
        # before it is answered.
        renewed = self.refresh(claim)
        if claim.trusted_until - clock() >= left / 2:
            claim.settle()
        else:
            claim.confirming = True
            renewed.add_done_callback(lambda _: self.confirmed(claim))

    def hand_out(self, claim: Claim) -> None:
        """Tell the caller of *claim*, which this link's last reply has granted."""
        if claim.terms.min_replicas:
            claim.confirming = True
            self.post.confirm(claim)
        else:
            claim.settle()

    def overslept(self, claim: Claim) -> None:
        """The loop stood still for a lease: nobody is handed what is lost already."""
        claim.confirming = True
        self.start_anew(claim)

    def confirm_anew(self, claim: Claim) -> None:
        """Refresh *claim* first, so that there is a write on this link for replicas to confirm."""
        claim.confirming = True

        def refreshed(outcome: "asyncio.Future[Outcome]") -> None:
            if not claim.confirming:
                return
            if outcome.result() is Outcome.RENEWED:
                self.hand_out(claim)
            else:
                self.confirmed(claim)

        self.refresh(claim).add_done_callback(refreshed)

    def confirmed(self, claim: Claim) -> None:
        """What was to be known before the caller of *claim* is told is known."""
        if not claim.confirming:
            return
        if claim.trusted_at(clock()):
            claim.confirming = False
            claim.settle()
        else:
            self.start_anew(claim)

    def hinder(self, claim: Claim, error: Exception) -> None:
        """What was granted to *claim* cannot be handed out: too few replicas know of it."""
        now = clock()
        if claim.hindered_by is None:
            claim.hindered_since = now
        claim.hindered_by = error
        outlasted = claim.timer is None and now - claim.hindered_since > claim.terms.lease
        if claim.confirming and (outlasted or not claim.waits):
            self.refuse(claim, self.unconfirmed(claim))

    def start_anew(self, claim: Claim) -> None:
        """Give back what was granted to *claim*, and ask again."""
        if not claim.confirming:
            return
        claim.confirming = False
        # Lost here, it may be held there: the answer may have come too late.
        self._give_back(claim, clock(), trusted=False)
        claim.lost_reason = None
        self._ask_anew(claim)

    def _ask_anew(self, claim: Claim) -> None:
        """What the server had for *claim* is gone: a new number, the same deadline."""
        self.waiting.pop(claim, None)
        self.forget_number(claim)
        self.ask_again([claim])

    def forget_number(self, claim: Claim) -> None:
        """The number of *claim* is worth nothing any more; it gets another."""
        self.claims.pop(claim.number, None)
        claim.number, claim.repeated = 0, False

    def ask_again(self, claims: Sequence[Claim]) -> None:
        """Write *claims*, in this order, before those that are new."""
        for claim in claims:
            claim.state = State.NEW
        self._new.extendleft(reversed(claims))
        if claims:
            self.wake()

    def turn_away(self, claim: Claim) -> None:
        """The server said full to a claim that does not wait."""
        most = claim.terms.max_waiters
        if claim.waits and most is not None:
            self.turn_down(claim, QueueFull(self.address.name, most, self.retry_after(claim)))
        else:
            self.turn_down(claim, self._too_late(claim))

    def turn_down(self, claim: Claim, error: SemaphoreError) -> None:
        """The server keeps nothing of *claim*: there is nothing to undo."""
        self.claims.pop(claim.number, None)
        self.overdue.pop(claim, None)
        claim.state = State.ENDED
        claim.settle(error)

    def refreshed(self, claim: Claim, outcome: Outcome, sent_at: float) -> None:
        """A refresh sent at *sent_at* has ended."""
        if claim.state is not State.HELD:
            return
        if outcome is Outcome.RENEWED and sent_at <= claim.renewable_after:
            outcome = Outcome.UNKNOWN  # a detach may have run after it
        lease = claim.terms.lease
        verdict = after_refresh(claim.trusted_until, lease, outcome, sent_at=sent_at, now=clock())
        if isinstance(verdict, Lost):
            self._lose(claim, verdict.reason)
        else:
            claim.trusted_until = verdict
            if outcome is Outcome.RENEWED:
                for teller in watch.tellers:
                    teller.refreshed(claim)

    def _lose(self, claim: Claim, reason: str) -> None:
        self.claims.pop(claim.number, None)
        claim.lose(reason)
        self.start_anew(claim)  # if its caller still waits: the reply may not come now

    def renew(self, renewal: Renewal) -> None:
        """Write a refresh, together with others."""
        later = self._renewals.setdefault(renewal.claim.number, renewal)
        if later is not renewal:
            later.futures.extend(renewal.futures)
        self.wake()

    def restore(self, renewal: Renewal) -> None:
        """Put a permit back that the server does not know: state may have been lost."""
        lease_ms = renewal.claim.terms.lease_ms
        last = self._questions[-1] if self._questions else None
        if isinstance(last, Restoration) and last.lease_ms == lease_ms:
            last.renewals.append(renewal)
        else:
            self._questions.append(Restoration(lease_ms, [renewal]))
            self.wake()

    def send_back_again(self, owner: str, units: Sequence[Returned]) -> None:
        """Write a release again, before others."""
        self._returned[owner] = [*units, *self._returned.get(owner, ())]
        self.wake()

    def abandon_again(self, claims: Sequence[Claim], void: Sequence[Question]) -> None:
        """Write an abandon again, before others."""
        self._leaving[:0] = claims
        self._void[:0] = void
        self.wake()

    def ask_first(self, question: Question | Adoption) -> None:
        """Write a question again, before others."""
        if isinstance(question, Question) and not question.wanted:
            self._withdraw(question)
        else:
            self._questions.appendleft(question)
            self.wake()

    def error_of(self, fault: Fault) -> SemaphoreError:
        """What to raise for a fault that is not ridden out."""
        name = self.address.name
        error: SemaphoreError
        if fault.trouble is Trouble.MISMATCH:
            error = ModeMismatch(name, self.address.kind, *use_of(fault.error))
        else:
            error = BackendError(name, str(fault.error))
        error.__cause__ = fault.error
        return error

    def told(self, message: Message, fresh_at: float | None) -> None:
        """Apply a message. *fresh_at* is when the newest answered letter was sent."""
        match message:
            case Granted(grants=grants):
                # The server had run that letter before it granted these.
                sent_at = -math.inf if fresh_at is None else fresh_at
                for number, holding in grants:
                    self.grant(number, holding.token, holding.left_ms / 1000, sent_at)
            case Taken(numbers=numbers):
                self.taken(numbers)
            case Cleared():
                self.cleared()
            case Hint(permits=0):
                if self.waiting:
                    self.beat()  # something will change earlier than was said
            case Hint():
                self._hinted(message)

    def taken(self, numbers: Iterable[int]) -> None:
        """Somebody else released or adopted permits of this process."""
        for number in numbers:
            claim = self.claims.get(number)
            if claim is not None and claim.state is State.HELD:
                self._lose(claim, "released or adopted by somebody else")

    def cleared(self) -> None:
        """The semaphore was deleted: holders lose, waiters start again."""
        self.introduced = False
        for claim in self.held():
            self._lose(claim, "the semaphore was cleared")
        for claim in reversed(list(self.waiting)):
            self._ask_anew(claim)

    # -- what time brings

    def apply(
        self, reply: Reply, sent_at: float, *, heard_from: bool = False, go_on: bool = True
    ) -> None:
        """Apply what a reply tells beside its answers."""
        for number, token in reply.granted:
            self.grant(number, token, None, sent_at)
        first = self._questions[0] if self._questions else None
        reaps = isinstance(first, Question) and isinstance(first.call, Reap)
        if reply.next_ms == 0 and go_on and not reaps:
            # The call stopped early, to let others have the server.
            self.ask_first(Question(Reap(), None))
        self._standing(reply)
        if not self.waiting:
            self._pulse.stop()
            return
        interval = heartbeat_interval(self._longest)
        if heard_from:
            self._pulse.heard_from(interval)
        moment = None
        if reply.next_ms is not None:
            moment = reply.next_ms / 1000
            moment += STAGGER * self.hub.jitter() if self._behind() else 0.001
        self._pulse.expect(moment, interval)

    def _time_passed(self) -> None:
        if self.waiting and not self.beating:
            self.beat()

    def beat(self) -> None:
        """Send a heartbeat."""
        self._beat_due = True
        self.wake()

    # -- what happens to the link

    def reconnected(self) -> None:
        """A new link: the hub is introduced again, and asks about all that waits."""
        self.introduced = False
        if self.waiting:
            self.beat()
        if self.wire.recovers:
            for claim in self.held():
                _ = self.refresh(claim)  # and put it back, if it is gone

    def cut_off(self) -> None:
        """The link was closed on purpose: nothing on its way will be answered."""
        self.introduced = self.beating = self._beat_due = self._acting_alone = False
        self._acting = 0
        self.unanswered.clear()
        self.claims = {
            n: claim for n, claim in self.claims.items() if claim.state is not State.ENDED
        }

    def fail_outlasted(self, since: float, error: Callable[[], SemaphoreError]) -> None:
        """End the waiting, without a deadline, whose patience an outage has outlasted."""
        now = clock()
        for claim in self._pending():
            if claim.timer is None and now - max(since, claim.started) > claim.terms.lease:
                self.refuse(claim, error())
        for units in self._returned.values():
            for unit in units:
                if now - unit.asked_at > patience(self.shortest):
                    unit.settle(error())  # and is sent all the same, once that is possible

    def fail_hurried(self, error: Callable[[], SemaphoreError]) -> None:
        """End the claims that do not wait: the server cannot be asked now."""
        for claim in self._pending():
            if not claim.waits:
                self.refuse(claim, error())

    def fail_waiting(self, error: Callable[[], SemaphoreError]) -> None:
        """End every claim whose caller waits."""
        for claim in self._pending():
            self.refuse(claim, error())

    def fail_asking(self, error: Callable[[], SemaphoreError]) -> None:
        """End whatever waits for a permit, or for an answer."""
        self.fail_waiting(error)
        while self._questions:
            question = self._questions.popleft()
            question.settle(error())
            if isinstance(question, Question):
                self._withdraw(question)

    def fail_all(self, error: Callable[[], SemaphoreError]) -> None:
        """End whatever waits for a word: none will come."""
        self.fail_asking(error)
        for units in self._returned.values():
            for unit in units:
                unit.settle(error())
        self._returned.clear()
        for claim in self._leaving:
            self.claims.pop(claim.number, None)
        self._leaving.clear()
        self._void.clear()

    def close(self, claim: Claim) -> None:
        """Take a held permit from its holder, and give it back."""
        claim.lose("the semaphore was closed in this process", meant=True)
        self.release(claim, clock())

    def held(self) -> list[Claim]:
        """The permits that this process holds."""
        return [claim for claim in self.claims.values() if claim.state is State.HELD]

    def _pending(self) -> list[Claim]:
        sent = [claim for claim in self.claims.values() if claim.state is State.SENT]
        unsure = [claim for claim in self.held() if claim.confirming]
        new = [claim for claim in self._new if claim.state is State.NEW]
        return [*sent, *unsure, *new, *self.waiting]

    def _give_back(
        self, claim: Claim, now: float, *, trusted: bool, asked: bool = False
    ) -> Returned:
        self.claims.pop(claim.number, None)
        if self._renewals:
            self._renewals.pop(claim.number, None)
        future = self.hub.loop.create_future()
        unit = Returned(claim.number, claim.permits, future, now, trusted=trusted)
        return self._send_back(claim.hub_id, unit, asked=asked)

    def _send_back(self, owner: str, unit: Returned, *, asked: bool = False) -> Returned:
        returned = self._returned[owner]
        returned.append(unit)
        self.wake(asked=asked)
        if asked and len(returned) >= self.post.enough:
            self.post.fill()
        return unit

    def _unknown(self, number: int) -> Returned:
        """A permit known by its number alone."""
        return Returned(number, 1, self.hub.loop.create_future(), clock(), trusted=False)
