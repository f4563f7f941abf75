"""A small simulation of tasks that share permits. One seed determines everything.

Each task repeats: think, request a permit, work, release. The duration of work is random, with a
mean of 1.
"""

import random
from heapq import heappop, heappush
from itertools import count
from statistics import fmean, quantiles
from typing import NamedTuple, Protocol


class Workload(NamedTuple):
    """The simulated workload.

    Attributes:
        limit: total number of permits.
        tasks: number of tasks.
        think: mean time between two pieces of work of a task.
    """

    limit: int
    tasks: int
    think: float = 0.0


class Outcome(NamedTuple):
    """The result of a simulation.

    Attributes:
        utilisation: mean share of permits in use.
        idle: mean share of permits that were unused although tasks waited.
        wait: mean wait for a permit, in units of work.
        wait_p99: 99th percentile of the wait.
        pairs: acquires in Redis per piece of work.
    """

    utilisation: float
    idle: float
    wait: float
    wait_p99: float
    pairs: float


class Policy(Protocol):
    """Assigns permits to tasks. Both methods return the tasks that start to work."""

    pairs: int  # so far, in Redis

    def ask(self, task: int) -> list[int]:
        """*task* requests a permit."""
        ...

    def finish(self, task: int) -> list[int]:
        """*task* releases its permit."""
        ...


def simulate(policy: Policy, workload: Workload, works: int, rng: random.Random) -> Outcome:
    """Simulate *works* pieces of work, after a warm-up of a tenth as many."""
    run = _Run(policy, workload, rng)
    run.until(works // 10)
    run.reset()
    run.until(works)
    return run.outcome()


class _Run:
    def __init__(self, policy: Policy, workload: Workload, rng: random.Random) -> None:
        self._policy = policy
        self._workload = workload
        self._rng = rng
        self._order = count()
        self._events: list[tuple[float, int, int, bool]] = []  # at, order, task, has worked
        self._now = 0.0
        self._working = 0
        self._asked_at: dict[int, float] = {}  # of waiting tasks
        self.reset()
        for task in range(workload.tasks):
            self._schedule(task, workload.think, has_worked=False)

    def reset(self) -> None:
        """Reset all counters."""
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
                self._schedule(task, self._workload.think, has_worked=False)
            else:
                self._asked_at[task] = at
                self._start(self._policy.ask(task))

    def outcome(self) -> Outcome:
        permit_time = self._workload.limit * (self._now - self._since)
        return Outcome(
            utilisation=self._busy_time / permit_time,
            idle=self._idle_time / permit_time,
            wait=fmean(self._waits),
            wait_p99=quantiles(self._waits, n=100)[98],
            pairs=(self._policy.pairs - self._pairs_before) / self._done,
        )

    def _pass_time(self, to: float) -> None:
        passed, self._now = to - self._now, to
        free = self._workload.limit - self._working
        self._busy_time += passed * self._working
        self._idle_time += passed * min(free, len(self._asked_at))

    def _start(self, tasks: list[int]) -> None:
        for task in tasks:
            self._working += 1
            self._waits.append(self._now - self._asked_at.pop(task))
            self._schedule(task, 1.0, has_worked=True)

    def _schedule(self, task: int, mean: float, *, has_worked: bool) -> None:
        takes = self._rng.expovariate(1 / mean) if mean else 0.0
        heappush(self._events, (self._now + takes, next(self._order), task, has_worked))
