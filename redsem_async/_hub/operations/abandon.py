"""Abandon: what callers that left have asked for is undone."""

from collections.abc import Callable, Sequence
from typing import Protocol

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.ledger import Ledger
from redsem_async._protocol.operations import Abandon
from redsem_async._protocol.replies import AnyReply, Reply

from .base import Batch, max_batch
from .release import ReleaseQueue


class NumberedCall(Protocol):
    """A call that the server carries out once at most, by its number."""

    number: int

    def ended(self) -> None:
        """It will not be carried out any more."""
        ...


class AbandonQueue:
    """Claims whose callers left (`Ledger.leaving`), and calls that are to be made `void`."""

    def __init__(self, ledger: Ledger, releases: ReleaseQueue) -> None:
        self._ledger = ledger
        self.releases: ReleaseQueue = releases
        self.void: list[NumberedCall] = []
        self._outlasted = False

    def leave(self, claim: Claim) -> None:
        """The caller left without a permit: whatever it was or will be granted is undone."""
        ledger, state = self._ledger, claim.state
        ledger.stop_waiting(claim)
        claim.end()
        if claim.number and state <= State.WAITING:
            ledger.leaving.append(claim)
            ledger.wake()
        elif state is not State.ENDED and claim.number:
            self.releases.give_back(claim, clock(), trusted=False)

    def refuse(self, claim: Claim, error: Exception) -> None:
        """End a claim whose caller waits, with *error*, and undo it at the server."""
        self.leave(claim)
        claim.fail(error)

    def make_void(self, call: NumberedCall) -> None:
        """*call* was sent, has no reply and is not wanted: it may not be carried out any more."""
        self.void.append(call)
        self._ledger.wake()

    def take(self) -> Batch:
        """The next batch; there is one."""
        leaving, most = self._ledger.leaving, max_batch(self._ledger)
        claims, self._ledger.leaving = leaving[:most], leaving[most:]
        void, self.void = self.void, []
        return AbandonBatch(self._ledger, self, claims, void)

    def write_again(self, claims: Sequence[Claim], void: Sequence[NumberedCall]) -> None:
        """Write an abandon again, before others."""
        self._ledger.leaving[:0] = claims
        self.void[:0] = void
        self._ledger.wake()

    @property
    def worth_a_connection(self) -> bool:
        """Whether the server will not find out by itself."""
        return bool(self.void) or (bool(self._ledger.leaving) and not self._outlasted)

    def outlasted(self) -> None:
        """An outage lasts for so long that this process counts as dead, and its requests too.

        They are abandoned all the same if the server is back before this hub ends.
        """
        self._outlasted = True
        self._forget_claims()

    def reconnected(self) -> None:
        """There is a new connection."""
        self._outlasted = False

    def drop(self) -> None:
        """Nothing will be sent any more."""
        self._forget_claims()
        self._ledger.leaving.clear()
        self.void.clear()

    def _forget_claims(self) -> None:
        for claim in self._ledger.leaving:
            self._ledger.by_number.pop(claim.number, None)

    def fail_pending(
        self, error: Callable[[], SemaphoreError], concerns: Callable[[Claim], bool]
    ) -> None:
        """End, with *error*, the claims of waiting callers that it *concerns*."""
        for claim in self._ledger.pending():
            if concerns(claim):
                self.refuse(claim, error())


class AbandonBatch(Batch):
    """Claims and calls of callers that left."""

    __slots__ = ("_claims", "_queue", "_void")

    def __init__(
        self,
        ledger: Ledger,
        queue: AbandonQueue,
        claims: Sequence[Claim],
        void: Sequence[NumberedCall],
    ) -> None:
        numbers = [*(claim.call for claim in claims), *(call.number for call in void)]
        super().__init__(ledger, Abandon([claim.request for claim in claims], max(numbers)))
        self._queue = queue
        self._claims = claims
        self._void = void

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        self._forget()
        for call in self._void:
            call.ended()
        self._queue.releases.apply(reply, self.sent_at)

    def refused(self, error: SemaphoreError) -> None:
        self._forget()  # what the server has of them ends with its lease

    def _forget(self) -> None:
        for claim in self._claims:
            self.ledger.by_number.pop(claim.number, None)

    def write_again(self, *, arrived: bool) -> None:
        self._queue.write_again(self._claims, self._void)
