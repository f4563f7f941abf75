"""How long permits are usually held, and when a request that was refused may be served."""

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, BlockedBy
from redsem_async._core.lease import ahead_in_turns, retry_after
from redsem_async._protocol.replies import Ramp, Reply

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
    waits = request.state is RequestState.WAITING
    ahead: float = max(report.waiting - waits, 0)
    ahead_of_key, own = 0, limit
    if key is not None and (queue := report.key_queues.get(key.key)) is not None:
        ahead_of_key = max(queue.waiting - waits, 0)
        declared = limit if key.limit is None else key.limit
        own = min(limit, declared if queue.set_limit is None else queue.set_limit)
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
    if (ramp := _ramp_of(request)) is None:
        return estimate
    pause_left = sent_at + ramp.lasts_ms / 1000 - clock()
    is_guess = hold is None and moment == ramp.lasts_ms / 1000
    return max(0.0, pause_left) + (0.0 if is_guess else estimate)


def _ramp_of(request: Request) -> Ramp | None:
    """The ramp of the back-off that held *request* up, by the last reply."""
    if request.report is None:
        return None
    report, key = request.report.reply, request.key
    limit = request.terms.limit if report.set_limit is None else report.set_limit
    if report.ramp is not None and report.ramp.permits < limit:
        return report.ramp
    queue = report.key_queues.get(key.key) if key else None
    if key is None or queue is None or (ramp := queue.ramp) is None:
        return None
    own = key.limit if queue.set_limit is None else queue.set_limit
    holds_up = ramp.permits < (limit if own is None else own)
    return ramp if holds_up and (request.waits_for_key or not ramp.permits) else None


def timed_out(state: SemaphoreState, request: Request) -> AcquireTimeout:
    """The error for a deadline that came although the server replied."""
    waited, retry_after = clock() - request.started, retry_after_of(state, request)
    return AcquireTimeout(state.name, waited, retry_after, blocked_by_of(request))


def blocked_by_of(request: Request) -> BlockedBy:
    """What holds *request* up, by the last reply about it."""
    if request.report is not None and request.report.reply.set_limit == 0:
        return "paused"
    if _ramp_of(request) is not None:
        return "back_off"
    return "key" if request.waits_for_key else "limit"
