"""When a request may be served, and what holds it up, by the last reply about the queue."""

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import AcquireTimeout, BlockedBy
from redsem_async._core.lease import ahead_in_turns, refresh_is_overdue, retry_after
from redsem_async._protocol.replies import Ramp, Reply, lowered

from .model import QueueReport, Request, RequestState
from .state import SemaphoreState


def usual_hold(state: SemaphoreState) -> float | None:
    """The usual hold as this process measured it, or else the others. None where none has."""
    return state.others_hold if state.own_hold is None else state.own_hold


def retry_after_of(state: SemaphoreState, request: Request) -> float:
    """In how many seconds asking again may be worth it, by the last reply about the queue."""
    sent_at, report = request.report or QueueReport(0.0, Reply())
    moment = None if report.next_ms is None else report.next_ms / 1000
    terms, key, hold = request.terms, request.key, usual_hold(state)
    limit = terms.limit if report.set_limit is None else report.set_limit
    if terms.slots is not None:
        limit = min(limit, len(terms.slots))
    limit = lowered(limit, report.ramp)
    waits = request.state is RequestState.WAITING
    ahead: float = max(report.waiting - waits, 0)
    ahead_of_key, own = 0, limit
    if key is not None and (queue := report.key_queues.get(key.key)) is not None:
        ahead_of_key = max(queue.waiting - waits, 0)
        declared = limit if key.limit is None else key.limit
        own = min(limit, declared if queue.set_limit is None else queue.set_limit)
        own = lowered(own, queue.ramp)
        if not report.competing_keys:
            ahead = 0  # the limits of their keys hold all of them up
        elif hold and "+share" in state.address.mode:
            # After its patience a request goes by its age.
            impatient = ahead + key.patience_ms / 1000 * limit / hold
            # Keys at their limit take part in each round, too.
            keys = report.competing_keys + (limit // own if 0 < own < limit else 0)
            ahead = min(ahead_in_turns(ahead_of_key, keys, limit), impatient)
    estimate = max(
        retry_after(ahead, limit, hold, moment, terms.lease),
        retry_after(ahead_of_key, own, hold, moment, terms.lease),
    )
    if report.rated_ms is not None:
        by_limit = 0.0 if hold is None else estimate  # and not by a guess
        estimate = max(by_limit, report.rated_ms / 1000)
    pauses = [ramp.lasts_ms / 1000 for ramp in _ramps_of(request) if ramp and not ramp.permits]
    if not pauses:
        return max(estimate, _stalled_for(state, terms, sent_at, moment))
    is_guess = hold is None and moment in pauses
    return max(0.0, sent_at + max(pauses) - clock()) + (0.0 if is_guess else estimate)


def _stalled_for(
    state: SemaphoreState, terms: Terms, sent_at: float, next_expiry: float | None
) -> float:
    """For how many seconds nothing is released, because who holds has stopped to refresh.

    0 if this process holds a permit, or has released one since the last refresh.
    """
    if next_expiry is None or state.leases:
        return 0.0
    if not refresh_is_overdue(next_expiry, terms.lease, terms.refresh_interval):
        return 0.0
    expires_at = sent_at + next_expiry
    return expires_at - clock() if state.released_at < expires_at - terms.lease else 0.0


def _ramps_of(request: Request) -> tuple[Ramp | None, Ramp | None]:
    """The back-off of all requests and that of *request*'s key, by the last reply about it."""
    if request.report is None:
        return None, None
    report, key = request.report.reply, request.key
    queue = report.key_queues.get(key.key) if key else None
    return report.ramp, queue and queue.ramp


def _backs_off(request: Request) -> bool:
    """Whether the limit in force of a back-off is what holds *request* up.

    A pause is, and a lower limit if the request waits for that limit.
    """
    if request.report is None:
        return False
    report, key, waits_for_key = request.report.reply, request.key, request.waits_for_key
    of_all, of_key = _ramps_of(request)
    limit = request.terms.limit if report.set_limit is None else report.set_limit
    if of_all is not None and of_all.permits < limit and not (of_all.permits and waits_for_key):
        return True
    if key is None or of_key is None or (of_key.permits and not waits_for_key):
        return False
    own, declared = report.key_queues[key.key].set_limit, limit if key.limit is None else key.limit
    return of_key.permits < (declared if own is None else own)


def timed_out(state: SemaphoreState, request: Request) -> AcquireTimeout:
    """The error for a deadline that came although the server replied."""
    waited = clock() - request.started if request.waits or request.lease else 0.0
    retry_after = retry_after_of(state, request)
    return AcquireTimeout(state.name, waited, retry_after, blocked_by_of(request))


def blocked_by_of(request: Request) -> BlockedBy:
    """What holds *request* up, by the last reply about it."""
    if request.report is not None and request.report.reply.set_limit == 0:
        return "paused"
    if _backs_off(request):
        return "back_off"
    if request.waits_for_key:
        return "key"
    return "limit" if request.report is None or request.report.reply.rated_ms is None else "rate"
