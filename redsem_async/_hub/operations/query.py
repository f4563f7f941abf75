"""Status, set_limit, reap and clear: operations that are not batched.

Here is also the queue that they share with adopt and detach: some of these calls are carried out
once at most. A hub numbers them in the order in which it writes them, and the server refuses a
number that is not above the last one that it carried out.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from redsem_async._core.errors import SemaphoreError
from redsem_async._hub.ledger import Ledger
from redsem_async._protocol.operations import Clear, Operation, Reap, SetLimit
from redsem_async._protocol.replies import AnyReply, Reply

from .abandon import AbandonQueue
from .base import Batch


class QueuedCall(ABC):
    """A call in the queue.

    Attributes:
        numbered: whether it is carried out once at most, by its number.
        alone: whether it is written only when no other numbered call is in flight, and before
            the next one. From its number alone the server then knows whether it carried it out.
        number: drawn when it is written, where *renumber* says so.
        was_sent: sent before, without a reply.
    """

    numbered: bool = False
    alone: bool = False

    def __init__(self) -> None:
        self.number: int = 0
        self.renumber: bool = True
        self.was_sent: bool = False

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether to send it, again or at all: not when its caller has got an error."""

    @abstractmethod
    def batch(self, queue: "QueryQueue") -> Batch:
        """The command that is written now. `number` is drawn."""

    @abstractmethod
    def fail(self, error: SemaphoreError, abandons: AbandonQueue) -> None:
        """No reply will come, or it was refused."""

    def withdrawn(self, abandons: AbandonQueue) -> None:
        """It is not wanted any more, and not in flight."""

    def ended(self) -> None:
        """It got its reply, was refused or made void: it will not be carried out any more."""


class QueryQueue:
    """The `calls` to be written, in the order in which they were made.

    *apply* applies what a reply says about the semaphore as a whole; *cleared* is called when
    it was deleted.
    """

    def __init__(
        self,
        ledger: Ledger,
        abandons: AbandonQueue,
        apply: Callable[..., None],
        cleared: Callable[[], None],
    ) -> None:
        self.ledger: Ledger = ledger
        self.abandons: AbandonQueue = abandons
        self.apply: Callable[..., None] = apply
        self.cleared: Callable[[], None] = cleared
        self.calls: deque[QueuedCall] = deque()
        self._numbered_in_flight = 0
        self._alone_in_flight = False

    @property
    def reaps_next(self) -> bool:
        """Whether a reap is to be written already."""
        first = self.calls[0] if self.calls else None
        return isinstance(first, Query) and isinstance(first.operation, Reap)

    def append(self, call: QueuedCall) -> None:
        """Write *call* after the others."""
        self.calls.append(call)
        self.ledger.wake()

    def write_again(self, call: QueuedCall) -> None:
        """Write *call* before the others, if its caller waits on."""
        if call.wanted:
            self.calls.appendleft(call)
            self.ledger.wake()
        else:
            call.withdrawn(self.abandons)

    async def ask(self, query: "Query", timeout: float) -> AnyReply:
        """Write *query*, and wait for its reply for *timeout* seconds.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        future = query.future
        assert future is not None
        self.append(query)
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise self.ledger.route.unavailable()
        finally:
            if future.cancel() and query in self.calls:
                # What is not sent yet never will be, nor does it keep the hub.
                self.calls.remove(query)
                query.withdrawn(self.abandons)
        answer = future.result()
        if isinstance(answer, SemaphoreError):
            raise answer
        return answer

    def next(self) -> QueuedCall | None:
        """The first call, if it may be written now."""
        while self.calls:
            call = self.calls[0]
            if not call.wanted:
                self.calls.popleft()  # an adopt: its claim is among those that leave
            elif call.numbered and (
                self._alone_in_flight or (call.alone and self._numbered_in_flight)
            ):
                return None
            else:
                return call
        return None

    def take(self) -> Batch:
        """The batch of the call that `next` has returned."""
        call = self.calls.popleft()
        if call.numbered:
            self._numbered_in_flight += 1
            self._alone_in_flight = call.alone
            if call.renumber:
                call.number, call.renumber = self.ledger.identity.new_number(), False
        return call.batch(self)

    def landed(self, call: QueuedCall) -> None:
        """A numbered call is not in flight any more."""
        if call.numbered:
            self._numbered_in_flight -= 1
            self._alone_in_flight = self._alone_in_flight and not call.alone
            if self.calls:
                self.ledger.wake()

    def forget_in_flight(self) -> None:
        """The connection was closed on purpose: no reply will come."""
        self._numbered_in_flight, self._alone_in_flight = 0, False

    def fail(self, error: Callable[[], SemaphoreError]) -> None:
        """End every call that is not in flight."""
        while self.calls:
            call = self.calls.popleft()
            call.fail(error(), self.abandons)
            call.withdrawn(self.abandons)


class Query(QueuedCall):
    """An operation, and the future of the caller that waits for its reply, if one does."""

    def __init__(
        self,
        operation: Operation,
        future: "asyncio.Future[AnyReply | SemaphoreError] | None" = None,
    ) -> None:
        super().__init__()
        self.operation: Operation = operation
        self.future: asyncio.Future[AnyReply | SemaphoreError] | None = future
        self.numbered: bool = isinstance(operation, SetLimit | Clear)
        self.alone: bool = self.numbered

    @property
    def wanted(self) -> bool:
        return self.future is None or not self.future.cancelled()

    def batch(self, queue: QueryQueue) -> Batch:
        if isinstance(self.operation, SetLimit | Clear):
            self.operation = self.operation._replace(call=self.number)
        return QueryBatch(queue, self.operation, self)

    def fail(self, error: SemaphoreError, abandons: AbandonQueue) -> None:
        self.settle(error)

    def settle(self, answer: AnyReply | SemaphoreError) -> None:
        """Pass the reply on."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)

    def withdrawn(self, abandons: AbandonQueue) -> None:
        if self.numbered and self.was_sent:
            abandons.make_void(self)  # its bytes may be somewhere still
        else:
            self.ended()


class QueryBatch(Batch):
    """A query."""

    __slots__ = ("_query", "_queue")

    def __init__(self, queue: QueryQueue, operation: Operation, query: Query) -> None:
        super().__init__(queue.ledger, operation)
        self._queue = queue
        self._query = query

    def apply(self, reply: AnyReply) -> None:
        query = self._query
        self._queue.landed(query)
        if isinstance(reply, Reply) and isinstance(self.operation, Reap | SetLimit | Clear):
            continues = not (isinstance(self.operation, Reap) and query.future is not None)
            self._queue.apply(reply, self.sent_at, continues=continues)
        if isinstance(self.operation, SetLimit | Clear):
            self.ledger.right.end()
        query.settle(reply)
        query.ended()
        if isinstance(self.operation, Clear):
            self._queue.cleared()

    def refused(self, error: SemaphoreError) -> None:
        self._queue.landed(self._query)
        self._query.settle(error)
        self._query.ended()

    def write_again(self, *, arrived: bool) -> None:
        query = self._query
        self._queue.landed(query)
        if arrived:
            query.was_sent = True
        elif not query.alone:
            query.renumber = True
        self._queue.write_again(query)
