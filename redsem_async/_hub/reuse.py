"""Leases that the next caller of this process uses again, without a command.

Where a semaphore has `linger`, and this process has the right to reuse leases, leaving a block
passes the lease to the oldest request of this process, or keeps it, idle, for the next caller.

Lock caching in Chubby, and delegations with recall in NFSv4, are prior art.
"""

import math

from redsem_async._core.config import Terms
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms

from .lease import Lease, LeaseState
from .request import Request
from .state import SemaphoreState

IN_A_ROW = 16  # uses of idle leases, the last of which lets the event loop run
HOLD_LEFT = 0.9  # of max_hold, which the next user of a lease has at least


def leave(state: SemaphoreState, lease: Lease, now: float) -> bool:
    """Pass *lease* on, or keep it. Returns False where it is to be released."""
    if not (_may_be_reused(state, lease) and is_fresh(state, lease, now)):
        return False
    if (state.waiting or state.new) and (request := _oldest(state)) is not None:
        if not _may_have(state, request, lease):
            return False
        _end_use(state, lease, now)
        _pass(state, lease, request)
        return True
    _end_use(state, lease, now)
    state.idle.append(lease)
    state.look_at = min(state.look_at, lease.idle_until)
    return True


def serve_waiting(state: SemaphoreState, now: float) -> None:
    """Requests of this process were told to wait, so pass what is idle meanwhile."""
    while state.idle and state.waiting:
        lease, oldest = state.idle[-1], next(iter(state.waiting))
        if not (is_fresh(state, lease, now) and _may_have(state, oldest, lease)):
            state.give_all_idle_back()
            return
        state.idle.pop()
        _pass(state, lease, oldest)


def make_room(state: SemaphoreState, terms: Terms) -> None:
    """A request goes to the server. Idle leases go before it, because it may need one."""
    if terms.linger:
        # If the right ends by that, the idle leases are released all the same.
        state.right.want(terms.refresh_interval, terms.limit)
    state.give_all_idle_back()


def take(
    state: SemaphoreState, terms: Terms, permits: int, key: KeyTerms | None, now: float
) -> Lease | None:
    """An idle lease that fits, which is idle no more."""
    if not state.idle or state.acquires_in_flight:
        return None  # a request in flight may stand in the queue by now, and came before
    lease = state.idle[-1]
    if not (lease.fits(terms, permits, key) and is_fresh(state, lease, now)):
        return None
    lease.hand_out()
    state.uses_in_a_row += 1
    return state.idle.pop()


def others_are_due(state: SemaphoreState) -> bool:
    """Whether a task that took a lease lets the loop run first, because a recall is to be read.

    Later tasks then do so too, so that the first to come is the first to continue.
    """
    return state.uses_in_a_row >= IN_A_ROW or state.yielding > 0


def is_fresh(state: SemaphoreState, lease: Lease, now: float) -> bool:
    """Whether the right lasts, no refresh of *lease* is due, and its hold continues."""
    max_hold = lease.terms.max_hold
    return (
        now < state.right.until
        and not lease.refresh_is_due(now)
        and (not max_hold or lease.hold_ends - now >= HOLD_LEFT * max_hold)
    )


def look(state: SemaphoreState, now: float) -> float:
    """Release what was idle for long enough, and return when the next one will have been."""
    for lease in [lease for lease in state.idle if lease.idle_until <= now]:
        state.give_back_idle(lease)
    return min((lease.idle_until for lease in state.idle), default=math.inf)


def _oldest(state: SemaphoreState) -> Request | None:
    """The oldest request that waits, or else the oldest that is not written yet.

    None where requests are in flight. One that is told to wait gets what is idle until then.
    """
    if state.waiting:
        return next(iter(state.waiting))
    return None if state.acquires_in_flight else state.first_new()


def _pass(state: SemaphoreState, lease: Lease, request: Request) -> None:
    """The caller of *request* gets *lease*."""
    # The request is abandoned. If the server grants it meanwhile, the permit is released.
    state.withdraw(request)
    lease.hand_out()
    request.serve(lease)


def _may_have(state: SemaphoreState, request: Request, lease: Lease) -> bool:
    """Whether *lease* is for the oldest request of this process."""
    fits = lease.fits(request.terms, request.permits, request.key)
    return fits and state.oldest_is_first


def _may_be_reused(state: SemaphoreState, lease: Lease) -> bool:
    held = lease.state is LeaseState.HELD and not state.identity.closing
    return held and not lease.is_known and not lease.wakes_on_loss


def _end_use(state: SemaphoreState, lease: Lease, now: float) -> None:
    for notifier in observers.notifiers:
        notifier.released(lease)
    lease.rest(now + lease.terms.linger)
    state.right.used = True
