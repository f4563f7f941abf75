"""What outages, new connections, closed ones and the close mean for what a semaphore waits for."""

import math
from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreClosed, SemaphoreError
from redsem_async._core.lease import liveness_timeout, reply_timeout

from .calls import fail_calls
from .commands import fail_releases
from .model import Lease, LeaseState, Request
from .state import SemaphoreState


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
