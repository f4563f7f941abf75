"""Release ends permits."""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError
from redsem_async._hub.estimates import hold_to_tell
from redsem_async._hub.pending import PendingRelease
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Release, Request
from redsem_async._protocol.replies import AnyReply, Reply

from . import effects
from .base import Batch

logger = logging.getLogger("redsem_async")


class ReleaseBatch(Batch[PendingRelease]):
    """Releases of one hub's ids."""

    __slots__ = ()

    @classmethod
    def take(cls, state: SemaphoreState, now: float) -> "ReleaseBatch":
        """The next batch. There is one."""
        owner, pending = next(iter(state.releases.items()))
        most = state.max_batch
        if len(pending) > most:
            state.releases[owner] = pending[most:]
            pending = pending[:most]
        else:
            del state.releases[owner]
        numbers = [each.number for each in pending]
        waiting = state.waiting
        own: Sequence[Request] = ()
        if waiting and not state.address.fair:
            own = [request.queued for request in islice(waiting, len(numbers))]
        waits = bool(waiting or state.acquires_in_flight)
        operation = Release(owner, numbers, hold_to_tell(state, now), waits, own)
        return cls(state, operation, pending)

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        for pending, held in zip(self.items, reply.answers, strict=True):
            # If it is sent twice, the second finds nothing although the first did.
            pending.settle(bool(held) or (pending.was_sent and pending.trusted))
        effects.apply(self.state, reply, self.sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        fail(self.state, self.items, error)

    def write_again(self, *, arrived: bool) -> None:
        assert isinstance(self.operation, Release)
        for pending in self.items:
            pending.was_sent |= arrived
        owner, releases = self.operation.owner, self.state.releases
        releases[owner] = [*self.items, *releases.get(owner, ())]
        self.state.stirred = True


def fail_old(state: SemaphoreState, age: float, error: Callable[[], SemaphoreError]) -> None:
    """End the wait for releases older than *age*, and drop those whose lease has ended.

    The others are sent all the same.
    """
    now, releases = clock(), state.releases
    for owner, pending in list(releases.items()):
        expired = [each for each in pending if now >= each.lease_ends]
        if expired:
            releases[owner] = [each for each in pending if now < each.lease_ends]
            fail(state, expired, error())
        if not releases[owner]:
            del releases[owner]
        for each in pending:
            if each.answer is None and each.future and now - each.asked_at > age:
                each.settle(error())


def fail_all(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """Drop everything, because nothing will be sent any more."""
    for pending in state.releases.values():
        fail(state, pending, error())
    state.releases.clear()


def fail(state: SemaphoreState, releases: Iterable[PendingRelease], error: SemaphoreError) -> None:
    """End *releases* with *error*, which is logged where no caller gets it."""
    unawaited = 0
    for pending in releases:
        unawaited += pending.future is None
        pending.settle(error)
    if unawaited:
        facts = {"event": "not released", "semaphore": state.name, "permits": unawaited}
        text = "%d permit(s) of %r could not be released, and expire with their leases: %s"
        logger.warning(text, unawaited, state.name, error, extra=facts)
