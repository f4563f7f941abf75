"""What clients saw, beside the journal: their stays, from having a permit to letting it go.

A tenure is a lease as the server kept it.

All times are seconds of the server's clock. A stay is the time in which a client trusted a permit:
until it asked for its release, or until trust ended. It is not cut to what the journal says of the
same permit: stays that overlap are too many, whatever the server held.
"""

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from tests.scripts.violations import Findings

SLACK = 0.003  # seconds by which two readings of the machine's clocks may be apart
LATE = 1.0  # seconds by which the journal and the clients' reports may be behind each other

End = Literal["released", "abandoned", "expired", "taken", "flushed"]


@dataclass(slots=True)
class Tenure:
    """A lease as the server kept it."""

    name: str
    token: int
    permits: int
    since: float
    expiry: float
    until: float | None = None
    how: End | None = None

    def end(self, at: float, how: End) -> None:
        """It has ended, unless it had before."""
        if self.until is None:
            self.until, self.how = (self.expiry if how == "expired" else at), how


@dataclass(slots=True)
class Stay:
    """A permit as a client had it.

    Attributes:
        lease: the id of the lease that it used.
        trusted_until: as it was known when the client had it first.
        asked: when release was called.
        released: what that returned.
        killed: the client was, and could not report its last calls.
    """

    client: str
    lease: str
    name: str
    token: int
    permits: int
    since: float
    trusted_until: float
    until: float | None = None
    asked: float | None = None
    released: bool | None = None
    killed: bool = False
    key: str | None = None
    slots: tuple[int, ...] = ()

    @property
    def windows(self) -> dict[str, int]:
        """What it counts against, and how much: the semaphore, its key, and its slots."""
        own = {} if self.key is None else {of_key(self.name, self.key): self.permits}
        slots = {of_slot(self.name, slot): 1 for slot in self.slots}
        return {self.name: self.permits, **own, **slots}


def of_key(name: str, key: str) -> str:
    """One key of a semaphore, among the names of `History`."""
    return f"{name} key {key}"


def of_slot(name: str, slot: int) -> str:
    """One slot of a semaphore, among the same."""
    return f"{name} slot {slot}"


