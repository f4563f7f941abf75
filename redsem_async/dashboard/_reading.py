"""What was read of a semaphore last, and what that means."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from redsem_async._protocol.views import SemaphoreStatus
from redsem_async._tools.discovery import SemaphoreInfo
from redsem_async._tools.states import Stalled, State, stalled, state_of


@dataclass(frozen=True)
class Reading:
    """What was read of a semaphore last.

    Attributes:
        info: what Redis stores of it.
        status: None if it could not be read.
        error: why it could not be read.
        at: when it was read, by `time.monotonic`.
        lost: what Redis has forgotten of it, in a sentence.
    """

    info: SemaphoreInfo
    status: SemaphoreStatus | None
    error: str
    at: float
    lost: str | None = None

    @cached_property
    def stalled(self) -> Mapping[str, Stalled]:
        """The stalled processes, by their ids."""
        return {} if self.status is None else stalled(self.info, self.status)

    @cached_property
    def state(self) -> State:
        """Its state, and why requests wait."""
        return state_of(self.info, self.status, self.error, self.lost)
