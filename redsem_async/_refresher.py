"""A background task for each held permit, that refreshes it until it is given back.

A permit that is given back before its first refresh is due, as most are, costs no task: it is
noted with others of its due time, under one timer. Due times lie on a grid, so that the refreshes
of many permits travel in one command.
"""

import asyncio
import weakref
from typing import cast

from ._claim import Claim, State
from ._clock import now as clock
from ._lane import Identity
from ._lease import Outcome, refresh_due

_RETRY = 0.1  # of the refresh interval, after a refresh that was not answered


class Refresher:
    """The refresh tasks of one hub."""

    def __init__(self, hub: Identity) -> None:
        self._loop = hub.loop
        self._due: dict[float, dict[Claim, None]] = {}
        self._turns: dict[float, list[asyncio.Future[None]]] = {}

    def watch(self, claim: Claim, now: float) -> None:
        """Keep the permit of *claim* refreshed from *now* on."""
        due = refresh_due(now, claim.terms.refresh_interval)
        if claim.trusted_until <= due:
            due = now  # heard of late: there would be nothing left to renew
        group = self._due.get(due)
        if group is None:
            group = self._due[due] = {}
            self._loop.call_later(due - now, self._start, due)
        group[claim] = None
        claim.watched_by = group
        if claim.terms.longest_stall is not None:
            claim.lane.hub.guardian().watch(claim, now)

    def _start(self, due: float) -> None:
        for claim in self._due.pop(due):
            # Decided here and not by the task: this may come after a long stall, and the body
            # must be cancelled before it goes on.
            if lose_unless_trusted(claim):
                continue
            task = self._loop.create_task(self._refresh(claim), name="redsem-refresh")
            claim.watched_by = task
            self._see_to_trust(claim)

    def _see_to_trust(self, claim: Claim) -> None:
        """Look again when trust ends, unless it is renewed by then.

        By a timer, for those run before the tasks that became ready in the same turn.
        """
        if claim.watched_by is None:
            return
        if lose_unless_trusted(claim):
            unwatch(claim)
        else:
            self._loop.call_later(claim.trusted_until - clock(), self._see_to_trust, claim)

    async def _refresh(self, claim: Claim) -> None:
        interval = claim.terms.refresh_interval
        while not lose_unless_trusted(claim):
            outcome = await claim.lane.refresh(claim)
            if outcome is Outcome.UNKNOWN:
                await asyncio.sleep(_RETRY * interval)
            else:
                await self._turn(interval)

    def _turn(self, interval: float) -> "asyncio.Future[None]":
        """The next time that a refresh is due; one timer for all of that time."""
        now = clock()
        due = refresh_due(now, interval)
        turns = self._turns.get(due)
        if turns is None:
            turns = self._turns[due] = []
            self._loop.call_later(due - now, self._take_turns, due)
        turn: asyncio.Future[None] = self._loop.create_future()
        turns.append(turn)
        return turn

    def _take_turns(self, due: float) -> None:
        for turn in self._turns.pop(due):
            if not turn.done():
                turn.set_result(None)


def unwatch(claim: Claim) -> None:
    """Stop refreshing."""
    if claim.terms.longest_stall is not None:
        claim.lane.hub.guardian().forget(claim)
    watched_by, claim.watched_by = claim.watched_by, None
    if isinstance(watched_by, dict):
        cast("dict[Claim, None]", watched_by).pop(claim, None)
    elif isinstance(watched_by, asyncio.Task):
        watched_by.cancel()


def lose_unless_trusted(claim: Claim) -> bool:
    """Whether *claim* is lost, because its trusted time ran out if for nothing else."""
    if claim.state is State.HELD and clock() >= claim.trusted_until:
        claim.lose(claim.doubt)
    return claim.state is not State.HELD


def refresher_of(hub: Identity) -> Refresher:
    """The refresher of *hub*, made when first asked for."""
    refresher = _REFRESHERS.get(hub)
    if refresher is None:
        refresher = _REFRESHERS[hub] = Refresher(hub)
    return refresher


_REFRESHERS: weakref.WeakKeyDictionary[Identity, Refresher] = weakref.WeakKeyDictionary()
