"""The checker of the journal: linear work, entry by entry, in the order in which Redis ran them.

It follows the journal through the keys as the writes left them (`writes`). Calls are judged as in
every world, by the keys, and what the clients saw beside them (`history`).
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable

from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    AnyOperation,
    Refresh,
    Release,
)
from tests.scripts.history import End, History
from tests.scripts.recording import Entry, Flushed, Record
from tests.scripts.violations import Findings
from tests.scripts.writes import Changes, Keys
from tests.worlds.judge import Judge

TRACE = 24  # entries of one semaphore
MOST_TRACES = 5


class JournalChecker:
    """Feed it the journal; `findings` says what was wrong.

    Args:
        ceiling: of names whose limit is known, the most that clients may hold for certain.
    """

    def __init__(self, ceiling: dict[str, int] | None = None) -> None:
        self.findings = Findings()
        self.history = History(self.findings, ceiling)
        self.scripts: Counter[str] = Counter()
        self.operations = 0  # requests, releases, refreshes ...: a script may be for many
        self.grants = 0
        self.traces: list[list[str]] = []  # what led to the first violations
        self._semaphores: dict[str, Keys] = {}
        self._judges: defaultdict[str, Judge] = defaultdict(Judge)
        self._recent: dict[str, deque[Entry]] = {}

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.findings.index += 1
            if isinstance(entry, Flushed):
                self._flush(entry)
            else:
                self._follow(entry)

    def _flush(self, entry: Flushed) -> None:
        for base in self._semaphores:
            self._recent[base].append(entry)
        self._semaphores.clear()
        self.history.flushed(entry.server_us / 1e6)

    def _follow(self, record: Record) -> None:
        self.scripts[f"{record.mode} {record.operation}"] += 1
        self.operations += _size(record.call)
        base, found = record.base, self.findings.counts.total()
        recent = self._recent.setdefault(base, deque(maxlen=TRACE))
        recent.append(record)
        keys = self._semaphores.setdefault(base, Keys(base, self.findings))
        changes = keys.follow(record)
        looks = changes.before, record.call, record.hub, record.answer, changes.after
        for rule, detail in self._judges[base].ran(*looks):
            self.findings.add(rule, base, detail)
        if not isinstance(record.call, Adopt):
            self.grants += len(changes.added)
        self._note(record, keys, changes)
        if self.findings.counts.total() > found and len(self.traces) < MOST_TRACES:
            self.traces.append(list(map(_described, recent)))

    def _note(self, record: Record, keys: Keys, changes: Changes) -> None:
        history, at = self.history, record.server_us / 1e6
        name = record.base.partition("{")[2][:-2]
        behind = keys.now - (record.server_us // 1000)  # of the server, to the semaphore's clock
        for identity, holder in changes.added.items():
            expiry = (holder.expiry_ms - behind) / 1000
            history.granted(identity, name, holder.token, holder.permits, at, expiry)
        for identity, holder in changes.renewed.items():
            history.renewed(identity, (holder.expiry_ms - behind) / 1000)
        call = record.call
        how: End = "taken"
        if isinstance(call, Abandon):
            how = "abandoned"
        elif isinstance(call, Release) and call.owner == record.hub:
            how = "released"
        for identity, holder in changes.removed.items():
            history.ended(identity, at, how if holder.expiry_ms > keys.now else "expired")


def _size(call: AnyOperation) -> int:
    """Of how many requests or permits it is."""
    match call:
        case Acquire() | Release() | Refresh():
            return len(call.numbers)
        case Abandon():
            return len(call.requests)
        case _:
            return 1


def _described(entry: Entry) -> str:
    if isinstance(entry, Flushed):
        return f"{entry.server_us} all was lost"
    writes = " ".join(
        f"{write.command}:{write.key.rpartition(':')[2]}{list(write.arguments)}={write.receivers}"
        for write in entry.writes
    )
    call = f"{entry.hub[:6]} {entry.call} -> {entry.reply}"
    return f"{entry.server_us} {entry.present} {call} [{writes}]"
