"""How long permits are usually held, and when a request that was refused may be served."""

import math

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, BlockedBy
from redsem_async._core.lease import ahead_in_turns, retry_after
from redsem_async._protocol.replies import Ramp, Reply

from .lease import ENTERED, LeaseState
from .request import QueueReport, Request, RequestState
from .state import SemaphoreState

AVERAGED = 8  # over about so many, the usual hold is averaged
TELL_HOLD = 5.0  # seconds, at least, between two releases that report it to the other processes


def queue_report_of(state: SemaphoreState, sent_at: float, reply: Reply) -> QueueReport:
    """What *reply*, to a command sent at *sent_at*, says about the queue."""
    if reply.hold_ms is not None:
        state.others_hold = reply.hold_ms / 1000
    return QueueReport.of(sent_at, reply)


def note_hold(state: SemaphoreState, held: float) -> None:
    """A permit is released after a hold of *held* seconds times permits."""
    usual = state.own_hold
    state.own_hold = held if usual is None else usual + (held - usual) / AVERAGED


def hold_to_tell(state: SemaphoreState, now: float) -> int | None:
    """The usual hold in ms, for a release written now. None where the others know it."""
    if state.own_hold is None or now < state.hold_told_at + TELL_HOLD:
        return None
    state.hold_told_at = now
    return math.ceil(1000 * max(state.own_hold, 0.0))


def usual_hold(state: SemaphoreState) -> float | None:
    """The usual hold as this process measured it, or else the others. None where none has."""
    return state.others_hold if state.own_hold is None else state.own_hold


def retry_after_of(state: SemaphoreState, request: Request) -> float:
    """In how many seconds asking again may be worth it, by the last reply about the queue."""
    report = request.report or QueueReport(0.0, None, 0)
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
    pause_left = report.sent_at + ramp.lasts_ms / 1000 - clock()
    is_guess = hold is None and moment == ramp.lasts_ms / 1000
    return max(0.0, pause_left) + (0.0 if is_guess else estimate)


def _ramp_of(request: Request) -> Ramp | None:
    """The ramp of the back-off that held *request* up, by the last reply."""
    report, key = request.report, request.key
    if report is None:
        return None
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
    if request.report is not None and request.report.set_limit == 0:
        return "paused"
    if _ramp_of(request) is not None:
        return "back_off"
    return "key" if request.waits_for_key else "limit"


def holders_around(
    state: SemaphoreState, request: Request, blocked_by: BlockedBy = "limit"
) -> list[int]:
    """The tasks that hold a permit in whose block the current task is, or was created.

    By their ids. *request* of the current task may wait for such a permit forever.
    """
    return [
        task
        for task, lease in ENTERED.get()
        if lease.state is LeaseState.HELD
        and state.leases.get(lease.number) is lease
        and (blocked_by != "key" or lease.key == request.key)
    ]
