"""The events that observers are notified of."""

from dataclasses import dataclass, field
from typing import Literal

from redsem_async._core.keys import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of the events.

    Attributes:
        name: of the semaphore.
        mode: ``"fair"`` or ``"zset"``, followed by ``"+keys"`` or ``"+share"`` where requests have
            keys, and ``"+slots"`` where permits stand for slots.
        permits: how many the request or the permit stands for.
        key: of the request, for an observer that is registered with ``keys=True``. Otherwise
            None.
    """

    name: str
    mode: Mode
    permits: int
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(Event):
    """A request has to wait. One of granted, abandoned, shed and failed follows, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Event):
    """Base class of the events that end a request.

    Attributes:
        waited: seconds since it was made.
        queued: whether the observer was notified before that it has to wait.
    """

    waited: float
    queued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted(Outcome):
    """A permit is held from now on. One of released, lost and detached follows, once.

    Attributes:
        fencing_token: of the permit.
        permit_id: of the permit. A secret, and the same in all of its events.
    """

    fencing_token: int
    permit_id: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned(Outcome):
    """The caller was cancelled before it had a permit. What it was granted is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed(Outcome):
    """The request was rejected, because the semaphore is full.

    Attributes:
        reason: ``"timeout"`` if nothing became free in time (``AcquireTimeout``), or
            ``"queue full"`` if too many wait already (``QueueFull``).
        retry_after: an estimate of the seconds until a retry may succeed.
    """

    reason: Literal["timeout", "queue full"]
    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Outcome):
    """The request was refused for another reason, say because Redis is away or it was closed.

    Attributes:
        error: that the caller gets.
    """

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitEvent(Event):
    """Base class of the events of a permit.

    Attributes:
        held: seconds since it was granted.
        fencing_token: of the permit.
        permit_id: of the permit. A secret, and the same in all of its events.
    """

    held: float
    fencing_token: int
    permit_id: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed(PermitEvent):
    """The server has refreshed the lease, at the event loop's request.

    Attributes:
        expires_in: seconds for which the permit may be trusted now.
    """

    expires_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(PermitEvent):
    """The permit is on its way back. Its holder no longer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached(PermitEvent):
    """The permit stays held, for the process that adopts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(PermitEvent):
    """The permit cannot be trusted any more.

    Attributes:
        reason: why, in a few words.
        cancels: whether a block that it guards is cancelled for that.
    """

    reason: str
    cancels: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """A reap of this process dropped holders that had expired, or waiters that had died.

    Attributes:
        name: of the semaphore.
        mode: as in other events.
        count: how many.
    """

    name: str
    mode: Mode
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedOff:
    """This process began a back-off, in which no process gets a permit.

    Attributes:
        name: of the semaphore.
        mode: as in other events.
        seconds: for which it pauses.
        key: whose requests it is for, for an observer that is registered with ``keys=True``.
            None for all requests.
    """

    name: str
    mode: Mode
    seconds: float
    key: str | None = None


class Observer:
    """Base class of observers. Each method gets one kind of event, and does nothing here.

    What the library finds out by itself, such as most losses, is notified in an empty context,
    and never in that of another task.
    """

    def queued(self, event: Queued) -> None:
        """A request has to wait."""

    def granted(self, event: Granted) -> None:
        """A request was granted. Called in the context of the task that asked."""

    def abandoned(self, event: Abandoned) -> None:
        """A request was cancelled. Called in the context of the task that asked."""

    def shed(self, event: Shed) -> None:
        """A request was rejected. Called in the context of the task that asked."""

    def failed(self, event: Failed) -> None:
        """A request failed. Called in the context of the task that asked."""

    def refreshed(self, event: Refreshed) -> None:
        """A lease was refreshed."""

    def released(self, event: Released) -> None:
        """A permit was released."""

    def lost(self, event: Lost) -> None:
        """A permit was lost."""

    def detached(self, event: Detached) -> None:
        """A permit was left to the process that adopts it."""

    def reclaimed(self, event: Reclaimed) -> None:
        """Expired holders or dead waiters were dropped."""

    def backed_off(self, event: BackedOff) -> None:
        """A back-off began."""
