"""The operation status, which reads and changes nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from redsem_async._protocol.operations import Status
from redsem_async._protocol.replies import HeldEntry, KeyEntry, QueueEntry, StatusReply

from .records import CallContext
from .state import State


class Listing(NamedTuple):
    """What a mode reports of its waiters.

    Attributes:
        waiting: how many requests wait.
        queue: the first of them.
        keys: keys that hold or wait.
        blocked: whether a new request without a key waits behind others.
        key_limits: of how many keys the limit is set.
    """

    waiting: int
    queue: Sequence[QueueEntry] = ()
    keys: Sequence[KeyEntry] = ()
    blocked: bool = False
    key_limits: int = 0


def status(state: State, context: CallContext, call: Status, listing: Listing) -> StatusReply:
    """The reply, with *listing* as the mode has it."""
    live = sorted(
        (holder.expiry_ms, identity)
        for identity, holder in state.holders.items()
        if holder.expiry_ms > context.now
    )
    holders = [
        HeldEntry(i, expiry - context.now, held.token, held.permits, held.key, held.slots)
        for expiry, i in live[: call.max_entries]
        for held in (state.holders[i],)
    ]
    hubs = {entry.id.partition(".")[0] for entry in holders}
    hubs |= {entry.id.partition(".")[0] for entry in listing.queue}
    return StatusReply(
        set_limit=state.set_limit,
        hold_ms=state.hold_ms,
        held=state.used(context.now),
        waiting=listing.waiting,
        now_us=context.now_us,
        holders=holders,
        queue=listing.queue,
        keys=listing.keys,
        slots=tuple(state.slots),
        blocked=listing.blocked,
        key_limits=listing.key_limits,
        ramp=state.ramp(context.now),
        hubs={hub: state.look_up(hub).description for hub in hubs},
    )
