"""The checker of the journal: linear work, entry by entry, in the order in which Redis ran them.

Calls are judged as in every world, and what clients trusted by what the server held.

All times are seconds of the server's clock. A stay is the time in which a client trusted a permit:
until it asked for its release, or until trust ended.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from redsem_async._protocol.operations import Abandon, Adopt, Release
from tests.scripts.recording import Entry, Flushed, Record
from tests.worlds.judge import EXPIRY_SLACK, Judge
from tests.worlds.look import Permit, Ran

SLACK = 0.003  # seconds by which two readings of the machine's clocks may be apart
LATE = 1.0  # seconds by which the journal and the clients' reports may be behind each other
REMEMBERED = 60.0  # seconds for which a tenure that has ended is known
TRACE = 24  # entries of one semaphore
MOST_KEPT = 200  # things that are wrong
COMPLETE = "the journal is complete"
GRANTED = "what is handed out was granted"
EARLY = "nothing is trusted before its grant"
TRUSTED = "trust ends first"


class Stay(NamedTuple):
    """A permit as a client had it. Its facts are as they were granted, its expiry aside."""

    client: str
    id: str
    permit: Permit
    since: float
    until: float


@dataclass(slots=True)
class Tenure:
    """A permit as the server held it.

    Attributes:
        until: when it was released or taken.
        taken: somebody else ended it: who is cut off cannot know that.
    """

    permit: Permit
    since: float
    expiry: float
    until: float = math.inf
    taken: bool = False

    def end(self, at: float, *, taken: bool) -> None:
        if self.until == math.inf and at <= self.expiry:
            self.until, self.taken = at, taken


class JournalChecker:
    """Feed it the journal and the stays; `wrong` says what was found.

    Attributes:
        traces: what led to the first that is wrong.
        scripts: how often each ran, by mode.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # of broken rules
        self.wrong: list[str] = []
        self.traces: list[list[str]] = []
        self.scripts: Counter[str] = Counter()
        self.grants = self.joined = 0
        self._judges: defaultdict[str, Judge] = defaultdict(Judge)
        self._last: dict[str, Record] = {}
        self._recent: defaultdict[str, deque[Entry]] = defaultdict(lambda: deque(maxlen=TRACE))
        # By id and token: a server that forgot all grants a late duplicate under its id again.
        self._tenures: dict[tuple[str, int], Tenure] = {}
        self._many = 1000  # tenures, from which on it is worth while to forget old ones
        self._stays: list[Stay] = []

    def broken(self, rule: str, detail: str) -> None:
        self.counts[rule] += 1
        if len(self.wrong) < MOST_KEPT:
            self.wrong.append(f"{rule}: {detail}")

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Flushed):
                self._last.clear()
                for judge in self._judges.values():
                    judge.sums = ()
                for tenure in self._tenures.values():
                    tenure.end(entry.server_us / 1e6, taken=True)
            else:
                self._follow(entry)

    def _follow(self, record: Record) -> None:
        self.scripts[f"{record.mode} {record.operation}"] += 1
        base, found = record.base, self.counts.total()
        self._recent[base].append(record)
        before, after = record.look(record.before), record.look(record.after)
        last = self._last.get(base)
        if last is not None and not _goes_on(last, record):
            self.broken(COMPLETE, f"{base} changed before {record.call}")
        self._last[base] = record
        ran = Ran(before, record.call, record.hub, record.answer, after, record.told)
        for rule, detail in self._judges[base].ran(ran):
            self.broken(rule, f"{base} {detail}")
        at, ahead = record.server_us / 1e6, record.ahead_us // 1000
        own = isinstance(record.call, Abandon) or (
            isinstance(record.call, Release) and record.call.owner == record.hub
        )
        for identity, was in before.live.items():
            tenure = self._tenures.get((identity, was.token))
            if tenure is not None and (now := after.live.get(identity)):
                tenure.expiry = (now.expiry_ms - ahead) / 1000
            elif tenure is not None:
                tenure.end(at, taken=not own)
        for identity in ran.new:
            permit = after.live[identity]
            self.granted(identity, permit, at, (permit.expiry_ms - ahead) / 1000)
            self.grants += not isinstance(record.call, Adopt)
        if self.counts.total() > found and len(self.traces) < 5:
            self.traces.append([str(entry) for entry in self._recent[base]])

    def granted(self, identity: str, permit: Permit, at: float, expiry: float) -> None:
        self._tenures[identity, permit.token] = Tenure(permit, at, expiry)

    # -- what clients saw

    def left(self, stay: Stay) -> None:
        """A client trusts a permit no more."""
        self._stays.append(stay)

    def advance(self, journalled: float) -> None:
        """Judge the stays that ended before *journalled*, to where the journal is known.

        Not those of a moment ago: an acquire that was not answered is sent, and granted, again.
        """
        for stay in self._stays:
            if stay.until < journalled - LATE:
                self._judge(stay)
        self._stays = [stay for stay in self._stays if stay.until >= journalled - LATE]
        if len(self._tenures) > self._many:
            old = journalled - REMEMBERED
            self._tenures = {i: t for i, t in self._tenures.items() if t.expiry > old}
            self._many = 1000 + 2 * len(self._tenures)

    def _judge(self, stay: Stay) -> None:
        tenure = self._tenures.get((stay.id, stay.permit.token))
        detail = f"{stay} of {tenure}"
        if tenure is None or tenure.permit[1:] != stay.permit[1:]:
            self.broken(GRANTED, detail)
            return
        self.joined += 1
        if stay.since < tenure.since - SLACK:
            self.broken(EARLY, detail)
        ends = tenure.expiry if tenure.taken else min(tenure.expiry, tenure.until)
        if stay.until > ends + SLACK:
            self.broken(TRUSTED, detail)


def _goes_on(last: Record, record: Record) -> bool:
    """Whether only expiries changed the keys between two scripts."""
    passed = (record.server_us - last.server_us) / 1000
    were = {key.kind: key.members for key in last.after}
    left = {key.kind for key in last.after if not 0 <= key.left_ms <= passed + EXPIRY_SLACK}
    found = {key.kind: key.members for key in record.before}
    return left <= found.keys() and found.items() <= were.items()
