"""What ends a wait that no grant ends: a deadline, an outage, or the close. And new connections.

AcquireTimeout says that the server replied, lately, that the request has to wait, or that it
granted the request too late for a refresh to confirm that. BackendUnavailable says that it did not
reply. To tell one from the other, the server is asked once before the deadline, with one heartbeat
for all requests whose deadlines are near. If no reply has come by then, one is awaited for GRACE.
"""

import math
from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreClosed, SemaphoreError
from redsem_async._core.lease import liveness_timeout, reply_timeout

from .calls import fail_calls
from .commands import fail_releases
from .estimates import timed_out
from .model import Lease, LeaseState, Request, RequestState
from .state import SemaphoreState

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
    while (late := state.reminders.come(now)) is not None:
        if late[1].overlong is not None:
            late[1].overlong()
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


# -- connections, outages, the close


def reconnected(state: SemaphoreState) -> None:
    """The connection is new. The hub introduces itself again, and asks about every waiter."""
    state.changed.add(state)
    state.introduction.sent = False
    state.unsure = tuple(state.waiting)  # messages may have been missed
    state.outlasted = False
    if state.waiting:
        state.beat()


def fail_outlasted(state: SemaphoreState, since: float) -> None:
    """End what has waited for longer than an outage, which began at *since*, is tolerated."""
    now = clock()
    state.changed.add(state)
    for request in state.pending():
        lasts = now - max(since, request.started) > request.terms.lease
        if lasts and request.deadline == math.inf:
            state.refuse(request, state.route.unavailable())
    _fail_old_releases(state, now, reply_timeout(state.shortest_lease))
    # The server keeps a process alive for up to a quarter longer than it has to. Its requests are
    # abandoned all the same if the server is back before this hub ends.
    if now - since > 1.3 * liveness_timeout(state.longest_lease):
        state.outlasted = True
        _forget_leaving(state)


def _fail_old_releases(state: SemaphoreState, now: float, age: float) -> None:
    """End the wait for releases older than *age*, and drop those whose lease has ended.

    The others are sent all the same.
    """
    releases, error = state.releases, state.route.unavailable
    for owner, pending in list(releases.items()):
        expired = [each for each in pending if now >= each.lease_ends]
        if expired:
            releases[owner] = [each for each in pending if now < each.lease_ends]
            fail_releases(state, expired, error())
        if not releases[owner]:
            del releases[owner]
        for each in pending:
            if each.answer is None and each.future and now - each.asked_at > age:
                each.settle(error())


def fail_not_waiting(state: SemaphoreState) -> None:
    """End the requests that do not wait, because the server cannot be asked now."""
    for request in state.pending():
        if not request.waits:
            state.refuse(request, state.route.unavailable())


def fail_waiting(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End every request whose caller waits."""
    for request in state.pending():
        state.refuse(request, error())


def fail_all(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End everything that waits for a reply, because none will come."""
    state.changed.add(state)
    fail_waiting(state, error)
    fail_calls(state, error)
    for pending in state.releases.values():
        fail_releases(state, pending, error())
    state.releases.clear()
    _drop_leaving(state)


def close(state: SemaphoreState, lease: Lease) -> None:
    """Take a permit from its holder, and release it."""
    if lease.state is LeaseState.HELD:
        state.lose(lease, "the semaphore was closed in this process", expected=True)
        state.give_back(lease, clock(), trusted=False)
    elif lease.state is LeaseState.GRANTED:
        state.refuse(state.requests[lease.number], SemaphoreClosed(state.name))


def forget_in_flight(state: SemaphoreState) -> None:
    """The connection was closed on purpose, so no reply will come."""
    state.changed.add(state)
    state.introduction.sent = False
    state.heartbeats.forget()
    state.calls = [call for call in state.calls if not call.in_flight]
    _drop_leaving(state)
    state.reaps = False
    state.acquires_in_flight.clear()
    state.requests = {n: each for n, each in state.requests.items() if each.pending}


def _drop_leaving(state: SemaphoreState) -> None:
    """Nothing will be sent any more."""
    _forget_leaving(state)
    state.undo.clear()


def _forget_leaving(state: SemaphoreState) -> None:
    for each in state.undo:
        if isinstance(each, Request):
            state.requests.pop(each.number, None)
