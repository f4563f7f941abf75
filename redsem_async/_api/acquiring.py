"""Acquiring and adopting permits."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from types import EllipsisType

from redsem_async._core import config
from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import AcquireTimeout, PermitLost, SemaphoreClosed
from redsem_async._core.keys import parse_permit_id
from redsem_async._core.lease import reply_timeout
from redsem_async._hub.estimates import holders_around
from redsem_async._hub.lease import ENTERED, LeaseState
from redsem_async._hub.request import Request
from redsem_async._hub.state import SemaphoreState
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms

from .permit import Bound, Permit
from .remarks import line_outside, log_nested


def key_terms(terms: Terms, key: str | EllipsisType, permits: int) -> KeyTerms | None:
    """What a client declares for *key*. None if none is given, and there are no keys."""
    if key is ...:
        if terms.keyed:
            raise TypeError(
                "a semaphore with key_limit= or share=True needs acquire(key=...);"
                " key=None is for requests that have none"
            )
        return None
    key, limit, weight = terms.checked_key(key), terms.key_limit, terms.weight
    if callable(limit):
        limit = config.limit_or_none(limit(key), f"key_limit({key!r})")
    if limit and permits > limit:
        raise ValueError(f"permits must be at most the key_limit of {limit}, not {permits}")
    weight = config.weight_of(weight(key)) if callable(weight) else weight
    return KeyTerms(key, limit, weight, terms.patience_ms)


async def acquire(
    bind: Callable[[], Bound],
    terms: Terms,
    timeout: float | None,
    permits: int,
    ahead: float,
    key: KeyTerms | None,
    cancel_on_loss: bool,  # noqa: FBT001 - keywords cost time
    adopted: str | None = None,
) -> Permit:
    """Acquire a permit, or take over the one with the id *adopted*.

    Cancelled at any moment, it leaves nothing behind.
    """
    bound = bind()
    remote, refresher, loop = bound
    address, state = remote.address, remote.state
    future, started = loop.create_future(), clock()
    waits = adopted is None and (timeout is None or timeout > 0)
    deadline = math.inf
    if adopted is not None:
        deadline = started + 2 * reply_timeout(terms.lease)
    elif timeout is not None:
        deadline = started + (timeout if waits else reply_timeout(terms.lease))
    request = Request(address, terms, permits, started, waits, future, deadline, ahead, key)
    known = None if adopted is None else parse_permit_id(adopted)
    if adopted is not None and known is None:
        raise _refused(request, PermitLost(address.name, adopted, "not a permit id"))
    if remote.identity.closing:
        raise _refused(request, SemaphoreClosed(address.name))
    if known is None:
        remote.ask(request)
    else:
        remote.adopt(request, *known)
    remark = None
    if deadline == math.inf and ENTERED.get() and holders_around(state, request):
        task = id(asyncio.current_task())
        remark = loop.call_later(terms.lease, log_nested, remote, request, task)
    try:
        await future
    except BaseException:
        # The server may have granted it, or may yet: whatever exists is released.
        remote.leave(request)
        for notifier in observers.notifiers:
            notifier.ended("abandoned", request, clock() - started)
        raise
    finally:
        if remark is not None:
            remark.cancel()
    lease = request.lease
    if request.error is not None or lease is None or lease.state is LeaseState.ENDED:
        # Without an error it was released by a close before its caller could run.
        error = request.error or SemaphoreClosed(address.name)
        if isinstance(error, AcquireTimeout) and _is_nested(state, request, error):
            error = replace(error, nested=True)
        raise _refused(request, error)
    now = clock()
    refresher.add(lease, remote, now)
    acquired_at = line_outside() if loop.get_debug() else None
    permit = Permit(bound, lease, now, now - started, cancel_on_loss, acquired_at)
    for notifier in observers.notifiers:
        facts = {"fencing_token": lease.token, "permit_id": lease.id}
        notifier.granted(lease, request, permit.waited, **facts)
        if lease.state is LeaseState.LOST:  # before its caller came to know that it was granted
            notifier.permit("lost", lease, reason=lease.lost_reason, cancels=False)
    return permit


def _is_nested(state: SemaphoreState, request: Request, error: AcquireTimeout) -> bool:
    """Whether the task itself holds a permit that its request may have waited for."""
    return id(asyncio.current_task()) in holders_around(state, request, error.blocked_by)


def _refused(request: Request, error: Exception) -> Exception:
    """Return *error*, which the caller of *request* gets."""
    for notifier in observers.notifiers:
        notifier.refused(request, clock() - request.started, error)
    return error
