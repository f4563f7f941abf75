"""Strategies for dividing one limit, as policies for the simulation."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .simulation import Policy, Workload

Choice = Literal["random", "shorter", "own"]
"""The part that a task uses: a random one, the less busy of two, or that of its process."""


@dataclass(slots=True)
class Part:
    """One part of the limit: a semaphore, first come, first served."""

    free: int
    line: deque[int] = field(default_factory=deque[int])

    @property
    def busyness(self) -> int:
        return len(self.line) - self.free


class Split:
    """The limit in equal parts, each with its own name. 1 part is an undivided limit."""

    def __init__(
        self, limit: int, parts: int, choice: Choice, homes: Sequence[int], rng: random.Random
    ) -> None:
        shares = [limit // parts + (number < limit % parts) for number in range(parts)]
        self.pairs = 0
        self._parts = [Part(share) for share in shares]
        self._choice: Choice = choice
        self._homes = homes
        self._rng = rng
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
        first = self._rng.choice(parts)
        if self._choice == "random":
            return first
        return min(first, self._rng.choice(parts), key=lambda part: part.busyness)


@dataclass(slots=True)
class Block:
    """Permits acquired as one. *starts* is how many more tasks may start with it."""

    free: int
    starts: int
    working: int = 0

    @property
    def open(self) -> bool:
        return self.free > 0 and self.starts > 0


@dataclass(slots=True)
class Local:
    """A process that assigns the permits of its blocks to its own tasks."""

    line: deque[int] = field(default_factory=deque[int])
    blocks: list[Block] = field(default_factory=list[Block])
    asked: int = 0  # blocks requested and not granted yet


class Blocks:
    """A permit in Redis is a block of *size* permits, which a process assigns to its own tasks.

    A process requests enough blocks for its waiters. It releases a block once *starts* tasks have
    started with it, so that other processes get their turn, or once no task needs it; in both
    cases after the last task of the block has finished.
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
        """Start the tasks for which the process has permits, and request missing blocks."""
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
        """Grant free blocks in order of requests, except to processes that need none any more."""
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


class Strategy(NamedTuple):
    """One strategy for dividing a limit.

    Attributes:
        name: name for the report.
        names: number of semaphores in Redis; 0 if Redis is not used.
        policy: the policy.
    """

    name: str
    names: int
    policy: Policy


def strategies(workload: Workload, processes: int, rng: random.Random) -> Iterator[Strategy]:
    """The compared strategies. Tasks are randomly distributed over *processes*."""
    homes = [rng.randrange(processes) for _ in range(workload.tasks)]

    def split(parts: int, choice: Choice) -> Split:
        return Split(workload.limit, parts, choice, homes, rng)

    yield Strategy("one name", 1, split(1, "random"))
    for parts in (4, 10):
        yield Strategy(f"{parts} names, any of them", parts, split(parts, "random"))
        yield Strategy(f"{parts} names, the less busy of two", parts, split(parts, "shorter"))
    yield Strategy("a fixed share for each process", 0, split(processes, "own"))
    for size, starts in ((1, 10), (1, 50), (2, 50), (5, 50), (10, 100)):
        name = f"blocks of {size}, each for {starts} works"
        yield Strategy(name, 1, Blocks(workload.limit, size, starts, homes))
