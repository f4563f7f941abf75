"""The waiters of this process by their keys, to estimate when a request of a key is served."""

from dataclasses import dataclass

from redsem_async._protocol.operations import KeyTerms

from .claim import Claim

_NO_KEY = KeyTerms("")


@dataclass(slots=True)
class _Line:
    """Waiters of one key; *full*: the limit of the key holds them up."""

    terms: KeyTerms
    waiting: int = 0
    full: bool = False

    @property
    def may_run(self) -> int:
        return 0 if self.full else self.waiting

    @property
    def weight(self) -> float:
        return self.terms.weight if self.may_run else 0.0

    @property
    def full_limit(self) -> int:
        return self.terms.limit or 0 if self.full and self.waiting else 0


class KeyLines:
    """How many wait here for each key, counted as they come and go.

    Attributes:
        waiting: number of waiters, of all keys.
    """

    def __init__(self, *, share: bool) -> None:
        self.waiting: int = 0
        self._share = share
        self._lines: dict[str, _Line] = {}
        # Sums over the keys, so that an estimate costs the same with 10,000 of them.
        self._may_run = 0
        self._weight = 0.0
        self._full_limit = 0

    def joined(self, claim: Claim) -> None:
        """*claim* was told to wait."""
        terms = claim.key or _NO_KEY
        line = self._lines.setdefault(terms.key, _Line(terms))
        self._add(line, -1)
        line.terms, line.full = terms, claim.waits_for_key
        line.waiting += 1
        self._add(line, 1)

    def left(self, claim: Claim) -> None:
        """*claim* waited, and does not any more."""
        line = self._lines[(claim.key or _NO_KEY).key]
        self._add(line, -1)
        line.waiting -= 1
        self._add(line, 1)
        if not line.waiting:
            del self._lines[line.terms.key]

    def ahead_of(self, claim: Claim, line: int, limit: int) -> tuple[float, int]:
        """How many are served before a new request of the key of *claim*, and under which limit.

        *line* is the number of waiters of all processes, which are taken to be alike, and *limit*
        the limit in all. Keys that wait are taken to go on waiting, and full keys to stay full.
        """
        terms = claim.key or _NO_KEY
        key = self._lines.get(terms.key) or _Line(terms)
        alike = max(1.0, line / max(self.waiting, 1))
        own = max(alike * key.waiting - claim.was_waiting, 0.0)
        if claim.waits_for_key:
            return own, min(limit, terms.limit or limit)
        if not self.waiting:
            return line, limit
        limit = max(1, limit - (self._full_limit - key.full_limit))
        if not self._share:
            return own + alike * (self._may_run - key.may_run), limit
        # A key of which nothing waits is the next, because it has few permits in use.
        turns = own + 1 if own else 0.0
        return own + turns * (self._weight - key.weight) / terms.weight, limit

    def _add(self, line: _Line, sign: int) -> None:
        """Add *line* to the sums, or subtract it."""
        self.waiting += sign * line.waiting
        self._may_run += sign * line.may_run
        self._weight += sign * line.weight
        self._full_limit += sign * line.full_limit
