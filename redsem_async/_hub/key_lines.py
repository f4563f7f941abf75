"""The waiters of this process by their keys, to estimate when a request of a key is served."""

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from redsem_async._protocol.operations import KeyTerms

from .claim import Claim, State

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
        self._weights: Counter[float] = Counter()  # of the keys that may run
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
        own = max(alike * key.waiting - (claim.state is State.WAITING), 0.0)
        if claim.waits_for_key:
            return own, min(limit, terms.limit or limit)
        if not self.waiting:
            return line, limit
        limit = max(1, limit - (self._full_limit - key.full_limit))
        if not self._share:
            return own + alike * (self._may_run - key.may_run), limit
        if not own:
            return self._before_newcomer(terms.weight, limit), limit
        held = self._held_by(terms.weight, limit, waits=key.may_run > 0)
        return own + (own + 1) * (limit - held) / held, limit

    def _before_newcomer(self, weight: float, limit: int) -> float:
        """How many are served before the request of a key that has no other.

        It has few permits in use, so only keys that have none may be served before it, by turns.
        """
        without = self._weights.total() - limit
        if without <= 0:
            return 0.0
        mean = sum(each * count for each, count in self._weights.items()) / self._weights.total()
        return without * min(1.0, weight / mean)

    def _held_by(self, weight: float, limit: int, *, waits: bool) -> float:
        """How many of *limit* permits a key with *weight* holds on average, if it has waiters.

        A free permit goes to the key with the fewest in use for its weight. So each key holds one
        before any holds a second, and weights divide only the rest. Where there are more keys
        than permits, no key holds more than one, and keys without any take turns by weight.
        *waits*: the key is one of those that are counted here.
        """
        counted = self._weights if waits else self._weights + Counter([weight])
        weights = sorted(counted.items())
        totals = list(accumulate(each * count for each, count in weights))
        if (keys := counted.total()) <= limit:
            return 1 + (limit - keys) * weight / totals[-1]
        left = limit
        while weights[-1][0] * left > totals[-1]:  # more than one for each of these keys
            left -= weights.pop()[1]
            totals.pop()
        return min(1.0, left * weight / totals[-1])

    def _add(self, line: _Line, sign: int) -> None:
        """Add *line* to the sums, or subtract it."""
        self.waiting += sign * line.waiting
        self._may_run += sign * line.may_run
        if line.may_run:
            self._weights[line.terms.weight] += sign
            if not self._weights[line.terms.weight]:
                del self._weights[line.terms.weight]
        self._full_limit += sign * line.full_limit
