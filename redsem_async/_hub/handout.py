"""Delivers grants to callers.

A caller that gets a permit may trust it for the lease less a refresh interval. Most grants are
handed out at once. One that may be older is refreshed first. Until that has its reply the request
is GRANTED, and its caller continues to wait.

If replies take longer than a refresh interval, one refresh is still awaited, but the permit may
be trusted for less.
"""

from collections.abc import Sequence

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome, reply_timeout, trusted_until

from .lease import Lease, LeaseState
from .request import Request, RequestState
from .state import SemaphoreState

SOON = 0.05  # seconds, until a lease that a message granted is refreshed


def granted(
    state: SemaphoreState,
    number: int,
    token: int,
    left: float | None,
    sent_at: float,
    slots: Sequence[int] = (),
) -> None:
    """The server granted *number*, with *left* seconds of its lease left.

    *left* is None if it said so in reply to the command that granted it, sent at *sent_at*.
    Otherwise it said so in reply to a command sent then, or later.
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
    now = clock()
    trusted = trusted_until(duration, sent_at=sent_at, left=left)
    lease = accept(state, request, token, slots, trusted, now)
    # A refresh finds out a forged grant, and tells how much of ``max_hold`` is left. It is sent
    # soon, unless the permit is released by then, as most are.
    if lease.refresh_is_due(now):
        state.refresh(lease).request = request
    else:
        state.refresh_within(lease, now, SOON)
        serve(state, request, lease)


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
    """Give the caller its permit, once it is refreshed if it is due."""
    now = clock()
    if not lease.trusted_at(now):
        state.give_back_and_retry(request)  # the loop stood still for a lease
    elif lease.refresh_is_due(now):
        state.refresh(lease).request = request
    else:
        serve(state, request, lease)


def refreshed(
    state: SemaphoreState, request: Request, outcome: Outcome, sent_at: float, now: float
) -> None:
    """The refresh that was awaited before the caller of *request* gets its permit has ended."""
    lease = request.lease
    if request.state is not RequestState.GRANTED or lease is None:
        return
    # A connection without a reply is dropped, so the loop was blocked if this one is so late.
    late = now - sent_at > reply_timeout(request.terms.lease)
    if outcome is Outcome.RENEWED and late:
        hand_out(state, request, lease)
        return
    if lease.trusted_at(clock()):
        serve(state, request, lease)
    else:
        state.give_back_and_retry(request)  # the loop stood still for a lease
