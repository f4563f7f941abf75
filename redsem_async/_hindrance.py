"""What keeps a semaphore's calls from being carried out where they are sent."""

import random
from collections.abc import Iterator

from ._backend import Node
from ._backoff import delays

LONGEST_HOLD = 0.2  # seconds between letters to a server that answers, but cannot do as asked


class Hindrance:
    """Another server keeps the semaphore, or none does for now: a passing thing in a cluster.

    Attributes:
        bound_for: the node to go to, once all that was written is answered.
        as_guest: and only for the next letters: the semaphore is still on its way there.
        redirections: in a row.
        error: why nothing can be had for now, if so.
        since: when that began.
        held_back: nothing is written for a moment.
    """

    __slots__ = (
        "_holds",
        "as_guest",
        "bound_for",
        "error",
        "held_back",
        "redirections",
        "since",
    )

    def __init__(self) -> None:
        self.bound_for: Node | None = None
        self.as_guest: bool = False
        self.redirections: int = 0
        self.error: Exception | None = None
        self.since: float = 0.0
        self.held_back: bool = False
        self._holds: Iterator[float] = delays(random.random, longest=LONGEST_HOLD)

    def begin(self, error: Exception, now: float) -> None:
        """Nothing can be had, because of *error*."""
        if self.error is None:
            self.since = now
        self.error = error

    def hold(self) -> float:
        """For how long to write nothing, in seconds."""
        self.held_back = True
        return next(self._holds)

    @property
    def passed(self) -> bool:
        """Whether nothing is left of it."""
        return self.bound_for is None and self.error is None and not self.held_back
