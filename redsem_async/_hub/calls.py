"""Calls that are not batched. When they are written, and what happens to the others."""

from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError

from .lease import LeaseState
from .pending import AdoptCall, BackOffCall, Call, Change, DetachCall
from .state import SemaphoreState


def add(state: SemaphoreState, call: Call) -> None:
    """Write *call* after the others."""
    if isinstance(call, Change):
        state.changes.append(call)
    else:
        state.calls.append(call)
    state.stirred = True


def back_off(state: SemaphoreState, call: BackOffCall) -> None:
    """Write *call*, or join it to one that waits to be written, before what serves a waiter."""
    known = (each for each in state.changes if isinstance(each, BackOffCall))
    if not any(each.join(call) for each in known):
        add(state, call)


def write_again(state: SemaphoreState, call: Call) -> None:
    """Write *call* before the others, if its caller waits on."""
    if call.wanted:
        state.calls.appendleft(call)
        state.stirred = True
    else:
        withdraw(state, call)


def given_up(state: SemaphoreState, call: Call) -> None:
    """The caller waits no more. An unsent call never will be sent, and does not keep the hub."""
    if isinstance(call, Change):
        if call in state.changes and not call.in_flight:
            state.changes.remove(call)
            withdraw(state, call)
    elif call in state.calls:
        state.calls.remove(call)
        withdraw(state, call)


def withdraw(state: SemaphoreState, call: Call) -> None:
    """*call* is no longer wanted, and not in flight."""
    if call.was_sent and isinstance(call, Change | DetachCall):
        state.void.append(call)  # its bytes may be somewhere still
        state.stirred = True
    else:
        ended(state, call)


def ended(state: SemaphoreState, call: Call) -> None:
    """The call got its reply, was refused or made void, so it will not be carried out any more."""
    if isinstance(call, DetachCall) and call.unsettled:
        call.unsettled = False
        lease = call.lease
        lease.detach_settled(clock())
        held = lease.state is LeaseState.HELD and not lease.unsettled
        if not call.wanted and held:  # and was not detached once more meanwhile
            _ = state.refresh(lease)


def first(state: SemaphoreState) -> Call | None:
    """The first call that is no change."""
    calls = state.calls
    while calls and not calls[0].wanted:
        withdraw(state, calls.popleft())  # an adopt, whose request is among those that leave
    return calls[0] if calls else None


def take(state: SemaphoreState) -> Call:
    """The call that `first` has returned."""
    call = state.calls.popleft()
    if isinstance(call, DetachCall | AdoptCall):
        call.number = state.identity.new_number()
    return call


def first_change(state: SemaphoreState) -> Change | None:
    """The first change that is not in flight, if it may be written now."""
    for change in list(state.changes):
        if change.in_flight:
            if change.alone:
                return None
        elif not change.wanted:  # a back-off that is over
            state.changes.remove(change)
            withdraw(state, change)
        elif change.alone and change is not state.changes[0]:
            return None
        else:
            return change
    return None


def backs_off(state: SemaphoreState) -> bool:
    """Whether a permit's back-off waits to be written, ahead of all that would serve a waiter."""
    pending = (each for each in state.changes if not each.in_flight and each.future is None)
    return any(each.wanted for each in pending)


def take_change(state: SemaphoreState, change: Change) -> None:
    """Write *change*. It is in flight from now on."""
    change.in_flight = True
    change.number = change.number or state.identity.new_number()


def landed(state: SemaphoreState, change: Change) -> None:
    """*change* has its reply, or was refused."""
    if change in state.changes:
        state.changes.remove(change)
        state.stirred = True


def change_again(state: SemaphoreState, change: Change, *, arrived: bool) -> None:
    """Write *change* again. It may have *arrived*, or it was surely not carried out this time."""
    change.in_flight = False
    change.was_sent |= arrived
    if not change.was_sent:
        change.number = 0
        if not change.alone and change in state.changes:  # others may be in flight
            state.changes.remove(change)
            state.changes.append(change)
    state.stirred = True


def fail(state: SemaphoreState, call: Call, error: SemaphoreError) -> None:
    """No reply will come, or it was refused."""
    if not isinstance(call, AdoptCall):
        call.settle(error)
    elif call.wanted:
        state.refuse(call.request, error)


def fail_all(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End every call, because no reply will come."""
    failed: list[Call] = [*state.calls, *state.changes]
    state.calls.clear()
    state.changes.clear()
    for call in failed:
        fail(state, call, error())
        withdraw(state, call)
