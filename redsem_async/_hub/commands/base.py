"""A batch is one command, with the requests, leases or calls that it is for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from redsem_async._core.config import Slot
from redsem_async._core.errors import (
    BackendError,
    LayoutMismatch,
    ModeMismatch,
    SemaphoreError,
    SlotsMismatch,
)
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.backend import Command
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Operation
from redsem_async._protocol.replies import AnyReply

_TO_WRITE_AGAIN = frozenset(
    {
        ErrorKind.RETRY_NOW,
        ErrorKind.BUSY,
        ErrorKind.READ_ONLY,
        ErrorKind.MOVED,
        ErrorKind.ASK,
        ErrorKind.RETRY_LATER,
    }
)


T = TypeVar("T")


class Batch(Command, ABC, Generic[T]):
    """A command of one semaphore. It ends in one of three ways.

    It gets its reply, or it is refused, or it has to be written again because its connection was
    lost or because the server did not carry it out.

    Attributes:
        items: the requests, leases or calls of this command.
    """

    __slots__ = ("items", "state")

    def __init__(self, state: SemaphoreState, operation: Operation, items: Sequence[T]) -> None:
        self.semaphore = self.state = state
        self.operation = operation
        self.tag = 0
        self.sent_at = 0.0
        self.items: Sequence[T] = items

    @property
    def slots(self) -> Sequence[Slot] | None:
        """The slots of the caller, where the command has them."""
        return None

    def settle_error(self, error: CommandError, now: float) -> None:
        """Apply an error reply."""
        if error.kind in _TO_WRITE_AGAIN:
            self.state.introduction.sent = False
            self.write_again(arrived=False)
        else:
            self.refused(error_for(self.state, error, self.slots), now)

    @abstractmethod
    def apply(self, reply: AnyReply, now: float) -> None:
        """Apply the reply, which came *now*."""

    @abstractmethod
    def refused(self, error: SemaphoreError, now: float) -> None:
        """The command failed, or was carried out in part, and sending it again will not help."""

    @abstractmethod
    def write_again(self, *, arrived: bool) -> None:
        """Have the command written again, in its place. It may have *arrived* all the same."""


def error_for(
    state: SemaphoreState, refusal: CommandError, slots: Sequence[Slot] | None = None
) -> SemaphoreError:
    """The error to raise for an error reply that another attempt does not mend.

    *slots* are those of the caller.
    """
    error: SemaphoreError
    if refusal.layout is not None:
        error = LayoutMismatch(state.name, *refusal.layout)
    elif refusal.use is not None:
        error = ModeMismatch(state.name, state.address.kind, *refusal.use)
    elif refusal.slots:
        own = ", ".join(map(str, slots or ()))
        error = SlotsMismatch(state.name, own, ", ".join(refusal.slots))
    else:
        error = BackendError(state.name, str(refusal.error))
    error.__cause__ = refusal.error
    return error


AnyBatch = Batch[Any]
