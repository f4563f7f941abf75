"""What happens to a request when the caller's deadline comes, or when it waits for itself.

AcquireTimeout says that the server replied, recently enough, that the request has to wait, or that
it granted the request too late for a refresh to confirm that.
BackendUnavailable says that it did not reply. To tell one from the other, the server is asked
when the deadline comes, with one heartbeat for all requests, and the reply has OVERTIME to come.
Far from the server it is asked one round trip earlier.
"""

import asyncio
import logging
import math
from collections.abc import Iterable
from heapq import heappop, heappush

from redsem_async._core.clock import now as clock
from redsem_async._core.config import Terms
from redsem_async._core.errors import AcquireTimeout, BlockedBy, SemaphoreError
from redsem_async._core.lease import ahead_in_turns, refresh_is_overdue, retry_after
from redsem_async._core.log import facts
from redsem_async._protocol.replies import Ramp, Reply, lowered

from .model import ENTERED, Blocks, LeaseState, QueueReport, Request, RequestState
from .route import FRESH, OVERTIME
from .state import SemaphoreState

logger = logging.getLogger("redsem_async")


def look(state: SemaphoreState, now: float) -> None:
    """Time has passed. Look at the deadlines that have come by *now*."""
    awaited: list[tuple[Request, float]] = []
    while (request := state.deadlines.come(now)) is not None:
        lead = max(0.0, request.deadline - request.look_at)
        if _come(state, request, now, lead):
            awaited.append((request, lead))
    if awaited:
        moment = clock() + OVERTIME  # to look at many may have taken long
        for request, lead in awaited:
            state.deadlines.look_again(request, moment + lead)
    nested = state.nested
    while nested and now >= nested[0][0]:
        _log_nested(state, heappop(nested)[2], now)
    state.time_passed(now)


def _come(state: SemaphoreState, request: Request, now: float, lead: float) -> bool:
    """Called up to three times, *lead* before the deadline, at it, and OVERTIME after it.

    The reply to a heartbeat decides in between. Returns whether it is awaited.
    """
    waits = request.state is RequestState.WAITING
    if request.replies_since is None:
        # For a request that has no reply yet, any reply decides.
        young = now - max(0.0, FRESH - lead)
        request.replies_since = max(young, request.started) if waits else -math.inf
        # A loop that was blocked notices a deadline late, and has OVERTIME from then on.
        request.deadline = max(request.deadline, now + lead)
    error = None if lead else _verdict(state, request)
    if error is not None or request in state.overdue:
        state.refuse(request, error or _no_reply(state, request))
        return False
    state.overdue[request] = None
    if waits:
        _ask(state)
    return True


def ask_early(state: SemaphoreState, requests: Iterable[Request], now: float) -> None:
    """*requests* wait. If the server is far away, have it asked before their deadlines come."""
    lead = state.route.link_state.lead
    if not lead:
        return
    for request in requests:
        if request.deadline == math.inf or request.replies_since is not None:
            continue
        if request.deadline - lead > now:
            state.deadlines.look_again(request, request.deadline - lead)
        else:
            request.replies_since = -math.inf  # no reply could be younger when it comes


def settle(state: SemaphoreState, now: float) -> None:
    """A reply came. End the requests whose deadline has come, unless they are served."""
    overdue = state.overdue
    for request in list(overdue):
        if request.state is RequestState.WAITING and (error := _verdict(state, request)):
            if now < request.deadline:
                # It was asked for early, and the reply came sooner than others did.
                del overdue[request]
                state.deadlines.look_again(request, request.deadline)
            else:
                state.refuse(request, error)
        elif not request.pending:
            del overdue[request]
    if any(request.state is RequestState.WAITING for request in overdue):
        _ask(state)  # the reply was to a command sent before their deadlines


def _ask(state: SemaphoreState) -> None:
    if not state.heartbeats.in_flight:
        state.beat()


def _verdict(state: SemaphoreState, request: Request) -> SemaphoreError | None:
    """The error for *request*, by what is known. None while a reply is awaited."""
    route = state.route
    if route.error is not None:
        return route.unavailable()
    if not request.waits:
        return _no_reply(state, request)
    return timed_out(state, request) if _surely_waits(state, request) else None


def _surely_waits(state: SemaphoreState, request: Request) -> bool:
    """Whether the server said that *request* waits, recently enough for its deadline.

    It did where it said so itself. Where push messages come and nothing is in doubt, any reply
    says so, because a push message for *request* would have come before it. With keys, only a
    reply to *request* says what holds it up.
    """
    since, report = request.replies_since, request.report
    if request.state is not RequestState.WAITING or since is None:
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
        heappush(state.nested, (at, request.order, request))


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
    extra = facts("nested", semaphore=state.name, waited=waited)
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
    return "key" if request.waits_for_key else "limit"
