"""A search for an order: could a semaphore have answered like this, as its clients saw it?

After Wing and Gong, with Lowe's memory of what was tried. Each operation takes effect at some
moment between its call and its return; one whose outcome is unknown (it timed out, it was
cancelled, its reply was lost) at any later moment, or never. A history is fine when its moments
can be put into one order that the sequential semaphore allows. No journal is needed, and nothing
but the public interface; the price is time, which grows fast with how much overlaps.

The sequential semaphore: a grant needs room under its own request's limit, its token is above all
earlier ones, and in fair mode no older waiter could have had it. A permit leaves by a release, or
by itself once nobody may trust it any more.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redsem_async._keys import Mode


class Result(enum.Enum):
    """How an operation ended, as its caller saw it."""

    GRANTED = enum.auto()
    FULL = enum.auto()  # of an acquire that does not wait
    UNKNOWN = enum.auto()  # timed out, cancelled, unanswered
    RELEASED = enum.auto()
    NOT_HELD = enum.auto()


@dataclass(slots=True)
class Operation:
    """An acquire, or a release of the permit *of* an acquire.

    Attributes:
        known_by: when an acquire was certainly in line, if that was observed.
        trusted_until: of a granted acquire: when its permit may leave by itself; never before.
        lost: of a release: whether the permit was lost by then, so that False tells nothing.
    """

    who: str
    called: float
    returned: float
    result: Result
    limit: int = 0
    permits: int = 1
    token: int = 0
    of: "Operation | None" = None
    known_by: float = math.inf
    trusted_until: float = math.inf
    lost: bool = False

    def __str__(self) -> str:
        what = "acquires" if self.of is None else f"releases {self.of.who}'s {self.of.token}"
        end = "…" if self.returned == math.inf else f"{self.returned:.4f}"
        token = f" {self.token}" if self.token else ""
        heavy = f" {self.permits}" if self.permits > 1 else ""
        outcome = self.result.name.lower().replace("_", " ")
        facts = "" if self.of else f" (limit {self.limit}"
        facts += f", in line by {self.known_by:.4f}" if self.known_by < math.inf else ""
        facts += f", trusted until {self.trusted_until:.4f}" if self.token else ""
        facts += "" if self.of else ")"
        return f"[{self.called:.4f}, {end}] {self.who} {what}{heavy}: {outcome}{token}{facts}"


class Act(enum.Enum):
    """What happens at a moment."""

    ASK = "stands in line"
    GRANT = "is granted"
    REFUSE = "is refused"
    LEAVE = "leaves the line, or gives back"
    RELEASE = "is released"
    MISS = "is released in vain"
    END = "ends by itself"


class Moment(NamedTuple):
    """Something takes effect between *earliest* and *latest*, or perhaps never."""

    operation: int  # that it is a part of
    act: Act
    earliest: float
    latest: float
    due: bool
    after: int = 0  # the moments before it, a bit for each
    undone: int = 0  # the moments that may come once more after it
    permit: int = -1  # the acquire that it is about


@dataclass
class Verdict:
    """What the search came to; *order* is of the longest that it found."""

    fine: bool
    tried: int
    order: list[str] = field(default_factory=list[str])
    history: Sequence[Operation] = ()

    def __str__(self) -> str:
        lines = [f"{'an' if self.fine else 'no'} order was found, {self.tried} tried"]
        lines += ["the history:", *(f"  {operation}" for operation in self.history)]
        lines += ["the longest order:", *(f"  {step}" for step in self.order)]
        return "\n".join(lines)


class TooLong(Exception):
    """The search was given up."""


class _State(NamedTuple):
    done: int  # a bit for each moment
    line: tuple[int, ...]  # acquires that wait, in order
    held: frozenset[int]  # acquires that hold
    last: int  # token


def linearize(history: Sequence[Operation], mode: Mode, *, most: int = 200_000) -> Verdict:
    """Look for an order of *history*. Raises :class:`TooLong` after *most* states."""
    return _Search(history, mode).run(most)


class _Search:
    def __init__(self, history: Sequence[Operation], mode: Mode) -> None:
        self._history = sorted(history, key=lambda operation: operation.called)
        self._fair = mode == "fair"
        self._number = {id(operation): i for i, operation in enumerate(self._history)}
        self._moments: list[Moment] = []
        for i, operation in enumerate(self._history):
            if operation.of is None:
                self._acquire(i, operation)
            else:
                self._release(i, operation, self._number[id(operation.of)])
        self._moments.sort(key=lambda moment: (not moment.due, moment.latest))
        self._link()
        self._due = sum(1 << i for i, moment in enumerate(self._moments) if moment.due)

    def run(self, most: int) -> Verdict:
        start = _State(0, (), frozenset(), 0)
        seen = {start}
        stack = [(start, self._steps(start))]
        path: list[int] = []
        best: list[int] = []
        while stack:
            state, steps = stack[-1]
            if state.done & self._due == self._due:
                return self._verdict(path, seen, fine=True)
            for i, after in steps:
                if after not in seen:
                    if len(seen) >= most:
                        raise TooLong(str(self._verdict(best, seen, fine=False)))
                    seen.add(after)
                    stack.append((after, self._steps(after)))
                    path.append(i)
                    best = max(best, path, key=len).copy()
                    break
            else:
                stack.pop()
                if path:
                    path.pop()
        return self._verdict(best, seen, fine=False)

    def _verdict(self, path: list[int], seen: set[_State], *, fine: bool) -> Verdict:
        order: list[str] = []
        for i in path:
            moment = self._moments[i]
            about = self._history[moment.permit]
            order.append(f"{about.who}'s {about.token or 'request'} {moment.act.value}")
        return Verdict(fine, len(seen), order, self._history)

    # -- what has to be put in order

    def _acquire(self, i: int, operation: Operation) -> None:
        called, returned = operation.called, operation.returned
        granted, refused = (operation.result is result for result in (Result.GRANTED, Result.FULL))
        if refused:
            self._add(i, Act.REFUSE, called, returned, i, due=True)
            return
        if self._fair:
            latest = min(operation.known_by, returned) if granted else operation.known_by
            self._add(i, Act.ASK, called, latest, i, due=granted or latest < math.inf)
        self._add(i, Act.GRANT, called, returned if granted else math.inf, i, due=granted)
        if not granted:
            self._add(i, Act.LEAVE, called, math.inf, i, due=False)
        elif operation.trusted_until < math.inf:
            self._add(i, Act.END, operation.trusted_until, math.inf, i, due=False)

    def _release(self, i: int, operation: Operation, permit: int) -> None:
        act = Act.MISS if operation.result is Result.NOT_HELD else Act.RELEASE
        due = operation.result is not Result.UNKNOWN
        latest = operation.returned if due else math.inf
        self._add(i, act, operation.called, latest, permit, due=due)

    def _add(
        self, i: int, act: Act, earliest: float, latest: float, permit: int, *, due: bool
    ) -> None:
        self._moments.append(Moment(i, act, earliest, latest, due, permit=permit))

    def _link(self) -> None:
        """A request stands in line before it is granted, and may do both again once it left.

        As it does where a grant came too late to be trusted. It makes the search short, too: one
        that has left is like one that has not come yet.
        """
        acts: dict[tuple[int, Act], int] = {}
        for i, moment in enumerate(self._moments):
            acts[moment.permit, moment.act] = 0 if moment.due else 1 << i
        for i, moment in enumerate(self._moments):
            if moment.act is Act.GRANT and self._fair:
                asks = (m.permit == moment.permit and m.act is Act.ASK for m in self._moments)
                before = sum(1 << j for j, is_it in enumerate(asks) if is_it)
                self._moments[i] = moment._replace(after=before)
            elif moment.act is Act.LEAVE:
                parts = (Act.ASK, Act.GRANT, Act.LEAVE)
                undone = sum(acts.get((moment.permit, act), 0) for act in parts)
                self._moments[i] = moment._replace(undone=undone)

    # -- the sequential semaphore

    def _steps(self, state: _State) -> Iterator[tuple[int, _State]]:
        left = self._due & ~state.done
        deadline = min(
            (moment.latest for i, moment in enumerate(self._moments) if left >> i & 1),
            default=math.inf,
        )
        for i, moment in enumerate(self._moments):
            if state.done >> i & 1 or moment.earliest > deadline:
                continue
            if state.done & moment.after != moment.after:
                continue
            after = self._after(state, moment)
            if after is not None:
                yield i, after._replace(done=(state.done | 1 << i) & ~moment.undone)

    def _after(self, state: _State, moment: Moment) -> _State | None:
        permit = moment.permit
        request = self._history[permit]
        done, line, held, last = state
        match moment.act:
            case Act.ASK:
                return _State(done, (*line, permit), held, last)
            case Act.GRANT:
                if not self._fits(state, request) or (self._fair and self._head(line) != permit):
                    return None
                if request.token and request.token <= last:
                    return None
                rest = tuple(other for other in line if other != permit)
                return _State(done, rest, held | {permit}, request.token or last)
            case Act.REFUSE:
                full = not self._fits(state, request) or self._head(line) is not None
                return state if full else None
            case Act.LEAVE:
                if permit not in held and permit not in line:
                    return None
                rest = tuple(other for other in line if other != permit)
                return _State(done, rest, held - {permit}, last)
            case Act.RELEASE | Act.END:
                return _State(done, line, held - {permit}, last) if permit in held else None
            case Act.MISS:
                if permit in held and not self._history[moment.operation].lost:
                    return None
                return _State(done, line, held - {permit}, last)

    def _fits(self, state: _State, request: Operation) -> bool:
        used = sum(self._history[permit].permits for permit in state.held)
        return used + request.permits <= request.limit

    def _head(self, line: tuple[int, ...]) -> int | None:
        """The first in line that is not heavier than its own limit."""
        requests = ((permit, self._history[permit]) for permit in line)
        return next((p for p, request in requests if request.permits <= request.limit), None)
