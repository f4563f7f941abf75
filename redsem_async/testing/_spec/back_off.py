"""A back-off grants nothing for some time, and then up to a ramp."""

import math

from redsem_async._protocol.operations import BackOff

from .records import BackOffRecord, CallContext
from .state import State


def begun_or_longer(
    before: BackOffRecord | None, state: State, context: CallContext, call: BackOff
) -> tuple[BackOffRecord, bool]:
    """The back-off after *call*. The result is also whether it began now."""
    now = context.now
    later, tenth = now + call.pause_ms, math.ceil(call.pause_ms / 10)
    if before is not None and before.ramp(now) is not None:
        later = max(before.ends, later)
        if call.token is not None and call.token <= before.began:
            return BackOffRecord(later, before.began, max(before.step, tenth)), False
    live = sum(holder.expiry_ms > now for holder in state.holders.values())
    hold_ms = math.ceil((state.hold_ms or 0) * max(1, live) / max(1, state.used(now)))
    step = max(1, hold_ms, tenth)
    began = max(state.counter.last, context.now_us)
    return BackOffRecord(later, began, step), True
