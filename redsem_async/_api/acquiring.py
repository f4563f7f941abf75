"""Acquiring and adopting permits."""

from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import AcquireTimeout, PermitLost, SemaphoreClosed
from redsem_async._core.keys import parse_permit_id
from redsem_async._core.lease import reply_timeout
from redsem_async._hub.claim import Claim, State
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms

from .bound import Bound
from .permit import Permit


async def acquire(
    bind: Callable[[], Bound],
    terms: Terms,
    timeout: float | None,
    permits: int,
    ahead: float,
    key: KeyTerms | None,
    *,
    cancel_on_loss: bool,
) -> Permit:
    """Acquire a permit. Cancelled at any moment, it leaves nothing behind."""
    bound = bind()
    remote, _, loop = bound
    if terms.linger:
        now = started = clock()
        lease = remote.reuse.take(terms, permits, key, now)
        if lease is not None and remote.reuse.others_are_due:
            lease, now = await remote.reuse.let_others_run(lease), clock()
        if lease is not None:
            lease.reuse(started)
            return _use(bound, lease, lease, now, cancel_on_loss=cancel_on_loss)
    waits = timeout is None or timeout > 0
    future = loop.create_future()
    claim = Claim(remote.address, terms, permits, clock(), waits, future, ahead, key)
    if remote.identity.closing:
        raise _refused(claim, SemaphoreClosed(claim.address.name))
    if timeout is not None:
        claim.deadline = loop.time() + (timeout if waits else reply_timeout(terms.lease))
        claim.timer = loop.call_at(claim.deadline, remote.deadlines.expire, claim)
    remote.submit(claim)
    permit = await _take(bound, claim, cancel_on_loss=cancel_on_loss)
    if permit is None:
        left = max(0.0, claim.deadline - loop.time()) if timeout else timeout
        asked = (left, permits, ahead, key)
        return await acquire(bind, terms, *asked, cancel_on_loss=cancel_on_loss)
    return permit


async def adopt(
    bind: Callable[[], Bound], terms: Terms, permit_id: str, *, cancel_on_loss: bool
) -> Permit:
    """Take over the permit that *permit_id* names. Cancelled, it gives it back."""
    bound = bind()
    remote, _, loop = bound
    claim = Claim(remote.address, terms, 1, clock(), False, loop.create_future())  # noqa: FBT003
    known = parse_permit_id(permit_id)
    if known is None:
        raise _refused(claim, PermitLost(claim.address.name, permit_id, "that is no permit id"))
    if remote.identity.closing:
        raise _refused(claim, SemaphoreClosed(claim.address.name))
    timeout = 2 * reply_timeout(terms.lease)
    claim.timer = loop.call_later(timeout, remote.deadlines.expire, claim)
    claim.is_known = True
    remote.adopt(claim, *known)
    permit = await _take(bound, claim, cancel_on_loss=cancel_on_loss)
    assert permit is not None, "leases are passed to callers that wait"
    return permit


async def _take(bound: Bound, claim: Claim, *, cancel_on_loss: bool) -> Permit | None:
    """The permit of the caller. None where it was passed a lease that is gone: it asks again."""
    remote, refresher, _ = bound
    try:
        await claim.future
    except BaseException:
        # The server may have granted it, or may yet: whatever exists is given back.
        remote.abandons.leave(claim)
        if claim.passed is not None:
            remote.reuse.give_back(claim.passed)
        for notifier in observers.notifiers:
            notifier.abandoned(claim)
        raise
    if (lease := claim.passed) is not None:
        if remote.identity.closing:
            remote.reuse.give_back(lease)
            raise _refused(claim, SemaphoreClosed(claim.address.name))
        if clock() >= lease.trusted_until:
            remote.reuse.give_back(lease)  # the loop was blocked since it was passed
        if lease.state is not State.KEPT:
            return None
        lease.reuse(claim.started)
        return _use(bound, lease, claim, clock(), cancel_on_loss=cancel_on_loss)
    error = claim.error
    if error is None and claim.state is State.ENDED:
        # Closed, and given back, before its caller could run.
        error = SemaphoreClosed(claim.address.name)
    if error is not None:
        if isinstance(error, AcquireTimeout) and remote.ledger.waits_for_itself(claim, error):
            error = error.of_a_holder()
        raise _refused(claim, error)
    now = clock()
    refresher.add(claim, remote, now)
    permit = Permit(bound, claim, now - claim.started, cancel_on_loss=cancel_on_loss)
    for notifier in observers.notifiers:
        notifier.granted(claim, permit.waited)
        if claim.state is State.LOST:  # before its caller came to know that it was granted
            notifier.lost(claim, claim.lost_reason or "", cancels=False)
    return permit


def _use(bound: Bound, lease: Claim, claim: Claim, now: float, *, cancel_on_loss: bool) -> Permit:
    """A permit for the caller of *claim*, with a lease that was used before."""
    remote, refresher, _ = bound
    refresher.resume(lease, remote, now)
    permit = Permit(bound, lease, now - claim.started, cancel_on_loss=cancel_on_loss)
    for notifier in observers.notifiers:
        notifier.granted(lease, permit.waited, claim)
    return permit


def _refused(claim: Claim, error: Exception) -> Exception:
    """Return *error*, which the caller of *claim* gets."""
    for notifier in observers.notifiers:
        notifier.refused(claim, error)
    return error
