"""One limit in several parts: what that costs those who wait, by a small simulation.

Pieces of work take a time that is drawn, on average 1. Tasks go round: they think, ask for a
permit, work, and give it back. Everything comes from one seed.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from statistics import fmean, quantiles
from typing import Literal, NamedTuple, Protocol

Choice = Literal["random", "shorter", "own"]
"""Which part a task asks: any, the less busy of two, or always its process's own."""


class Crowd(NamedTuple):
    """Who wants permits.

    Attributes:
        limit: permits in all.
        tasks: that share them.
        think: how long a task does something else between two pieces of work, on average.
    """

    limit: int
    tasks: int
    think: float = 0.0


class Outcome(NamedTuple):
    """What became of the crowd.

    Attributes:
        utilisation: the part of the permits at work, on average over time.
        idle: the part that was free, or kept for others, while tasks waited that it would have
            served.
        wait: for a permit, on average, in pieces of work.
        wait_p99: what one in a hundred waits longer than.
        pairs: acquired and released in Redis, for each piece of work.
    """

    utilisation: float
    idle: float
    wait: float
    wait_p99: float
    pairs: float


class Policy(Protocol):
    """Decides who works. Both methods return the tasks that start by it."""

    pairs: int  # so far, in Redis

    def ask(self, task: int) -> list[int]:
        """*task* wants to work."""
        ...

    def finish(self, task: int) -> list[int]:
        """*task* has worked."""
        ...


@dataclass(slots=True)
class Part:
    """A semaphore of its own, first come first served."""

    free: int
    line: deque[int] = field(default_factory=deque[int])

    @property
    def busyness(self) -> int:
        return len(self.line) - self.free


