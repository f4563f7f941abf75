"""A background task for each held permit, which refreshes it until it is released.

A permit that is released before its first refresh is due, as most are, costs no task. It is noted
with others of its due time, under one timer. Due times lie on a grid, so that the refreshes of
many permits travel in one command.
"""

import asyncio
from contextvars import Context

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome

from .identity import HubIdentity, start_task
from .model import Lease, LeaseState, Wakeup
from .state import SemaphoreState

_RETRY = 0.1  # of the refresh interval, after a refresh that has no reply


def refresh_due(now: float, interval: float) -> float:
    """When to refresh a permit that was granted or refreshed at *now*.

    At most *interval* later, and at least three quarters of it. Due times are rounded down to
    a grid that all permits share, so that their refreshes travel together.
    """
    tick = interval / 4
    return (now + interval) // tick * tick


class Refresher:
    """The refresh tasks of one hub."""

    def __init__(self, identity: HubIdentity) -> None:
        self.identity: HubIdentity = identity
        self._loop = identity.loop
        self._noted: dict[float, dict[Lease, SemaphoreState]] = {}
        self._wakeups: dict[float, list[Wakeup]] = {}
        self._tasks: dict[Lease, asyncio.Task[None]] = {}

    def add(self, lease: Lease, semaphore: SemaphoreState, now: float) -> None:
        """Keep *lease* refreshed from *now* on."""
        terms = lease.terms
        since = lease.trusted_until - terms.lease + terms.margin
        due = refresh_due(since, terms.refresh_interval)
        if due < now or lease.trusted_until <= due:
            due = now  # granted late, so that there would be nothing left to refresh
        group = self._noted.get(due)
        if group is None:
            group = self._new_group(due, now)
        group[lease] = semaphore
        lease.noted_at = due

    def remove(self, lease: Lease) -> None:
        """Stop refreshing."""
        noted_at, lease.noted_at = lease.noted_at, None
        if noted_at is not None and (group := self._noted.get(noted_at)) is not None:
            group.pop(lease, None)
        if self._tasks and (task := self._tasks.pop(lease, None)) is not None:
            task.cancel()

    def _new_group(self, at: float, now: float) -> dict[Lease, SemaphoreState]:
        """For the leases to look at at that time, with one timer for all of them."""
        self._loop.call_later(at - now, self._look, at, context=Context())
        return self._noted.setdefault(at, {})

    def _look(self, at: float) -> None:
        """The first refresh of each lease that is noted is due, or trust in it ends.

        In a timer and not in the tasks, because this may come after a long stall, and the body has
        to be cancelled before it continues. Timers run before the tasks that became ready in the
        same turn.
        """
        now = clock()
        for lease, semaphore in self._noted.pop(at).items():
            if semaphore.lose_unless_trusted(lease):
                self._lost(lease, semaphore)
                continue
            if lease not in self._tasks:
                task = start_task(self._loop, self._refresh(lease, semaphore), "redsem-refresh")
                self._tasks[lease] = task
            interval, end = lease.terms.refresh_interval, lease.trusted_until
            if (before := refresh_due(end - interval, interval)) > now:
                end = before
            group = self._noted.get(end)
            if group is None:
                group = self._new_group(end, now)
            group[lease] = semaphore
            lease.noted_at = end

    def _lost(self, lease: Lease, semaphore: SemaphoreState) -> None:
        self.remove(lease)
        if lease.is_nobodys:  # no task here releases it
            if lease.state is not LeaseState.ENDED:
                _ = semaphore.give_back(lease, clock(), trusted=False)
            semaphore.writer.settle(semaphore)

    async def _refresh(self, lease: Lease, semaphore: SemaphoreState) -> None:
        interval = lease.terms.refresh_interval
        while not semaphore.lose_unless_trusted(lease):
            if lease.is_nobodys or lease.trusted_until == lease.hold_ends:
                return  # there is nothing left to refresh
            wakeup = self._next_wakeup(interval)
            semaphore.refresh(lease).wakeups.append(wakeup)
            semaphore.writer.settle(semaphore)
            if await wakeup is Outcome.UNKNOWN:
                await asyncio.sleep(_RETRY * interval)

    def _next_wakeup(self, interval: float) -> Wakeup:
        """The next time that a refresh is due, with one timer for all of that time."""
        now = clock()
        due = refresh_due(now, interval)
        wakeups = self._wakeups.get(due)
        if wakeups is None:
            wakeups = self._wakeups[due] = []
            self._loop.call_later(due - now, self._wake, due)
        wakeup: Wakeup = self._loop.create_future()
        wakeups.append(wakeup)
        return wakeup

    def _wake(self, due: float) -> None:
        for wakeup in self._wakeups.pop(due):
            if not wakeup.done():
                wakeup.set_result(None)
