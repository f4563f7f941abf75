"""A background task for each held permit, which refreshes it until it is released.

A permit that is released before its first refresh is due, as most are, costs no task. It is noted
with others of its due time, under one timer. Due times lie on a grid, so that the refreshes of
many permits travel in one command.
"""

import asyncio
from contextvars import Context

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome, clock_margin, refresh_due

from .identity import HubIdentity
from .lease import Lease
from .pending import Wakeup
from .remote_semaphore import RemoteSemaphore
from .tasks import start_task
from .trust import lose_unless_trusted

_RETRY = 0.1  # of the refresh interval, after a refresh that has no reply


class Refresher:
    """The refresh tasks of one hub."""

    def __init__(self, identity: HubIdentity) -> None:
        self._loop = identity.loop
        self._stalls = identity.stalls
        self._due: dict[float, dict[Lease, RemoteSemaphore]] = {}
        self._wakeups: dict[float, list[Wakeup]] = {}
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        self._trust_ends: dict[Lease, asyncio.TimerHandle] = {}  # of those with a task

    def add(self, lease: Lease, remote: RemoteSemaphore, now: float) -> None:
        """Keep *lease* refreshed from *now* on."""
        terms = lease.terms
        since = lease.trusted_until - terms.lease + clock_margin(terms.lease)
        due = refresh_due(since, terms.refresh_interval)
        if due < now or lease.trusted_until <= due:
            due = now  # granted late, so that there would be nothing left to refresh
        group = self._due.get(due)
        if group is None:
            self._stalls.loop_runs(now)
            self._stalls.expect(due)
            group = self._due[due] = {}
            self._loop.call_later(due - now, self._start, due, context=Context())
        group[lease] = remote
        lease.refreshed_at = due

    def remove(self, lease: Lease) -> None:
        """Stop refreshing."""
        due, lease.refreshed_at = lease.refreshed_at, None
        if due is not None and (group := self._due.get(due)) is not None:
            group.pop(lease, None)
        elif self._tasks and (task := self._tasks.pop(lease, None)) is not None:
            task.cancel()
            if (timer := self._trust_ends.pop(lease, None)) is not None:
                timer.cancel()

    def _start(self, due: float) -> None:
        self._stalls.timer_runs(due)
        for lease, remote in self._due.pop(due).items():
            # Decided here and not by the task, because this may come after a long stall, and the
            # body has to be cancelled before it continues.
            if lose_unless_trusted(remote.state, lease):
                continue
            task = start_task(self._loop, self._refresh(lease, remote), "redsem-refresh")
            self._tasks[lease] = task
            self._check_trust(lease, remote)

    def _check_trust(self, lease: Lease, remote: RemoteSemaphore) -> None:
        """Look again when trust ends, unless it is refreshed by then.

        By a timer, because timers run before the tasks that became ready in the same turn.
        """
        if lose_unless_trusted(remote.state, lease):
            self.remove(lease)
            if lease.is_nobodys:
                remote.give_back(lease)
        else:
            left = lease.trusted_until - clock()
            timer = self._loop.call_later(left, self._check_trust, lease, remote)
            self._trust_ends[lease] = timer

    async def _refresh(self, lease: Lease, remote: RemoteSemaphore) -> None:
        interval = lease.terms.refresh_interval
        while not lose_unless_trusted(remote.state, lease):
            if lease.is_nobodys or lease.trusted_until == lease.hold_ends:
                return  # there is nothing left to refresh
            wakeup = self._next_wakeup(interval)
            remote.refresh_in_background(lease, wakeup)
            if await wakeup is Outcome.UNKNOWN:
                await asyncio.sleep(_RETRY * interval)

    def _next_wakeup(self, interval: float) -> Wakeup:
        """The next time that a refresh is due, with one timer for all of that time."""
        now = clock()
        due = refresh_due(now, interval)
        wakeups = self._wakeups.get(due)
        if wakeups is None:
            self._stalls.expect(due)
            wakeups = self._wakeups[due] = []
            self._loop.call_later(due - now, self._wake, due)
        wakeup: Wakeup = self._loop.create_future()
        wakeups.append(wakeup)
        return wakeup

    def _wake(self, due: float) -> None:
        self._stalls.timer_runs(due)
        for wakeup in self._wakeups.pop(due):
            if not wakeup.done():
                wakeup.set_result(None)
