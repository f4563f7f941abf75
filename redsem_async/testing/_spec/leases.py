"""The operations on permits that serve no waiters (refresh, adopt and detach)."""

from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import Adopt, Detach, Refresh
from redsem_async._protocol.replies import AdoptReply, Answer, Holding, Reply

from .records import SLACK_MS, CallContext, Void
from .state import State


def refresh(state: State, context: CallContext, call: Refresh) -> Reply:
    """Extend leases. A shorter lease does not cut a longer one."""
    answers: list[Answer] = []
    for number in call.numbers:
        identity = permit_id(context.hub, number)
        if state.current_grant(identity, context.now) is None or not state.holders[identity].known:
            answers.append(0)
            continue
        holder, asked, held = state.holders[identity], call.lease_ms, 1
        if call.max_hold_ms is not None:
            left = call.max_hold_ms - _held_for(context, holder.token)
            asked, held = min(asked, left), max(1, left)
        holder.expiry_ms = max(holder.expiry_ms, context.now + asked)
        answers.append(held)
    if any(answers):
        lead_ms = state.counter.lead_ms(context.wall_us)
        state.keep(context, call.lease_ms + lead_ms + SLACK_MS)
        state.keep_hub_alive(context, call.lease_ms)
    return Reply(answers)


def refuse_spent(state: State, context: CallContext, call: Adopt) -> None:
    """Let no adoption run twice, except one whose permit is still held.

    Raises:
        Void: it ran before, or must not run any more.
    """
    new = permit_id(context.hub, call.new)
    if state.is_spent(context, call.call) and state.current_grant(new, context.now) is None:
        raise Void


def adopt(state: State, context: CallContext, call: Adopt) -> tuple[AdoptReply, bool]:
    """Move a held permit to a new id of the caller's. The result is also whether it moved now."""
    now = context.now
    old, new = permit_id(call.owner, call.old), permit_id(context.hub, call.new)
    if state.current_grant(new, now) is not None:
        reply = _adopted(state, context, call, new)
        return (reply if state.holders[new].known else AdoptReply(None)), False
    state.note_call(context, call.call)
    if state.current_grant(old, now) is None or not state.holders[old].known:
        return AdoptReply(None), False
    holder = state.holders[old]
    lease_ms = call.lease_ms
    if call.max_hold_ms is not None:
        lease_ms = min(lease_ms, call.max_hold_ms - _held_for(context, holder.token))
    holder.expiry_ms = max(holder.expiry_ms, now + lease_ms)
    state.holders[new] = holder
    state.remove(context, [old])
    state.save_counter(context, holder.expiry_ms - now)
    return _adopted(state, context, call, new), True


def _adopted(state: State, context: CallContext, call: Adopt, new: str) -> AdoptReply:
    holder = state.holders[new]
    holding = Holding(holder.token, holder.expiry_ms - context.now, holder.slots)
    bounded = call.max_hold_ms is not None
    held_ms = _held_for(context, holder.token) if bounded else 0
    return AdoptReply(holding, holder.permits, held_ms, holder.key)


def _held_for(context: CallContext, token: int) -> int:
    """How many milliseconds ago the permit with *token* was granted."""
    return max(0, (context.now_us - token) // 1000)


def detach(state: State, context: CallContext, call: Detach) -> tuple[Reply, bool]:
    """Set the expiry of a held permit. The result is also whether it is earlier now.

    Raises:
        Void: the operation ran before, or must not run any more.
    """
    if state.is_spent(context, call.call):
        raise Void
    state.note_call(context, call.call)
    identity = permit_id(context.hub, call.number)
    if state.current_grant(identity, context.now) is None:
        return Reply([0]), False
    holder = state.holders[identity]
    expires_ms = call.expires_ms
    if call.max_hold_ms is not None:
        left = call.max_hold_ms - _held_for(context, holder.token)
        expires_ms = max(1, min(expires_ms, left))
    expiry_ms = context.now + expires_ms
    expires_earlier = expiry_ms < holder.expiry_ms
    holder.expiry_ms = expiry_ms
    state.save_counter(context, expires_ms)
    return Reply([1]), expires_earlier