class Split:
    """The limit in equal parts, each a name of its own; 1 part is an undivided limit."""

    def __init__(
        self, limit: int, parts: int, choice: Choice, homes: Sequence[int], chance: random.Random
    ) -> None:
        shares = [limit // parts + (number < limit % parts) for number in range(parts)]
        self.pairs = 0
        self._parts = [Part(share) for share in shares]
        self._choice: Choice = choice
        self._homes = homes
        self._chance = chance
        self._asked: dict[int, Part] = {}

    def ask(self, task: int) -> list[int]:
        part = self._asked[task] = self._choose(task)
        self.pairs += 1
        if part.free:
            part.free -= 1
            return [task]
        part.line.append(task)
        return []

    def finish(self, task: int) -> list[int]:
        part = self._asked.pop(task)
        if part.line:
            return [part.line.popleft()]
        part.free += 1
        return []

    def _choose(self, task: int) -> Part:
        parts = self._parts
        if self._choice == "own":
            return parts[self._homes[task]]
        first = self._chance.choice(parts)
        if self._choice == "random":
            return first
        return min(first, self._chance.choice(parts), key=lambda part: part.busyness)


@dataclass(slots=True)
class Block:
    """Permits that a process took as one: *starts* more may be made in it."""

    free: int
    starts: int
    working: int = 0

    @property
    def open(self) -> bool:
        return self.free > 0 and self.starts > 0


@dataclass(slots=True)
class Local:
    """A process that hands the permits of its blocks to its own tasks."""

    line: deque[int] = field(default_factory=deque[int])
    blocks: list[Block] = field(default_factory=list[Block])
    asked: int = 0  # blocks asked for and not granted yet


class Blocks:
    """A permit in Redis stands for *size* permits, which a process hands to its own tasks.

    A process asks for as many blocks as would serve its waiters. It gives one back when *starts*
    pieces of work were begun in it, so that other processes have their turn, or when nobody wants
    it; either way, when the last piece of work in it has ended.
    """

    def __init__(self, limit: int, size: int, starts: int, homes: Sequence[int]) -> None:
        self.pairs = 0
        self._size = size
        self._homes = homes
        self._starts = starts
        self._free = limit // size
        self._line: deque[Local] = deque()
        self._locals = [Local() for _ in range(max(homes) + 1)]
        self._works: dict[int, Block] = {}

    def ask(self, task: int) -> list[int]:
        local = self._local(task)
        local.line.append(task)
        return self._go_on(local)

    def finish(self, task: int) -> list[int]:
        local, block = self._local(task), self._works.pop(task)
        block.working -= 1
        block.free += 1
        started = self._go_on(local)
        if block.working == 0 and not (block.open and local.line):
            local.blocks.remove(block)
            self._free += 1
            started += self._serve()
        return started

    def _local(self, task: int) -> Local:
        return self._locals[self._homes[task]]

    def _go_on(self, local: Local) -> list[int]:
        """Start what the process's own blocks allow, and ask for those that are missing."""
        started: list[int] = []
        for block in local.blocks:
            while local.line and block.open:
                block.free -= 1
                block.starts -= 1
                block.working += 1
                task = local.line.popleft()
                self._works[task] = block
                started.append(task)
        if len(local.line) > local.asked * self._size:
            local.asked += 1
            self._line.append(local)
            started += self._serve()
        return started

    def _serve(self) -> list[int]:
        """Hand free blocks to the first in line. Who needs none any more lets the next have it."""
        started: list[int] = []
        while self._free and self._line:
            local = self._line.popleft()
            local.asked -= 1
            self.pairs += 1
            if local.line:
                self._free -= 1
                local.blocks.append(Block(self._size, self._starts))
                started += self._go_on(local)
        return started


def simulate(policy: Policy, crowd: Crowd, works: int, chance: random.Random) -> Outcome:
    """Let *crowd* do so many pieces of work, after a tenth as many to warm up."""
    run = _Run(policy, crowd, chance)
    run.until(works // 10)
    run.forget()
    run.until(works)
    return run.outcome()


class _Run:
    def __init__(self, policy: Policy, crowd: Crowd, chance: random.Random) -> None:
        self._policy = policy
        self._crowd = crowd
        self._chance = chance
        self._order = count()
        self._events: list[tuple[float, int, int, bool]] = []  # at, order, task, has worked
        self._now = 0.0
        self._working = 0
        self._asked_at: dict[int, float] = {}  # of those who wait
        self.forget()
        for task in range(crowd.tasks):
            self._schedule(task, crowd.think, has_worked=False)

    def forget(self) -> None:
        """Count from now on."""
        self._since = self._now
        self._busy_time = self._idle_time = 0.0
        self._waits: list[float] = []
        self._done = 0
        self._pairs_before = self._policy.pairs

    def until(self, works: int) -> None:
        while self._done < works:
            at, _, task, has_worked = heappop(self._events)
            self._pass_time(at)
            if has_worked:
                self._done += 1
                self._working -= 1
                self._start(self._policy.finish(task))
                self._schedule(task, self._crowd.think, has_worked=False)
            else:
                self._asked_at[task] = at
                self._start(self._policy.ask(task))

    def outcome(self) -> Outcome:
        permit_time = self._crowd.limit * (self._now - self._since)
        return Outcome(
            utilisation=self._busy_time / permit_time,
            idle=self._idle_time / permit_time,
            wait=fmean(self._waits),
            wait_p99=quantiles(self._waits, n=100)[98],
            pairs=(self._policy.pairs - self._pairs_before) / self._done,
        )

    def _pass_time(self, to: float) -> None:
        passed, self._now = to - self._now, to
        free = self._crowd.limit - self._working
        self._busy_time += passed * self._working
        self._idle_time += passed * min(free, len(self._asked_at))

    def _start(self, tasks: list[int]) -> None:
        for task in tasks:
            self._working += 1
            self._waits.append(self._now - self._asked_at.pop(task))
            self._schedule(task, 1.0, has_worked=True)

    def _schedule(self, task: int, mean: float, *, has_worked: bool) -> None:
        takes = self._chance.expovariate(1 / mean) if mean else 0.0
        heappush(self._events, (self._now + takes, next(self._order), task, has_worked))


class Strategy(NamedTuple):
    """One way to share a limit.

    Attributes:
        name: for people.
        names: of semaphores in Redis; none where it is not asked.
        policy: who decides.
    """

    name: str
    names: int
    policy: Policy


def strategies(crowd: Crowd, processes: int, chance: random.Random) -> Iterator[Strategy]:
    """What is compared. Tasks are in any of so many processes, which makes some busier."""
    homes = [chance.randrange(processes) for _ in range(crowd.tasks)]

    def split(parts: int, choice: Choice) -> Split:
        return Split(crowd.limit, parts, choice, homes, chance)

    yield Strategy("one name", 1, split(1, "random"))
    for parts in (4, 10):
        yield Strategy(f"{parts} names, any of them", parts, split(parts, "random"))
        yield Strategy(f"{parts} names, the less busy of two", parts, split(parts, "shorter"))
    yield Strategy("a fixed share for each process", 0, split(processes, "own"))
    for size, starts in ((1, 10), (1, 50), (2, 50), (5, 50), (10, 100)):
        name = f"blocks of {size}, each for {starts} works"
        yield Strategy(name, 1, Blocks(crowd.limit, size, starts, homes))
