"""The claims of one semaphore, by where they are."""

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, BlockedBy
from redsem_async._core.lease import ahead_in_turns, retry_after
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import SemaphoreRef
from redsem_async._protocol.replies import Reply

from .claim import Claim, LineReport, State
from .identity import HubIdentity
from .introduction import Introduction
from .right import ReuseRight
from .route import Route

HOLDS = 8  # over about so many, the usual hold is averaged
TELL_HOLD = 5.0  # seconds, at least, between two releases that tell it to others

logger = logging.getLogger("redsem_async")


class Ledger:
    """What the operations of one semaphore share.

    Attributes:
        wake: has the pipeline ask what to write; see `RemoteSemaphore.wake`.
        new: to be written, in this order.
        by_number: those that the server may know: sent, waiting, granted, held or leaving.
        waiting: told to wait, first come first.
        overdue: whose deadline has come: the next reply decides.
        ahead: of those that wait, or did, the ones with a head start (fair).
        leaving: whose callers left, and that the server may still know.
        acquires_in_flight: the highest number of each acquire that has no reply yet.
        shortest_lease: of any claim so far, in seconds; longest_lease likewise.
        right: to reuse leases.
        own_hold: for how long requests of this process held their permits lately, in seconds times
            permits; None before the first that gave them back.
        others_hold: the same of all processes, as a reply told it.
        inside: the claims whose blocks a task is inside, by its id because it may be dropped.
    """

    def __init__(
        self,
        identity: HubIdentity,
        semaphore: SemaphoreRef,
        route: Route,
        introduction: Introduction,
        wake: Callable[..., None],
    ) -> None:
        self.identity: HubIdentity = identity
        self.semaphore: SemaphoreRef = semaphore
        self.name: str = semaphore.address.name
        self.route: Route = route
        self.introduction: Introduction = introduction
        self.wake: Callable[..., None] = wake
        self.new: deque[Claim] = deque()
        self.by_number: dict[int, Claim] = {}
        self.waiting: OrderedDict[Claim, None] = OrderedDict()
        self.overdue: dict[Claim, None] = {}
        self.ahead: set[Claim] = set()
        self.leaving: list[Claim] = []
        self.acquires_in_flight: deque[int] = deque()
        self.shortest_lease: float = math.inf
        self.longest_lease: float = 0.0
        self.right: ReuseRight = ReuseRight(identity.loop, route)
        self.own_hold: float | None = None
        self.others_hold: float | None = None
        self.inside: dict[int, list[Claim]] = {}
        self._hold_told_at = -math.inf
        self._keys_share = "+share" in semaphore.address.mode

    def introduce_again(self) -> None:
        """The server may not know this hub any more, or not reach it by push messages.

        Then it may have recalled the right to reuse leases, and nobody here heard of it.
        """
        self.introduction.sent = False
        self.right.end()

    # -- numbers

    def give_number(self, claim: Claim) -> None:
        """*claim* is written now: numbers are drawn in the order of the wire."""
        if claim.number == 0:
            claim.number, claim.hub_id = self.identity.new_number(), self.identity.id
        self.by_number[claim.number] = claim

    def forget_number(self, claim: Claim) -> None:
        """The server has nothing under the number of *claim*, which gets another."""
        self.by_number.pop(claim.number, None)
        claim.number, claim.was_sent = 0, False

    # -- asking

    def ask_again(self, claims: Sequence[Claim]) -> None:
        """Write *claims*, in this order, before those that are new."""
        for claim in claims:
            claim.ask_again()
        self.new.extendleft(reversed(claims))
        if claims:
            self.wake()

    def ask_anew(self, claim: Claim) -> None:
        """What the server had for *claim* is gone: a new number, the same deadline."""
        self.waiting.pop(claim, None)
        self.forget_number(claim)
        self.ask_again([claim])

    def wait(self, claims: Sequence[Claim]) -> None:
        """*claims* stand in line, in this order."""
        for claim in claims:
            claim.told_to_wait()
            self.waiting[claim] = None

    def stop_waiting(self, claim: Claim) -> None:
        """*claim* is granted, or its caller leaves."""
        self.waiting.pop(claim, None)
        self.overdue.pop(claim, None)

    def turn_down(self, claim: Claim, error: Exception) -> None:
        """*claim* ends with *error*. The server has nothing of it that is to be undone."""
        self.by_number.pop(claim.number, None)
        self.overdue.pop(claim, None)
        claim.fail(error)

    # -- losing

    def lose(self, claim: Claim, reason: str, *, expected: bool = False) -> None:
        """The permit of *claim* is lost: wake its holder, notify observers, and log it.

        *expected*: this process took it itself, which is not logged. A loss that cancels a block
        is logged as a warning.
        """
        if claim.state is not State.HELD:
            return
        cancels = claim.on_lost is not None
        claim.lose(reason)
        for notifier in observers.notifiers:
            notifier.lost(claim, reason, cancels=cancels)
        if not expected:
            facts = {"fencing_token": claim.token, "permits": claim.permits, "reason": reason}
            facts |= {"event": "lost", "semaphore": self.name}
            level = logging.WARNING if cancels else logging.INFO
            text = "a permit of %r was lost: %s"
            logger.log(level, text, self.name, reason, extra=facts)

    def lose_unless_trusted(self, claim: Claim) -> bool:
        """Whether the permit of *claim* is lost, or ends now because its trust has run out."""
        if claim.state is State.HELD and clock() >= claim.trusted_until:
            self.lose(claim, self.doubt(claim))
        return claim.state is not State.HELD

    def doubt(self, claim: Claim) -> str:
        """Why *claim* is not trusted, while it is not known to be lost. In any thread."""
        blocked = self.identity.stalls.blocked_for(claim)
        return (
            claim.doubt if blocked is None else f"the event loop was blocked for {blocked:.3g} s"
        )

    # -- looking

    def pending(self) -> list[Claim]:
        """Those whose callers wait for the outcome."""
        numbered = (claim for claim in self.by_number.values() if claim.pending)
        new = (claim for claim in self.new if claim.state is State.NEW)
        return list(dict.fromkeys((*numbered, *new, *self.waiting)))

    def holding(self) -> list[Claim]:
        """Those that the server holds permits for, as far as is known here."""
        return [claim for claim in self.by_number.values() if claim.holding]

    def held(self) -> list[Claim]:
        """Those whose callers hold their permits."""
        return [claim for claim in self.by_number.values() if claim.state is State.HELD]

    @property
    def oldest_is_first(self) -> bool:
        """Whether the oldest waiter is the next: no head starts, and keys do not share."""
        if self.ahead:
            self.ahead = {claim for claim in self.ahead if claim.pending}
        return not self.ahead and not self._keys_share

    def line_report_of(self, sent_at: float, reply: Reply) -> LineReport:
        """What *reply*, to a command sent at *sent_at*, says about the line."""
        if reply.hold_ms is not None:
            self.others_hold = reply.hold_ms / 1000
        return LineReport.of(sent_at, reply)

    def note_hold(self, held: float) -> None:
        """A permit is given back, after *held* seconds times permits."""
        usual = self.own_hold
        self.own_hold = held if usual is None else usual + (held - usual) / HOLDS

    def hold_to_tell(self) -> int | None:
        """The usual hold in ms, for a release that is written now; None where others know it."""
        if self.own_hold is None or (now := clock()) < self._hold_told_at + TELL_HOLD:
            return None
        self._hold_told_at = now
        return math.ceil(1000 * max(self.own_hold, 0.0))

    @property
    def usual_hold(self) -> float | None:
        """As this process measured it, or else the others; None where nobody has."""
        return self.others_hold if self.own_hold is None else self.own_hold

    def retry_after(self, claim: Claim) -> float:
        """When asking again may be worth it, in seconds, by the last reply about the line."""
        report = claim.report or LineReport(0.0, None, 0)
        moment = None if report.next_ms is None else report.next_ms / 1000
        terms, hold = claim.terms, self.usual_hold
        limit = terms.limit if report.set_limit is None else report.set_limit
        if terms.slots is not None:
            limit = min(limit, len(terms.slots))
        waits = claim.state is State.WAITING
        ahead: float = max(report.waiting - waits, 0)
        if claim.key is not None and (queue := report.key_queues.get(claim.key.key)) is not None:
            of_key = max(queue.waiting - waits, 0)
            if claim.waits_for_key:
                declared = limit if claim.key.limit is None else claim.key.limit
                own = declared if queue.set_limit is None else queue.set_limit
                ahead, limit = of_key, min(limit, own)
            elif self._keys_share and hold:
                # After its patience a request goes by its age.
                impatient = ahead + claim.key.patience_ms / 1000 * limit / hold
                ahead = min(ahead_in_turns(of_key, report.competing_keys, limit), impatient)
        return retry_after(ahead, limit, hold, moment, terms.lease)

    def waits_for_itself(self, claim: Claim, error: AcquireTimeout) -> bool:
        """Whether the current task holds a permit that its *claim* may have waited for in vain."""
        if not self.inside:
            return False
        inside = self.inside.get(id(asyncio.current_task()), ())
        held = (each for each in inside if each.state is State.HELD)
        return any(error.blocked_by != "key" or each.key == claim.key for each in held)

    def timed_out(self, claim: Claim) -> AcquireTimeout:
        """The error for a deadline that came although the server replied."""
        waited, report = clock() - claim.started, claim.report
        blocked_by: BlockedBy = "key" if claim.waits_for_key else "limit"
        if report is not None and report.set_limit == 0:
            blocked_by = "paused"
        return AcquireTimeout(self.name, waited, self.retry_after(claim), blocked_by)
