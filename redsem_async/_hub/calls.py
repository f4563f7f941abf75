"""Calls that are not batched. When they are written, and what happens to the others."""

from collections.abc import Callable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreError

from .lease import LeaseState
from .pending import AdoptCall, BackOffCall, Call, DetachCall
from .state import SemaphoreState


def add(state: SemaphoreState, call: Call) -> None:
    """Write *call* after the others."""
    state.calls.append(call)
    state.stirred = True


def back_off(state: SemaphoreState, call: BackOffCall) -> None:
    """Write *call* before all others, or together with one that is to be written.

    The right to reuse leases ends, because leases that are used again need no grant.
    """
    known = (each for each in state.calls if isinstance(each, BackOffCall))
    if not any(each.join(call) for each in known):
        state.calls.appendleft(call)
        state.stirred = True
    state.end_right()


def write_again(state: SemaphoreState, call: Call) -> None:
    """Write *call* before the others, if its caller waits on."""
    if call.wanted:
        state.calls.appendleft(call)
        state.stirred = True
    else:
        withdraw(state, call)


def given_up(state: SemaphoreState, call: Call) -> None:
    """The caller waits no more. An unsent call never will be sent, and does not keep the hub."""
    if call in state.calls:
        state.calls.remove(call)
        withdraw(state, call)


def withdraw(state: SemaphoreState, call: Call) -> None:
    """*call* is no longer wanted, and not in flight."""
    if call.numbered and call.was_sent and not isinstance(call, AdoptCall):
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
    """The first call, if it may be written now."""
    calls = state.calls
    while calls:
        call = calls[0]
        if not call.wanted:
            # An adopt, whose request is among those that leave, or a back-off that is over.
            withdraw(state, calls.popleft())
        elif call.numbered and (
            state.alone_in_flight or (call.alone and state.numbered_in_flight)
        ):
            return None
        else:
            return call
    return None


def take(state: SemaphoreState) -> Call:
    """The call that `first` has returned. It is in flight from now on."""
    call = state.calls.popleft()
    if call.numbered:
        state.numbered_in_flight += 1
        state.alone_in_flight = call.alone
        if call.renumber:
            call.number, call.renumber = state.identity.new_number(), False
    return call


def landed(state: SemaphoreState, call: Call) -> None:
    """A call is not in flight any more."""
    if call.numbered:
        state.numbered_in_flight -= 1
        state.alone_in_flight = state.alone_in_flight and not call.alone
        if state.calls:
            state.stirred = True


def fail(state: SemaphoreState, call: Call, error: SemaphoreError) -> None:
    """No reply will come, or it was refused."""
    if not isinstance(call, AdoptCall):
        call.settle(error)
    elif call.wanted:
        state.refuse(call.request, error)


def fail_all(state: SemaphoreState, error: Callable[[], SemaphoreError]) -> None:
    """End every call that is not in flight."""
    while state.calls:
        call = state.calls.popleft()
        fail(state, call, error())
        withdraw(state, call)
