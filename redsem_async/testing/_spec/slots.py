"""Every permit stands for a slot, which is one of the things that the clients list."""

from collections.abc import Iterable, Sequence
from itertools import chain, count, islice

from .records import CallContext, SlotsInUse
from .state import State


def assign(state: State, permits: int, planned: Iterable[Sequence[int]] = ()) -> tuple[int, ...]:
    """The lowest free slots, where permits have slots. *planned* ones are not free any more."""
    if not state.slotted:
        return ()
    held = (holder.slots for holder in state.holders.values())
    taken = {*chain.from_iterable(held), *chain.from_iterable(planned)}
    return tuple(islice((slot for slot in count() if slot not in taken), permits))


def compare(
    state: State,
    context: CallContext,
    waiting: int,
    declared: Sequence[str | int] | None,
    identity: str = "",
) -> None:
    """Compare the slots that the caller declares with those of the others, and note the longer.

    They have to include those of the holder *identity*.

    Raises:
        SlotsInUse: the semaphore is in use with others.
    """
    if declared is None:
        return
    own = tuple(map(str, declared))
    in_use = waiting > 0 or state.used(context.now) > 0
    if not state.slots or not in_use:
        context.slot_list = own
        return
    common = min(len(own), len(state.slots))
    holder = state.holders.get(identity)
    highest = max(holder.slots, default=0) if holder else 0
    if own[:common] != state.slots[:common] or highest >= len(own):
        raise SlotsInUse(state.slots)
    context.slot_list = max(own, state.slots, key=len)
