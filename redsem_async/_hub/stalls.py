"""When the event loop was blocked, so that time passed without this process."""

import math
from typing import NamedTuple

from redsem_async._core.clock import now as clock

from .model import Lease


class Gap(NamedTuple):
    """A time in which no timer of refreshes ran. From *due* on one should have."""

    start: float
    due: float
    end: float


class Stalls:
    """When one event loop was blocked."""

    def __init__(self) -> None:
        self._ran_at = clock()  # the loop, as far as is known
        self._gap = Gap(self._ran_at, self._ran_at, self._ran_at)  # the last one
        self._due: set[float] = set()

    def loop_runs(self, now: float) -> None:
        """Note that the loop runs. If a timer is late, it may have been blocked until now."""
        if now < self._earliest():
            self._ran_at = now

    def expect(self, due: float) -> None:
        """A timer of refreshes was set."""
        self._due.add(due)

    def timer_runs(self, due: float) -> None:
        """Note that the loop runs. If it was blocked, all that was due meanwhile runs now."""
        now = clock()
        self._due.discard(due)
        if due > self._ran_at:
            self._gap = Gap(self._ran_at, due, now)
        self._ran_at = now

    def blocked_for(self, lease: Lease) -> float | None:
        """How long the loop was blocked when trust in *lease* ended. None if it ran.

        It was blocked if a refresh timer is, or was, so late that trust had to end. If little
        trust was left before that, refreshes had failed, so the loop is not the cause. May be
        called in any thread.
        """
        gap, trusted, terms = self._gap, lease.trusted_until, lease.terms
        due, now = self._earliest(), clock()
        if self._ran_at < due < now:  # it is blocked still, or runs again just now
            gap = Gap(self._ran_at, due, now)
        spare = terms.lease - terms.refresh_interval - terms.margin
        late = gap.end - gap.due >= min(spare, terms.lease / 4)
        failed = trusted - gap.start < 0.9 * spare
        if late and not failed and trusted <= gap.end and trusted < lease.hold_ends:
            return gap.end - gap.start
        return None

    def _earliest(self) -> float:
        """When the next timer is due."""
        return min(self._due.copy(), default=math.inf)
