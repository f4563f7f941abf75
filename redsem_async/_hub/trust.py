"""Whether a lease may be trusted, from what a refresh says of it to how it comes to be lost.

The rules for counting trust are in `_core.lease`.
"""

import logging
from collections.abc import Iterable

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Lost, Outcome, after_refresh
from redsem_async._observers.registry import observers

from .lease import Lease, LeaseState
from .pending import Confirmed
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")


def gone(state: SemaphoreState, lease: Lease, reason: str, *, expected: bool = False) -> None:
    """The server does not hold *lease* any more, or it cannot be trusted."""
    match lease.state:
        case LeaseState.HELD:
            state.leases.pop(lease.number, None)
            lose(state, lease, reason, expected=expected)
        case LeaseState.GRANTED:  # its caller does not have it yet
            state.give_back_and_retry(state.requests[lease.number])
        case _:
            pass


def lose(state: SemaphoreState, lease: Lease, reason: str, *, expected: bool = False) -> None:
    """The permit of *lease* is lost, so wake its holder, notify observers, and log it.

    *expected* means that this process ended the permit itself, which is not logged. A loss that
    cancels a block is logged as a warning, and so is one that its block cannot be told of.
    """
    if lease.state is not LeaseState.HELD:
        return
    cancels = lease.guard is not None
    lease.lose(reason)
    for notifier in observers.notifiers:
        notifier.permit("lost", lease, reason=reason, cancels=cancels)
    if not expected:
        facts = {"fencing_token": lease.token, "permits": lease.permits, "reason": reason}
        facts |= {"event": "lost", "semaphore": state.name}
        level = logging.WARNING if cancels or lease.is_nobodys else logging.INFO
        text = "a permit of %r was lost: %s"
        logger.log(level, text, state.name, reason, extra=facts)


def lose_unless_trusted(state: SemaphoreState, lease: Lease) -> bool:
    """Whether the permit of *lease* is lost, or ends now because its trust has run out."""
    if lease.state is LeaseState.HELD and clock() >= lease.trusted_until:
        lose(state, lease, doubt(state, lease))
    return lease.state is not LeaseState.HELD


def doubt(state: SemaphoreState, lease: Lease) -> str:
    """Why *lease* is not trusted, while it is not known to be lost. In any thread."""
    blocked = state.identity.stalls.blocked_for(lease)
    return lease.doubt if blocked is None else f"the event loop was blocked for {blocked:.3g} s"


def revoked(state: SemaphoreState, numbers: Iterable[int]) -> None:
    """Another client released or adopted permits of this process."""
    for number in numbers:
        if (lease := state.leases.get(number)) is not None:
            gone(state, lease, "revoked: another process released or adopted it")


def deleted(state: SemaphoreState) -> None:
    """The semaphore was deleted. Holders lose their permits, and waiters start again."""
    state.introduction.sent = False
    state.seen = None
    for lease in state.holding():
        gone(state, lease, "the semaphore was deleted")
    for request in list(state.waiting):
        state.ask_anew(request)


def refreshed(
    state: SemaphoreState, lease: Lease, outcome: Outcome, sent_at: float, now: float
) -> None:
    """A refresh that was sent at *sent_at* has ended by *now*."""
    if not lease.holding:
        return
    if outcome is Outcome.RENEWED and sent_at <= lease.renewable_after:
        outcome = Outcome.UNKNOWN  # a detach may have been carried out after it
    verdict = after_refresh(
        lease.trusted_until, lease.terms.lease, outcome, sent_at=sent_at, now=now
    )
    if isinstance(verdict, Lost):
        known = outcome is Outcome.GONE
        gone(state, lease, verdict.reason if known else doubt(state, lease))
    else:
        lease.renew(verdict)
        if outcome is Outcome.RENEWED:
            for notifier in observers.notifiers:
                notifier.permit("refreshed", lease, expires_in=lease.trusted_until - now)


def release_by_id(state: SemaphoreState, owner: str, number: int, future: Confirmed) -> None:
    """Release a permit that is known by its id alone. *future* gets whether it was held."""
    state.give_back_unknown(owner, number, future)
    lease = state.leases.get(number) if owner == state.identity.id else None
    if lease is not None:
        gone(state, lease, "released by its id", expected=True)
