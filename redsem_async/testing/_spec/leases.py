"""Operations on the caller's own permits that serve no waiters: refresh and restore."""

from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import Refresh, Restore
from redsem_async._protocol.replies import Answer, Reply

from .records import SLACK_MS, STEP_US, CallContext, HolderRecord
from .state import State


def refresh(state: State, context: CallContext, call: Refresh) -> Reply:
    """Extend leases. A shorter lease does not cut a longer one."""
    answers: list[Answer] = []
    for number in call.numbers:
        identity = permit_id(context.hub, number)
        held = state.current_grant(identity, context.now) is not None
        answers.append(int(held))
        if held:
            holder = state.holders[identity]
            holder.expiry_ms = max(holder.expiry_ms, context.now + call.lease_ms)
    if any(answers):
        lead_ms = state.counter.lead_ms(context.wall_us)
        state.keep(context, call.lease_ms + lead_ms + SLACK_MS)
        state.keep_hub_alive(context, call.lease_ms)
    return Reply(answers)


def restore(state: State, context: CallContext, call: Restore) -> Reply:
    """Put permits back after a loss of state, with the tokens that they had."""
    if state.grace.until > context.now:
        state.grace.until = max(state.grace.until, state.grace.lost_at + call.lease_ms)
    answers: list[Answer] = []
    longest = 0
    for number, token, permits in call.permits:
        identity = permit_id(context.hub, number)
        grant = state.current_grant(identity, context.now)
        back = grant is not None or state.grace.allows_restore(identity, context.now)
        if back:
            state.counter.last = max(state.counter.last, token)
            left = max(call.lease_ms, grant.left_ms if grant else 0)
            longest = max(longest, left)
            state.holders[identity] = HolderRecord(context.now + left, token, permits)
        answers.append(int(back))
    if state.counter.last > state.counter.stamp(context.now_us) + STEP_US:
        state.counter.offset_us = state.counter.last - context.now_us
    if any(answers):
        state.save_counter(context, longest)
    state.raise_mark(context, max(number for number, _, _ in call.permits))
    return Reply(answers)
