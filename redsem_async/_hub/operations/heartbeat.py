"""Heartbeat: the process is alive, and asks what became of its waiters."""

from collections.abc import Sequence

from redsem_async._core.errors import SemaphoreError
from redsem_async._core.lease import heartbeat_interval
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.heartbeat_timer import HeartbeatTimer
from redsem_async._protocol.operations import Heartbeat
from redsem_async._protocol.replies import GONE, WAITING_FOR_KEY, AnyReply, Holding, Reply

from .acquire import AcquireQueue
from .base import Batch
from .query import QueryQueue


class HeartbeatBatch(Batch):
    """A heartbeat, with the waiters that it asks about."""

    __slots__ = ("_asked", "_heartbeats", "_queries", "_queue")

    def __init__(
        self, queue: AcquireQueue, queries: QueryQueue, heartbeats: HeartbeatTimer
    ) -> None:
        heartbeats.written()
        asked = queue.waiters.asked_about()
        super().__init__(queue.ledger, queue.waiters.heartbeat(asked))
        self._queue = queue
        self._queries = queries
        self._heartbeats = heartbeats
        self._asked: Sequence[Claim] = asked

    def apply(self, reply: AnyReply) -> None:
        assert isinstance(reply, Reply)
        assert isinstance(self.operation, Heartbeat)
        queue, waiters = self._queue, self._queue.waiters
        self._heartbeats.answered(heartbeat_interval(self.ledger.longest_lease))
        gone: list[Claim] = []
        report = self.ledger.line_report_of(self.sent_at, reply)
        requests = self.operation.requests
        for claim, request, answer in zip(self._asked, requests, reply.answers, strict=True):
            number = request.number  # a claim that asked anew has another by now
            if isinstance(answer, Holding):
                left = answer.left_ms / 1000
                queue.handout.granted(number, answer.token, left, self.sent_at, answer.slots)
            elif claim.state is not State.WAITING or claim.number != number:
                continue
            elif answer == GONE:
                gone.append(claim)
            else:
                claim.report = report
                claim.waits_for_key = answer == WAITING_FOR_KEY
        if (asked := self.operation.right) is not None:
            self.ledger.right.answered(reply.right, asked, self.sent_at)
        queue.apply(reply, self.sent_at)
        waiters.found_gone(gone)
        if self.ledger.overdue:
            queue.deadlines.settle()

    def refused(self, error: SemaphoreError) -> None:
        self._heartbeats.in_flight = False
        abandons = self._queue.abandons
        if self.semaphore.recovers:
            # Whether state was lost is not known, so no new permit is asked for.
            abandons.fail_pending(lambda: error, lambda _: True)
            self._queries.fail(lambda: error)
        for claim in list(self.ledger.waiting):
            abandons.refuse(claim, error)

    def write_again(self, *, arrived: bool) -> None:
        self._heartbeats.in_flight = False
        self._heartbeats.beat()
