"""The right to reuse leases, of hubs that share a semaphore with no other hub's waiters."""

from redsem_async._protocol.operations import RightRequest
from redsem_async._protocol.pushes import Recalled

from .records import CallContext, Publish
from .state import State

MAX_RIGHTS = 64  # hubs that may reuse leases
MAX_COMPARED = 64  # entries of the queue that are looked at before a right is given


def recall_rights(state: State, context: CallContext, publish: Publish) -> None:
    """End the right of every other hub. The caller wants more, or the limit changes."""
    for hub, ends in state.rights.items():
        if hub != context.hub and ends > context.now:
            publish(hub, Recalled(context.name))
    state.rights = {hub: ends for hub, ends in state.rights.items() if hub == context.hub}


def answer_right(
    state: State,
    context: CallContext,
    asked: RightRequest | None,
    waiting: int,
    hubs: set[str],
    *,
    allowed: bool = True,
) -> bool:
    """Whether the caller gets the right to reuse leases. The one that it had ends.

    *waiting* requests of *hubs* are in the queue. It is not *allowed* where a key has a set limit
    or a back-off.
    """
    if asked is None:
        return False
    now = context.now
    others = {h: ends for h, ends in state.rights.items() if h != context.hub and ends > now}
    limit = state.effective_limit(asked.limit)
    given = (
        allowed
        and not hubs - {context.hub}
        and waiting <= MAX_COMPARED
        and state.ramp(now) is None
        and limit > 0
        and state.taken(now) <= limit
        and len(others) < MAX_RIGHTS
    )
    if given:
        state.rights = others | {context.hub: now + asked.lasts_ms}
    elif context.hub in state.rights:
        state.rights = others
    return given
