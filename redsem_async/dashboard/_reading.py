"""What was read of a semaphore last, and what that means."""

from dataclasses import dataclass
from functools import cached_property

from redsem_async._integrations.discovery import SemaphoreInfo
from redsem_async._protocol.status import SemaphoreStatus

from ._stalled import Stalled, stalled
from ._words import State, state_of


@dataclass(frozen=True)
class Reading:
    """What was read of a semaphore last.

    Attributes:
        info: what Redis stores of it.
        status: None if it could not be read.
        error: why it could not be read.
        at: when it was read, by `time.monotonic`.
    """

    info: SemaphoreInfo
    status: SemaphoreStatus | None
    error: str | None
    at: float

    @cached_property
    def stalled(self) -> dict[str, Stalled]:
        """The stalled processes, by their ids."""
        return stalled(self.info, self.status)

    @cached_property
    def state(self) -> State:
        """Why requests wait, if they do, in words."""
        return state_of(self.info, self.status, self.error, [*self.stalled.values()])
