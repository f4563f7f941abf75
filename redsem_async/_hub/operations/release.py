"""Release: permits are given back."""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._hub.claim import Claim
from redsem_async._hub.ledger import Ledger
from redsem_async._protocol.operations import Release, Request
from redsem_async._protocol.replies import AnyReply, Reply

from .base import Batch, max_batch
from .refresh import RefreshQueue

logger = logging.getLogger("redsem_async")

# Gets whether the permit was held until its release, or why that is not known.
Confirmed = asyncio.Future[bool | SemaphoreError]


class PendingRelease:
    """A permit on its way back, and the caller that waits for the reply, if one does.

    The future may be cancelled with the task that awaits it; that task sets another one where
    there is no answer yet.

    Attributes:
        lease_ends: when the permit has surely expired, so that it need not be released.
        trusted: whether the permit was trusted at the time of the release.
        was_sent: sent before, without a reply.
    """

    __slots__ = (
        "answer",
        "asked_at",
        "future",
        "lease_ends",
        "number",
        "permits",
        "trusted",
        "was_sent",
    )

    def __init__(
        self,
        number: int,
        permits: int,
        future: Confirmed | None,
        asked_at: float,
        lease: float,
        *,
        trusted: bool,
    ) -> None:
        self.number: int = number
        self.permits: int = permits
        self.future: Confirmed | None = future
        self.answer: bool | SemaphoreError | None = None
        self.asked_at: float = asked_at
        # Every refresh was sent before the release.
        self.lease_ends: float = asked_at + lease
        self.trusted: bool = trusted
        self.was_sent: bool = False

    def settle(self, answer: bool | SemaphoreError) -> None:  # noqa: FBT001 - the answer it is
        """Pass on whether the permit was held until then, or why that is not known."""
        self.answer = answer
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class ReleaseQueue:
    """The releases to be written: `by_owner`, which is the hub that drew the ids."""

    def __init__(
        self,
        ledger: Ledger,
        refreshes: RefreshQueue,
        apply: Callable[[Reply, float], None],
    ) -> None:
        self._ledger = ledger
        self._refreshes = refreshes
        self.apply: Callable[[Reply, float], None] = apply
        self.by_owner: defaultdict[str, list[PendingRelease]] = defaultdict(list)

    def give_back(
        self,
        claim: Claim,
        now: float,
        *,
        trusted: bool,
        future: Confirmed | None = None,
    ) -> PendingRelease:
        """Release the permit of *claim*. A caller that waits for the reply passes a *future*."""
        self._ledger.by_number.pop(claim.number, None)
        if self._refreshes.by_number:
            self._refreshes.forget(claim)
        lease = math.inf if claim.may_outlast_its_lease else claim.terms.lease
        pending = PendingRelease(claim.number, claim.permits, future, now, lease, trusted=trusted)
        releases = self.by_owner[claim.hub_id]
        releases.append(pending)
        self._ledger.wake(asked=future is not None, size=len(releases))
        return pending

    def give_back_unknown(self, owner: str, number: int, future: Confirmed | None = None) -> None:
        """Release a permit that is known by its id alone."""
        pending = PendingRelease(number, 1, future, clock(), math.inf, trusted=False)
        self.by_owner[owner].append(pending)
        self._ledger.wake()

    def write_again(self, owner: str, pending: Sequence[PendingRelease]) -> None:
        """Write releases again, before others."""
        self.by_owner[owner] = [*pending, *self.by_owner.get(owner, ())]
        self._ledger.wake()

    def take(self) -> Batch:
        """The next batch; there is one."""
        owner, pending = next(iter(self.by_owner.items()))
        most = max_batch(self._ledger)
        if len(pending) > most:
            self.by_owner[owner] = pending[most:]
            pending = pending[:most]
        else:
            del self.by_owner[owner]
        return ReleaseBatch(self._ledger, self, owner, pending)

    def fail_old(self, age: float, error: Callable[[], SemaphoreError]) -> None:
        """End the wait for releases older than *age*, and drop those whose lease has ended.

        The others are sent all the same.
        """
        now = clock()
        for owner, pending in list(self.by_owner.items()):
            expired = [each for each in pending if now >= each.lease_ends]
            if expired:
                self.by_owner[owner] = [each for each in pending if now < each.lease_ends]
                self.fail(expired, error())
            if not self.by_owner[owner]:
                del self.by_owner[owner]
            for each in pending:
                if each.answer is None and each.future and now - each.asked_at > age:
                    each.settle(error())

    def fail_all(self, error: Callable[[], SemaphoreError]) -> None:
        """Drop everything: nothing will be sent any more."""
        for pending in self.by_owner.values():
            self.fail(pending, error())
        self.by_owner.clear()

    def fail(self, releases: Iterable[PendingRelease], error: SemaphoreError) -> None:
        """End *releases* with *error*: it is logged where no caller gets it."""
        unawaited = 0
        for pending in releases:
            unawaited += pending.future is None
            pending.settle(error)
        if unawaited:
            name = self._ledger.name
            facts = {"event": "not released", "semaphore": name, "permits": unawaited}
            text = "%d permit(s) of %r could not be released, and expire with their leases: %s"
            logger.warning(text, unawaited, name, error, extra=facts)


class ReleaseBatch(Batch):
    """Releases of one hub's ids."""

    __slots__ = ("_owner", "_pending", "_queue")

    def __init__(
        self,
        ledger: Ledger,
        queue: ReleaseQueue,
        owner: str,
        pending: Sequence[PendingRelease],
    ) -> None:
        numbers = [each.number for each in pending]
        waits = bool(ledger.waiting or ledger.acquires_in_flight)
        own: Sequence[Request] = ()
        if ledger.waiting and not ledger.semaphore.address.fair:
            own = [claim.request for claim in islice(ledger.waiting, len(numbers))]
        super().__init__(ledger, Release(owner, numbers, ledger.hold_to_tell(), waits, own))
        self._queue = queue
        self._owner = owner
        self._pending = pending

    @property
    def lone(self) -> bool:
        return len(self._pending) == 1

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        for pending, held in zip(self._pending, reply.answers, strict=True):
            # Sent twice, the second finds nothing although the first did.
            pending.settle(bool(held) or (pending.was_sent and pending.trusted))
        self._queue.apply(reply, self.sent_at)

    def refused(self, error: SemaphoreError) -> None:
        self._queue.fail(self._pending, error)

    def write_again(self, *, arrived: bool) -> None:
        for pending in self._pending:
            pending.was_sent |= arrived
        self._queue.write_again(self._owner, self._pending)
