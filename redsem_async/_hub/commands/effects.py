"""What a reply brings about besides its answers."""

import logging
import math

from redsem_async._core.lease import heartbeat_interval
from redsem_async._hub import calls, handout
from redsem_async._hub.heartbeats import STAGGER
from redsem_async._hub.pending import Call
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Reap
from redsem_async._protocol.replies import Reply

logger = logging.getLogger("redsem_async")

FIRST_FEW = 4  # a process behind so many waiters leaves an expiry to others, for a moment


def note_limit(state: SemaphoreState, reply: Reply, now: float) -> None:
    """Note the set limit and the back-off in a reply. Log it if Redis has lost earlier ones."""
    lost, (limit, backs_off_until) = "", state.seen or (None, 0.0)
    if reply.forgotten and limit is not None:
        lost = f"the set limit of {limit}" if limit else "the pause"
    elif reply.forgotten and reply.ramp is None and now < backs_off_until:
        lost = "the back-off"
    if lost:
        facts = {"event": "limit lost", "semaphore": state.name}
        logger.warning("%r: %s was lost with Redis's data", state.name, lost, extra=facts)
    lasts = 0.0 if reply.ramp is None else reply.ramp.lasts_ms / 1000
    state.seen = (reply.set_limit, now + lasts) if lasts or reply.set_limit is not None else None


def apply(
    state: SemaphoreState, reply: Reply, sent_at: float, now: float, *, continues: bool = True
) -> None:
    """Apply what a reply says of the semaphore.

    With *continues*, a reap follows one that stopped early to let others have the server.
    """
    for number, token in reply.granted:
        handout.granted(state, number, token, None, sent_at, reply.slots.get(number, ()))
    if reply.next_ms == 0 and continues and not (state.calls and state.calls[0].is_reap):
        calls.write_again(state, Call(Reap()))
    waiting = state.waiting
    if not waiting:
        if state.heartbeats.look_at < math.inf:
            state.heartbeats.stop()
        return
    moment = None
    if reply.next_ms is not None:
        behind = reply.waiting - len(waiting) > FIRST_FEW
        moment = reply.next_ms / 1000 + (state.identity.stagger(STAGGER) if behind else 0.001)
    state.heartbeats.expect(moment, heartbeat_interval(state.longest_lease), now)
    state.look_at = min(state.look_at, state.heartbeats.look_at)
