"""Abandon undoes the requests of callers that left."""

from collections.abc import Sequence

from redsem_async._core.errors import SemaphoreError
from redsem_async._hub import calls
from redsem_async._hub.pending import Call, Change
from redsem_async._hub.request import Request
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.operations import Abandon
from redsem_async._protocol.replies import AnyReply, Reply

from . import effects
from .base import Batch


class AbandonBatch(Batch[Request]):
    """Requests and calls of callers that left."""

    __slots__ = ("_void",)

    def __init__(
        self, state: SemaphoreState, requests: Sequence[Request], void: Sequence[Call]
    ) -> None:
        numbers = [request.call for request in requests]
        numbers += [call.number for call in void if not isinstance(call, Change)]
        changes = [call.number for call in void if isinstance(call, Change)]
        queued = [request.queued for request in requests]
        operation = Abandon(queued, max(numbers, default=0), max(changes, default=0))
        super().__init__(state, operation, requests)
        self._void = void

    @classmethod
    def take(cls, state: SemaphoreState) -> "AbandonBatch":
        """The next batch. There is one."""
        leaving, most = state.leaving, state.max_batch
        requests, state.leaving = leaving[:most], leaving[most:]
        void, state.void = state.void, []
        return cls(state, requests, void)

    def apply(self, reply: AnyReply, now: float) -> None:
        assert isinstance(reply, Reply)
        self._forget()
        for call in self._void:
            calls.ended(self.state, call)
        effects.apply(self.state, reply, self.sent_at, now)

    def refused(self, error: SemaphoreError, now: float) -> None:
        self._forget()  # what the server has of them ends with its lease

    def _forget(self) -> None:
        for request in self.items:
            self.state.requests.pop(request.number, None)

    def write_again(self, *, arrived: bool) -> None:
        self.state.leaving[:0] = self.items
        self.state.void[:0] = self._void
        self.state.stirred = True