@dataclass(slots=True)
class _Window:
    """Permits held for certain, on one name, up to where all is reported."""

    inside: int = 0
    edges: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class History:
    """Joins the journal's tenures with the clients' stays, and forgets both once they agree."""

    def __init__(
        self,
        findings: Findings,
        ceiling: dict[str, int] | None = None,
    ) -> None:
        self.joined = 0
        self.most_inside: defaultdict[str, int] = defaultdict(int)
        self._findings = findings
        self._ceiling = ceiling or {}
        # By id and token: a server that forgot all grants a late duplicate under its id again.
        self._tenures: dict[tuple[str, int], Tenure] = {}
        self._newest: dict[str, Tenure] = {}
        self._stays: dict[str, Stay] = {}
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)
        self._reported: dict[str, float] = {}  # until when each client has reported all

    def __len__(self) -> int:
        return len(self._tenures) + len(self._stays)

    # -- from the journal

    def granted(
        self, identity: str, name: str, token: int, permits: int, at: float, expiry: float
    ) -> None:
        tenure = Tenure(name, token, permits, at, expiry)
        self._newest[identity] = self._tenures[identity, token] = tenure

    def renewed(self, identity: str, expiry: float) -> None:
        if (tenure := self._newest.get(identity)) is not None:
            tenure.expiry = expiry

    def ended(self, identity: str, at: float, how: End) -> None:
        if (tenure := self._newest.get(identity)) is not None:
            tenure.end(at, how)

    def flushed(self, at: float) -> None:
        for tenure in self._tenures.values():
            tenure.end(at, "flushed")

    # -- from the clients

    def got(self, identity: str, stay: Stay) -> None:
        self._stays[identity] = stay

    def doubts(self, identity: str, at: float) -> None:
        """A client may trust a permit for less from now on: a killed one cannot say how long."""
        if (stay := self._stays.get(identity)) is not None:
            stay.trusted_until = min(stay.trusted_until, at)

    def left(
        self, identity: str, until: float, asked: float | None, released: bool | None
    ) -> None:
        """A client's certain holding ended."""
        if (stay := self._stays.get(identity)) is not None:  # or a violation already
            stay.until, stay.asked, stay.released = until, asked, released

    def reported(self, client: str, until: float = -math.inf) -> None:
        """All that *client* did before *until* is known."""
        self._reported[client] = until

    def died(self, client: str, at: float) -> None:
        """A killed client held until then what it held for certain."""
        for identity, stay in list(self._stays.items()):
            if stay.client == client and stay.until is None:
                stay.killed = True
                self.left(identity, min(at, max(stay.trusted_until, stay.since)), None, None)
        self._reported.pop(client, None)

    # -- both

    def advance(self, journalled: float) -> None:
        """Judge what is before *journalled* and is reported by all: the past is complete."""
        settled = min((journalled, *self._reported.values()))
        self._settle(settled)
        in_use = {stay.lease for stay in self._stays.values()}
        for (identity, token), tenure in list(self._tenures.items()):
            if tenure.expiry < settled - LATE:
                tenure.end(tenure.expiry, "expired")  # and no script has come by since
            over = tenure.until is not None and tenure.until < settled - LATE
            if over and identity not in in_use:
                del self._tenures[identity, token]
                if self._newest.get(identity) is tenure:
                    del self._newest[identity]
        # A stay that is not over has edges to come.
        pending = (stay.since for stay in self._stays.values())
        horizon = min(settled, min(pending, default=math.inf))
        for name, window in list(self._windows.items()):
            self._sweep(name, window, horizon)
            if not window.edges:
                assert window.inside == 0
                del self._windows[name]

    def finish(self) -> None:
        """All is reported, and the journal is at its end."""
        for identity, stay in list(self._stays.items()):
            if stay.until is None:
                self._broken("each stay ends", stay.name, f"{identity} of {stay.client}")
                self.left(identity, stay.trusted_until, None, None)
        self._reported.clear()
        self.advance(math.inf)
        self._tenures.clear()
        self._newest.clear()

    def _settle(self, settled: float) -> None:
        """Judge each stay that is over, once the journal is past its end.

        Not before: an acquire that was not answered is sent, and granted, again. Then its tenure
        is yet to come.
        """
        for identity, stay in list(self._stays.items()):
            if stay.until is None or stay.until >= settled - LATE:
                continue
            del self._stays[identity]
            tenure = self._tenures.get((stay.lease, stay.token)) or self._newest.get(stay.lease)
            if tenure is None:
                detail = f"{stay.client} has {identity}, which was not granted"
                self._broken("what is handed out was granted", stay.name, detail)
            else:
                self._join(identity, tenure, stay)

    def _join(self, identity: str, tenure: Tenure, stay: Stay) -> None:
        assert stay.until is not None
        self.joined += 1
        name, detail = stay.name, f"{identity}: {stay} of {tenure}"
        if (stay.name, stay.token, stay.permits) != (tenure.name, tenure.token, tenure.permits):
            self._broken("tokens are the journal's", name, detail)
        if stay.since < tenure.since - SLACK:
            self._broken("nothing before its grant", name, detail)
        # A client that is cut off cannot know that its permit was taken: it trusts it until the
        # confirmed lease ends. What a killed one gave back at last it could not say.
        taken = tenure.how in ("taken", "flushed")
        gave_back = tenure.how in ("released", "abandoned") and stay.killed
        ended = tenure.expiry if tenure.until is None else tenure.until
        most = tenure.expiry if taken else ended
        if stay.until > most + SLACK and not gave_back:
            self._broken("trust ends first", name, detail)
        # Sent twice, because the first was lost: then it was trusted when it was first sent.
        held = tenure.how == "released" or (stay.asked or math.inf) <= tenure.expiry + SLACK
        if stay.released and not held:
            self._broken("released only if it was held", name, detail)
        until = stay.until
        if gave_back or taken:
            until = min(until, ended)
        if until > stay.since:
            for each, permits in stay.windows.items():
                edges = self._windows[each].edges
                heapq.heappush(edges, (stay.since, permits))
                heapq.heappush(edges, (until, -permits))

    def _sweep(self, name: str, window: _Window, horizon: float) -> None:
        most = self._ceiling.get(name, math.inf)
        while window.edges and window.edges[0][0] < horizon:
            at, change = heapq.heappop(window.edges)
            window.inside += change
            self.most_inside[name] = max(self.most_inside[name], window.inside)
            if change > 0 and window.inside > most:
                detail = f"{window.inside} of {most} permits were held for certain at {at:.6f}"
                self._broken("certain holding fits the limit", name, detail)

    def _broken(self, rule: str, name: str, detail: str) -> None:
        self._findings.add(rule, name, detail)
