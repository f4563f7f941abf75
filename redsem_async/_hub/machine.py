"""What a semaphore writes next, and what time, push messages and its connection change.

With `commands` these are the verbs of the state machine whose data are in `state`.
"""

import math
from collections import deque
from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreClosed, SemaphoreError
from redsem_async._core.lease import liveness_timeout, reply_timeout
from redsem_async._protocol.pushes import Deleted, Granted, Push, Recheck, Revoked

from . import calls, deadlines, handout, trust
from .commands import release
from .commands.abandon import AbandonBatch
from .commands.acquire import AcquireBatch
from .commands.base import AnyBatch
from .commands.call import take_call, take_change
from .commands.heartbeat import HeartbeatBatch
from .commands.refresh import RefreshBatch
from .commands.release import ReleaseBatch
from .lease import Lease, LeaseState
from .state import SemaphoreState

# -- what is written


def next_command(state: SemaphoreState, now: float) -> AnyBatch | None:
    """The next batch to write, if any. Refreshes, back-offs, releases, calls, then acquires."""
    change = None
    if state.refreshes:
        return RefreshBatch.take(state)
    if state.changes:
        change = calls.first_change(state)
        if calls.backs_off(state):  # and a release would serve a waiter
            return None if change is None else take_change(state, change)
    if state.releases:
        return ReleaseBatch.take(state, now)
    if state.leaving or state.void:
        return AbandonBatch.take(state)
    if change is not None:
        return take_change(state, change)
    if state.calls and calls.first(state) is not None:
        return take_call(state)
    if state.heartbeats.due:
        return HeartbeatBatch.take(state)
    return AcquireBatch.take(state) if state.new else None


def is_active(state: SemaphoreState) -> bool:
    """Whether anything is held, waited for or to be written, so that the connection is kept."""
    return bool(
        state.requests
        or state.leases
        or (state.new and state.first_new())
        or state.waiting
        or state.releases
        or state.void
        or (state.leaving and not state.outlasted)
        or any(call.wanted for call in state.calls)
        or any(change.wanted or change.was_sent for change in state.changes)
    )


def is_idle(state: SemaphoreState) -> bool:
    """Whether time changes nothing."""
    if state.requests or state.leases or (state.new and state.first_new()):
        return False
    return not any(call.wanted for call in (*state.calls, *state.changes))


def rest(state: SemaphoreState) -> None:
    """All deadlines are over."""
    state.deadlines.clear()
    state.heartbeats.stop()
    state.by_message.clear()
    state.look_at = math.inf


# -- what happens


def look(state: SemaphoreState, now: float) -> None:
    """Time has passed."""
    next_deadline = deadlines.look(state, now)
    heartbeats = state.heartbeats
    if now >= heartbeats.look_at:
        heartbeats.stop()
        if state.waiting and not heartbeats.in_flight:
            state.beat()
    next_refresh = _refresh_by_message(state, now)
    state.look_at = min(next_deadline, heartbeats.look_at, next_refresh)


def _refresh_by_message(state: SemaphoreState, now: float) -> float:
    """Refresh the leases whose time has come, and return when that of the next one comes."""
    leases = state.by_message
    while leases and (leases[0][0] <= now or not leases[0][1].holding):
        lease = leases.popleft()[1]
        if lease.holding:
            _ = state.refresh(lease)
    return leases[0][0] if leases else math.inf


def pushed(state: SemaphoreState, push: Push, fresh_at: float | None) -> None:
    """Apply a push message. The newest command with a reply was sent at *fresh_at*."""
    match push:
        case Granted(grants=grants):
            # The server had carried out that command before it granted these.
            sent_at = -math.inf if fresh_at is None else fresh_at
            for number, (token, left_ms, slots) in grants:
                handout.granted(state, number, token, left_ms / 1000, sent_at, slots)
        case Revoked(numbers=numbers):
            trust.revoked(state, numbers)
        case Deleted():
            trust.deleted(state)
        case Recheck():
            if state.waiting:
                state.beat()


def reconnected(state: SemaphoreState) -> None:
    """The connection is new. The hub introduces itself again, and asks about all that waits."""
    state.introduction.sent = False
    state.unsure = tuple(state.waiting)  # messages may have been missed
    state.outlasted = False
    if state.waiting:
        state.beat()


def forget_in_flight(state: SemaphoreState) -> None:
    """The connection was closed on purpose, so no reply will come."""
    state.introduction.sent = False
    state.heartbeats.forget()
    state.changes = deque(each for each in state.changes if not each.in_flight)
    _drop_leaving(state)
    state.acquires_in_flight.clear()
    state.requests = {n: each for n, each in state.requests.items() if each.pending}


# -- failing


def fail_outlasted(state: SemaphoreState, since: float) -> None:
    """End what has waited for longer than an outage, which began at *since*, is tolerated."""
    now = clock()
    for request in state.pending():
        lasts = now - max(since, request.started) > request.terms.lease
        if lasts and request.deadline == math.inf:
            state.refuse(request, state.route.unavailable())
    release.fail_old(state, reply_timeout(state.shortest_lease), state.route.unavailable)
    # The server keeps a process alive for up to a quarter longer than it has to be. Its requests
    # are abandoned all the same if the server is back before this hub ends.
    if now - since > 1.3 * liveness_timeout(state.longest_lease):
        state.outlasted = True
        _forget_leaving(state)


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
    fail_waiting(state, error)
    calls.fail_all(state, error)
    release.fail_all(state, error)
    _drop_leaving(state)


def close(state: SemaphoreState, lease: Lease) -> None:
    """Take a permit from its holder, and release it."""
    match lease.state:
        case LeaseState.HELD:
            trust.lose(state, lease, "the semaphore was closed in this process", expected=True)
            _ = state.release(lease, clock())
        case LeaseState.GRANTED:
            state.refuse(state.requests[lease.number], SemaphoreClosed(state.name))
        case _:
            pass


def _drop_leaving(state: SemaphoreState) -> None:
    """Nothing will be sent any more."""
    _forget_leaving(state)
    state.leaving.clear()
    state.void.clear()


def _forget_leaving(state: SemaphoreState) -> None:
    for request in state.leaving:
        state.requests.pop(request.number, None)
