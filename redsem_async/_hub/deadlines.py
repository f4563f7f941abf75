"""What happens to a request when the caller's deadline comes, or when it waits for itself.

AcquireTimeout says that the server replied, lately, that the request has to wait, or that it
granted the request too late for a refresh to confirm that. BackendUnavailable says that it did not
reply. To tell one from the other, the server is asked once before the deadline, with one heartbeat
for all requests whose deadlines are near. If no reply has come by then, one is awaited for GRACE.
"""

import asyncio
import logging

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import AcquireTimeout, BlockedBy, SemaphoreError
from redsem_async._core.lease import ahead_in_turns, refresh_is_overdue, retry_after
from redsem_async._protocol.replies import Ramp, Reply, lowered

from .model import ENTERED, Blocks, LeaseState, QueueReport, Request, RequestState
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")

FRESH = 0.05  # seconds for which a reply is as good as one to a question that is asked now
GRACE = 0.05  # seconds after a deadline, or after a blocked loop, in which a reply is awaited


def look(state: SemaphoreState, now: float) -> None:
    """Time has passed. Look at the deadlines that are near or have come by *now*."""
    near: list[tuple[float, Request]] = []
    while (due := state.deadlines.come(now)) is not None:
        at, request = due
        if at < request.deadline:
            near.append(due)
        elif (error := _verdict(state, request)) is None and at == request.deadline:
            state.deadlines.add(request, at + GRACE)
        else:
            state.refuse(request, error or _no_reply(state, request))
    if near:
        _ask(state, near, clock())  # to look at many may have taken long
    while (late := state.nested.come(now)) is not None:
        _log_nested(state, late[1], now)
    state.time_passed(now)


def _ask(state: SemaphoreState, near: list[tuple[float, Request]], now: float) -> None:
    """Ask whether the requests still wait whose deadlines are *near*, unless that is known."""
    waiting = [each for _, each in near if each.state is RequestState.WAITING]
    for request in waiting:
        request.asked_at = now - FRESH
    for at, request in near:
        # A loop that was blocked notices a deadline late.
        request.deadline = max(request.deadline, now + min(GRACE, request.deadline - at))
        state.deadlines.add(request, request.deadline)
    if doubted := [each for each in waiting if not _surely_waits(state, each)]:
        state.unsure = (*doubted, *state.unsure)
        state.beat()


def _verdict(state: SemaphoreState, request: Request) -> SemaphoreError | None:
    """The error for *request*, by what is known. None while a reply may be on its way."""
    route = state.route
    if route.error is not None:
        return route.unavailable()
    if not request.waits:
        return _no_reply(state, request)
    return timed_out(state, request) if _surely_waits(state, request) else None


def _surely_waits(state: SemaphoreState, request: Request) -> bool:
    """Whether the server said that *request* waits, since it was asked as the deadline was near.

    It did where it said so itself. Where push messages come and nothing is in doubt, any reply
    says so, because a push message for *request* would have come before it. With keys, only a
    reply to *request* says what holds it up.
    """
    since, report = request.asked_at, request.report
    if request.state is not RequestState.WAITING:
        return False
    if report is not None and report.sent_at >= since:
        return True
    route = state.route
    if state.address.keyed:
        return False
    doubtful = state.heartbeats.expected or route.redirect or route.link_state.no_push
    fresh_at = route.link_state.fresh_at
    return not doubtful and fresh_at is not None and fresh_at >= since


def _no_reply(state: SemaphoreState, request: Request) -> SemaphoreError:
    if request.state is RequestState.GRANTED:
        return timed_out(state, request)  # the server replied, and its permit came too late
    return state.route.silent(clock() - request.started)


# -- tasks that wait for themselves


def holders_around(
    state: SemaphoreState, request: Request, around: Blocks, blocked_by: BlockedBy = "limit"
) -> list[int]:
    """The tasks that hold a permit for which *request*, made in the blocks *around*, may wait.

    By their ids.
    """
    return [
        task
        for task, lease in around
        if lease.state is LeaseState.HELD
        and state.leases.get(lease.number) is lease
        and (blocked_by != "key" or lease.key == request.key)
    ]


def note_nested(state: SemaphoreState, request: Request) -> None:
    """*request* of the current task waits forever, if for a permit that the task holds."""
    around = ENTERED.get()
    if "nested" not in state.logged_at and holders_around(state, request, around):
        request.around, request.task = around, id(asyncio.current_task())
        at = request.started + request.terms.lease
        state.nested.add(request, at)


def _log_nested(state: SemaphoreState, request: Request, now: float) -> None:
    """*request* has waited for a lease. Log it if the task seems to wait for itself."""
    blocked_by = blocked_by_of(request)
    holders = holders_around(state, request, request.around, blocked_by)
    if not holders or blocked_by in ("paused", "back_off") or not request.pending:
        return
    state.logged_at["nested"] = now
    state.nested.clear()
    itself = request.task in holders
    holder = "it holds one itself" if itself else "the task that created it holds one"
    text = (
        "a task has waited %.3g s for a permit of %r while %s, and the wait never ends unless"
        " that one is released: release it first, acquire all permits at once (permits=...),"
        " or pass a timeout"
    )
    waited = now - request.started
    extra = {"event": "nested", "semaphore": state.name, "waited": waited}
    logger.warning(text, waited, state.name, holder, extra=extra)


# -- estimates


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
        estimate = max(estimate, report.rated_ms / 1000)
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
