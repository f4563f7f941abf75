"""Heartbeat says that this process is alive, and asks whether its waiters still wait."""

import math
from collections.abc import Sequence
from itertools import islice

from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import heartbeat_interval
from redsem_async._hub import deadlines, handout
from redsem_async._hub.estimates import queue_report_of
from redsem_async._hub.request import Request, RequestState
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Heartbeat
from redsem_async._protocol.replies import GONE, WAITING_FOR_KEY, AnyReply, Holding, Reply

from . import effects
from .base import Batch

MAX_ASKED = 1000  # waiters that one heartbeat asks about
FIRST_ASKED = 100  # of them, when nothing is in doubt


class HeartbeatBatch(Batch[Request]):
    """A heartbeat, with the waiters that it asks about."""

    __slots__ = ()

    @classmethod
    def take(cls, state: SemaphoreState) -> "HeartbeatBatch":
        """The next heartbeat."""
        state.heartbeats.written()
        asked = _asked_about(state)
        operation = Heartbeat(
            math.ceil(1000 * state.longest_lease),
            [request.queued for request in asked],
            state.introduction.take(),
        )
        return cls(state, operation, asked)

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        assert isinstance(self.operation, Heartbeat)
        state, sent_at = self.state, self.sent_at
        state.heartbeats.answered(now, heartbeat_interval(state.longest_lease))
        gone: list[Request] = []
        report = queue_report_of(state, sent_at, reply)
        asked = self.operation.requests
        for request, queued, answer in zip(self.items, asked, reply.answers, strict=True):
            number = queued.number  # a request that asked anew has another by now
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                handout.granted(state, number, answer.token, left, sent_at, answer.slots)
            elif request.state is not RequestState.WAITING or request.number != number:
                continue
            elif answer == GONE:
                gone.append(request)
            else:
                request.report = report
                request.waits_for_key = answer == WAITING_FOR_KEY
        effects.note_limit(state, reply, now)
        effects.apply(state, reply, sent_at, now)
        _found_gone(state, gone)
        if state.overdue:
            deadlines.settle(state, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        state = self.state
        state.heartbeats.in_flight = False
        for request in list(state.waiting):
            state.refuse(request, error)

    def write_again(self, *, arrived: bool) -> None:
        self.state.heartbeats.in_flight = False
        self.state.beat()


def _asked_about(state: SemaphoreState) -> Sequence[Request]:
    """The waiters that the next heartbeat asks about.

    Those whose deadline has come, then the first in the queue, to see that it is still there. Or
    all of them, where push messages may have been missed.
    """
    if state.route.link.no_push and not state.unsure:
        state.unsure = tuple(state.waiting)
    overdue = [each for each in state.overdue if each.state is RequestState.WAITING]
    unsure = [each for each in state.unsure if each.state is RequestState.WAITING]
    others = unsure or islice(state.waiting, FIRST_ASKED)
    asked = dict.fromkeys(islice(dict.fromkeys((*overdue, *others)), MAX_ASKED))
    state.unsure = tuple(each for each in unsure if each not in asked)
    return list(asked)


def _found_gone(state: SemaphoreState, requests: Sequence[Request]) -> None:
    """The server does not know *requests* any more, so ask again.

    One that is gone makes all others doubtful.
    """
    for request in requests:
        state.ask_anew(request)
    if requests and not state.unsure:
        state.unsure = tuple(state.waiting)
    if state.unsure:
        state.beat()
