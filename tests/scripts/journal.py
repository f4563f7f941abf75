"""The checker of the journal: linear work, entry by entry, in the order in which Redis ran them.

It follows the journal three times over: through the executable specification (`replay`),
through the keys as the writes left them (`writes`), and beside what the clients saw
(`history`). Each finds what the others cannot.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable

from redsem_async._protocol.operations import Abandon, Release
from tests.scripts.history import End, History
from tests.scripts.recording import Entry, Flushed, Record
from tests.scripts.replay import Replay
from tests.scripts.violations import Findings
from tests.scripts.writes import Changes, Keys

_BATCHED = {
    "acquire": 10,
    "release": 6,
    "refresh": 5,
    "restore": 7,
    "abandon": 5,
}  # facts before the requests

TRACE = 24  # entries of one semaphore
MOST_TRACES = 5


def _told(entry: Entry) -> str:
    if isinstance(entry, Flushed):
        return f"{entry.server_us} all was lost"
    writes = " ".join(
        f"{write.command}:{write.key.rpartition(':')[2]}{list(write.arguments)}={write.heard}"
        for write in entry.writes
    )
    call = f"{entry.hub[:6]} {entry.call} -> {entry.reply}"
    return f"{entry.server_us} {entry.present} {call} [{writes}]"


class JournalChecker:
    """Feed it the journal; `findings` says what was wrong.

    Args:
        ceiling: of names whose limit is known, the most that clients may hold for certain.
        recovering: names where nobody new is admitted for a lease after a loss of state.
    """

    def __init__(
        self, ceiling: dict[str, int] | None = None, recovering: Collection[str] = ()
    ) -> None:
        self.findings = Findings()
        self.history = History(self.findings, ceiling, recovering)
        self.scripts: Counter[str] = Counter()
        self.operations = 0  # requests, releases, refreshes ...: a script may be for many
        self.grants = 0
        self.traces: list[list[str]] = []  # what led to the first violations
        self._semaphores: dict[str, tuple[Keys, Replay]] = {}
        self._recent: dict[str, deque[Entry]] = {}
        self._highest: dict[str, int] = {}

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.findings.index += 1
            if isinstance(entry, Flushed):
                self._flush(entry)
            else:
                self._follow(entry)

    def keys(self, base: str) -> Keys | None:
        """The keys of a semaphore as they should be now."""
        known = self._semaphores.get(base)
        return known[0] if known else None

    def _trace(self, base: str) -> None:
        """Keep what led to a violation: somebody will want to read it."""
        if len(self.traces) < MOST_TRACES:
            self.traces.append([_told(entry) for entry in self._recent[base]])

    def _flush(self, entry: Flushed) -> None:
        for base, (keys, _) in self._semaphores.items():
            self._highest[base] = keys.highest
            self._recent[base].append(entry)
        self._semaphores.clear()
        self.history.flushed(entry.server_us / 1e6)

    def _follow(self, record: Record) -> None:
        self.scripts[f"{record.mode} {record.operation}"] += 1
        facts = _BATCHED.get(record.operation)
        self.operations += 1 if facts is None else len(record.arguments) - facts
        base = record.base
        found = self.findings.counts.total()
        self._recent.setdefault(base, deque(maxlen=TRACE)).append(record)
        known = self._semaphores.get(base)
        if known is None:
            keys = Keys(base, record.mode == "fair", self.findings)
            keys.highest = self._highest.get(base, 0)
            known = self._semaphores[base] = keys, Replay(record.mode, self.findings)
        keys, replay = known
        gone, changes = keys.follow(record)
        replay.follow(record, gone)
        touched = list({*changes.added, *changes.extended, *changes.removed})
        replay.compare(record, keys.now, touched, keys.holders, keys.tokens, keys.weights)
        replay.compare_meta(record, keys.meta)
        if touched:
            self._tell(record, keys, changes)
        if self.findings.counts.total() > found:
            self._trace(base)

    def _tell(self, record: Record, keys: Keys, changes: Changes) -> None:
        """Tell the history what was granted and what ended."""
        history, at = self.history, record.server_us / 1e6
        name = record.base.partition("{")[2][:-2]
        self.grants += len(keys.grants)
        behind = keys.now - (record.server_us // 1000)  # of the server, to the semaphore's clock
        for identity, expiry in changes.added.items():
            token, permits = int(keys.tokens.get(identity, 0)), 1 + keys.weights.get(identity, 0)
            tell = history.restored if record.operation == "restore" else history.granted
            tell(identity, name, token, permits, at, (expiry - behind) / 1000)
        for identity, (_, expiry) in changes.extended.items():
            history.renewed(identity, (expiry - behind) / 1000)
        if not changes.removed:
            return
        call = record.call
        how: End = "taken"
        if isinstance(call, Abandon):
            how = "abandoned"
        elif isinstance(call, Release) and call.owner == record.hub:
            how = "released"
        for identity, (expiry, _, _) in changes.removed.items():
            history.ended(identity, at, how if expiry > keys.now else "expired")
