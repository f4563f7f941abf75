"""Delivers grants to callers.

Most grants are handed out at once. One that came late is refreshed first. Until that has its reply
the request is GRANTED, and its caller continues to wait.
"""

from collections.abc import Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import trusted_until

from .lease import Lease, LeaseState
from .request import Request, RequestState
from .state import SemaphoreState

SOON = 0.05  # seconds. A lease is refreshed first if it has less than four times that left


def granted(
    state: SemaphoreState,
    number: int,
    token: int,
    left: float | None,
    sent_at: float,
    slots: Sequence[int] = (),
) -> None:
    """The server granted *number*, with *left* seconds of its lease left (None if it is whole).

    It said so in reply to a command sent at *sent_at*, or later.
    """
    request = state.requests.get(number)
    if request is None:
        if number not in state.leases and state.identity.drew(number):
            # No caller waits with that number any more.
            state.give_back_unknown(state.identity.id, number)
        return
    if not request.unserved:
        return  # known already, or its caller left and an abandon is on its way
    duration = request.terms.lease
    if left is None:
        trusted = trusted_until(duration, sent_at=sent_at, left=duration)
        hand_out(state, request, accept(state, request, token, slots, trusted, sent_at))
        return
    # The first refresh tells how much of ``max_hold`` is left.
    now = clock()
    trusted = trusted_until(duration, sent_at=sent_at, left=left)
    lease = accept(state, request, token, slots, trusted, now)
    # The message came late, or the lease is short, so it is refreshed. Where much of the lease is
    # gone, or where that is unknown, the caller gets the permit once the refresh has its reply.
    # Otherwise it is sent soon, unless the permit is released by then, as most are.
    if lease.trusted_until - now >= max(left / 2, 4 * SOON):
        state.refresh_within(lease, now, SOON)
        serve(state, request, lease)
    else:
        state.refresh(lease).request = request


def accept(  # positional, because keywords cost time
    state: SemaphoreState,
    request: Request,
    token: int,
    slots: Sequence[int],
    trusted: float,
    since: float,
) -> Lease:
    """The server holds a lease for *request*. Its caller does not have it yet."""
    lease = Lease(request, token, slots, trusted, since, LeaseState.GRANTED)
    state.leases[request.number] = lease
    state.stop_waiting(request)
    request.granted(lease)
    return lease


def serve_at_once(  # positional, because keywords cost time
    state: SemaphoreState,
    request: Request,
    token: int,
    slots: Sequence[int],
    trusted: float,
    since: float,
) -> None:
    """`accept` and `serve` in one step, for a request that was not told to wait."""
    number = request.number
    state.leases[number] = lease = Lease(request, token, slots, trusted, since)
    del state.requests[number]
    request.serve(lease)


def serve(state: SemaphoreState, request: Request, lease: Lease) -> None:
    """The caller of *request* gets *lease*."""
    state.requests.pop(request.number, None)
    state.overdue.pop(request, None)
    lease.hand_out()
    request.serve(lease)


def hand_out(state: SemaphoreState, request: Request, lease: Lease) -> None:
    """Give the caller its permit."""
    if lease.trusted_at(clock()):
        serve(state, request, lease)
    else:
        state.give_back_and_retry(request)  # the loop stood still for a lease


def refreshed(state: SemaphoreState, request: Request) -> None:
    """The refresh that was awaited before the caller of *request* gets its permit has ended."""
    if request.state is RequestState.GRANTED and request.lease is not None:
        hand_out(state, request, request.lease)
