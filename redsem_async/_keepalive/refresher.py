"""A background task for each held permit, which refreshes it until it is given back.

A permit that is given back before its first refresh is due, as most are, costs no task: it is
noted with others of its due time, under one timer. Due times lie on a grid, so that the refreshes
of many permits travel in one command.
"""

import asyncio
import math
from typing import TYPE_CHECKING, cast

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome, refresh_due
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.hub import Hub
from redsem_async._hub.operations.refresh import Turn
from redsem_async._hub.remote_semaphore import RemoteSemaphore

if TYPE_CHECKING:
    from .watchdog import Watchdog

_RETRY = 0.1  # of the refresh interval, after a refresh that has no reply


class Refresher:
    """The refresh tasks of one hub, and its watchdog, where permits ask for one."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._loop = hub.identity.loop
        self._stalls = hub.identity.stalls
        self._due: dict[float, dict[Claim, RemoteSemaphore]] = {}
        self._turns: dict[float, list[Turn]] = {}
        self._trust_ends: dict[Claim, asyncio.TimerHandle] = {}  # of those with a task
        self._watchdog: Watchdog | None = None

    def add(
        self, claim: Claim, remote: RemoteSemaphore, now: float, latest: float = math.inf
    ) -> None:
        """Keep the permit of *claim* refreshed from *now* on, first at *latest* or before."""
        due = max(now, min(refresh_due(now, claim.terms.refresh_interval), latest))
        if claim.trusted_until <= due:
            due = now  # granted late: there would be nothing left to renew
        group = self._due.get(due)
        if group is None:
            self._stalls.loop_runs(now)
            self._stalls.expect(due)
            group = self._due[due] = {}
            self._loop.call_later(due - now, self._start, due)
        group[claim] = remote
        claim.refreshed_by = group
        if claim.terms.longest_stall is not None:
            self.watchdog().add(claim, remote, now)

    def pause(self, claim: Claim) -> None:
        """The lease is kept for another caller: it is released when a refresh is due."""
        if self._watchdog is not None or not isinstance(claim.refreshed_by, dict):
            self.remove(claim)

    def resume(self, claim: Claim, remote: RemoteSemaphore, now: float) -> None:
        """Another caller uses the lease: refresh it when that is due, whoever uses it."""
        if claim.refreshed_by is None:
            terms = claim.terms
            latest = claim.trusted_until - (terms.lease - terms.refresh_interval)
            self.add(claim, remote, now, latest)

    def remove(self, claim: Claim) -> None:
        """Stop refreshing."""
        if self._watchdog is not None:
            self._watchdog.remove(claim)
        refreshed_by, claim.refreshed_by = claim.refreshed_by, None
        if isinstance(refreshed_by, dict):
            cast("dict[Claim, RemoteSemaphore]", refreshed_by).pop(claim, None)
        elif isinstance(refreshed_by, asyncio.Task):
            refreshed_by.cancel()
            if (timer := self._trust_ends.pop(claim, None)) is not None:
                timer.cancel()

    def watchdog(self) -> "Watchdog":
        """The watchdog, made when first asked for. It ends with the hub's last connection."""
        if self._watchdog is None:
            from .watchdog import Watchdog

            self._watchdog = Watchdog(self._hub.identity, self._hub.backend)
        return self._watchdog

    async def end(self) -> None:
        """The last connection of the hub was closed: end the watchdog."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            await watchdog.end()

    def _start(self, due: float) -> None:
        self._stalls.timer_runs(due)
        for claim, remote in self._due.pop(due).items():
            if claim.state is State.KEPT:
                remote.reuse.give_back(claim)
                continue
            # Decided here and not by the task: this may come after a long stall, and the body
            # has to be cancelled before it goes on.
            if remote.ledger.lose_unless_trusted(claim):
                continue
            task = self._loop.create_task(self._refresh(claim, remote), name="redsem-refresh")
            claim.refreshed_by = task
            self._check_trust(claim, remote)

    def _check_trust(self, claim: Claim, remote: RemoteSemaphore) -> None:
        """Look again when trust ends, unless it is renewed by then.

        By a timer, because timers run before the tasks that became ready in the same turn.
        """
        if remote.ledger.lose_unless_trusted(claim):
            self.remove(claim)
        else:
            left = claim.trusted_until - clock()
            timer = self._loop.call_later(left, self._check_trust, claim, remote)
            self._trust_ends[claim] = timer

    async def _refresh(self, claim: Claim, remote: RemoteSemaphore) -> None:
        interval = claim.terms.refresh_interval
        while not remote.ledger.lose_unless_trusted(claim):
            if claim.trusted_until == claim.hold_ends:
                return  # there is nothing left to renew
            turn = self._turn(interval)
            remote.refreshes.refresh_in_background(claim, turn)
            if await turn is Outcome.UNKNOWN:
                await asyncio.sleep(_RETRY * interval)

    def _turn(self, interval: float) -> Turn:
        """The next time that a refresh is due; one timer for all of that time."""
        now = clock()
        due = refresh_due(now, interval)
        turns = self._turns.get(due)
        if turns is None:
            self._stalls.expect(due)
            turns = self._turns[due] = []
            self._loop.call_later(due - now, self._take_turns, due)
        turn: Turn = self._loop.create_future()
        turns.append(turn)
        return turn

    def _take_turns(self, due: float) -> None:
        self._stalls.timer_runs(due)
        for turn in self._turns.pop(due):
            if not turn.done():
                turn.set_result(None)


def refresher_of(hub: Hub) -> Refresher:
    """The refresher of *hub*, made when first asked for."""
    refresher = hub.keepalive
    if not isinstance(refresher, Refresher):
        refresher = hub.keepalive = Refresher(hub)
    return refresher
