"""How a task comes by a permit."""

from collections.abc import Callable

from ._claim import Claim, State
from ._clock import now as clock
from ._config import Terms
from ._errors import PermitLost, SemaphoreClosed
from ._keys import parse_permit_id
from ._lane import Lane
from ._lease import patience
from ._permit import Permit
from ._refresher import Refresher
from ._watch import watch

Desk = Callable[[], tuple[Lane, Refresher]]
"""Gives the lane and the refresher of a semaphore in the running loop."""


async def acquire(
    desk: Desk, terms: Terms, timeout: float | None, permits: int, *, cancel_on_loss: bool
) -> Permit:
    """Acquire a permit. Cancelled at any moment, it leaves nothing behind."""
    lane, refresher = desk()
    waits = timeout is None or timeout > 0
    claim = Claim(lane, terms, permits, clock(), waits=waits)
    if lane.hub.closing:
        raise _refused(claim, SemaphoreClosed(lane.address.name))
    if timeout is not None:
        most = timeout if waits else patience(terms.lease)
        loop = lane.hub.loop
        claim.deadline = loop.time() + most
        claim.timer = loop.call_at(claim.deadline, lane.expire, claim)
    lane.submit(claim)
    return await _take(claim, refresher, cancel_on_loss=cancel_on_loss)


async def adopt(desk: Desk, terms: Terms, permit_id: str, *, cancel_on_loss: bool) -> Permit:
    """Take over the permit that *permit_id* names. Cancelled, it gives it back."""
    lane, refresher = desk()
    claim = Claim(lane, terms, 1, clock(), waits=False)
    known = parse_permit_id(permit_id)
    if known is None:
        raise _refused(claim, PermitLost(lane.address.name, permit_id, "that is no permit id"))
    if lane.hub.closing:
        raise _refused(claim, SemaphoreClosed(lane.address.name))
    claim.timer = lane.hub.loop.call_later(2 * patience(terms.lease), lane.expire, claim)
    lane.adopt(claim, *known)
    return await _take(claim, refresher, cancel_on_loss=cancel_on_loss)


async def _take(claim: Claim, refresher: Refresher, *, cancel_on_loss: bool) -> Permit:
    try:
        await claim.future
    except BaseException:
        # The server may have granted it, or may yet: whatever exists is given back.
        claim.lane.depart(claim)
        for teller in watch.tellers:
            teller.abandoned(claim)
        raise
    error = claim.error
    if error is None and claim.state is State.ENDED:
        # Closed, and given back, before its caller could run.
        error = SemaphoreClosed(claim.lane.address.name)
    if error is not None:
        raise _refused(claim, error)
    now = clock()
    refresher.watch(claim, now)
    permit = Permit(claim, now - claim.started, cancel_on_loss=cancel_on_loss)
    for teller in watch.tellers:
        teller.granted(claim, permit.waited)
    return permit


def _refused(claim: Claim, error: Exception) -> Exception:
    """Return *error*, which the caller of *claim* gets."""
    for teller in watch.tellers:
        teller.refused(claim, error)
    return error
