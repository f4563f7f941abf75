"""The operation status: reads, and changes nothing."""

from collections.abc import Sequence

from redsem_async._protocol.replies import HeldEntry, LineEntry, StatusReply

from .records import CallContext
from .state import State


def status(
    state: State,
    context: CallContext,
    max_entries: int,
    waiting: int,
    line: Sequence[LineEntry],
) -> StatusReply:
    """The reply, with *waiting* and *line* as the mode counts them."""
    live = sorted(
        (holder.expiry_ms, identity)
        for identity, holder in state.holders.items()
        if holder.expiry_ms > context.now
    )
    holders = [
        HeldEntry(i, expiry - context.now, state.holders[i].token, state.holders[i].permits)
        for expiry, i in live[:max_entries]
    ]
    hubs = {entry.id.partition(".")[0] for entry in holders}
    hubs |= {entry.id.partition(".")[0] for entry in line}
    return StatusReply(
        set_limit=state.set_limit,
        held=state.used(context.now),
        waiting=waiting,
        now_us=state.counter.stamp(context.now_us),
        holders=holders,
        line=line,
        hubs={hub: state.look_up(hub).description for hub in hubs},
        reusing={hub for hub in hubs if state.rights.get(hub, 0) > context.now},
    )
