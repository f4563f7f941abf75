"""A batch: one command, with the claims or calls that it is for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from redsem_async._core.config import Slot
from redsem_async._core.errors import (
    BackendError,
    LayoutMismatch,
    ModeMismatch,
    SemaphoreError,
    SlotsMismatch,
)
from redsem_async._hub.ledger import Ledger
from redsem_async._protocol.backend import Command
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Operation
from redsem_async._protocol.replies import AnyReply

MAX_BATCH = 256  # requests or permits in one script, because it holds the server for as long
MAX_KEYED = 32  # the same where each may have another key, for all of these are looked at

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


class Batch(Command, ABC):
    """A command of one semaphore. It ends in one of three ways.

    It gets its reply; it is refused; or it has to be written again, because its connection was
    lost or because the server did not carry it out.
    """

    __slots__ = ("ledger", "replied_at")

    def __init__(self, ledger: Ledger, operation: Operation) -> None:
        super().__init__(ledger.semaphore, operation)
        self.ledger: Ledger = ledger
        self.replied_at: float = 0.0

    @property
    def lone(self) -> bool:
        """Whether it is for one claim alone."""
        return True

    @property
    def slots(self) -> Sequence[Slot] | None:
        """The slots of the caller, where the command has them."""
        return None

    def settle(self, reply: AnyReply | CommandError) -> None:
        """Apply the reply, or the error reply."""
        if not isinstance(reply, CommandError):
            self.apply(reply)
        elif reply.kind in _TO_WRITE_AGAIN:
            self.ledger.introduce_again()
            self.write_again(arrived=False)
        else:
            self.refused(error_for(self.ledger, reply, self.slots))

    @abstractmethod
    def apply(self, reply: AnyReply) -> None:
        """Apply the reply."""

    @abstractmethod
    def refused(self, error: SemaphoreError) -> None:
        """It was not carried out, or in part, and sending it again will not help."""

    @abstractmethod
    def write_again(self, *, arrived: bool) -> None:
        """Have it written again, before what is new; it may have *arrived* all the same."""


def max_batch(ledger: Ledger) -> int:
    """How many requests, or permits, one command of this semaphore is for."""
    return MAX_KEYED if ledger.semaphore.address.keyed else MAX_BATCH


def error_for(
    ledger: Ledger, refusal: CommandError, slots: Sequence[Slot] | None = None
) -> SemaphoreError:
    """The error to raise for an error reply that another attempt does not mend.

    *slots* are those of the caller.
    """
    error: SemaphoreError
    if refusal.layout is not None:
        error = LayoutMismatch(ledger.name, *refusal.layout)
    elif refusal.use is not None:
        error = ModeMismatch(ledger.name, ledger.semaphore.address.kind, *refusal.use)
    elif refusal.slots:
        own = ", ".join(map(str, slots or ()))
        error = SlotsMismatch(ledger.name, own, ", ".join(refusal.slots))
    else:
        error = BackendError(ledger.name, str(refusal.error))
    error.__cause__ = refusal.error
    return error
