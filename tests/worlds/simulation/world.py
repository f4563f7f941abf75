"""Virtual time, and whose turn it is: processes, and what happens between them."""

import asyncio
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tests.worlds.loop import RESOLUTION, running
from tests.worlds.world import BaseProcess, BaseWorld

TURN = 2e-6  # seconds that a turn of a loop takes: time goes on even when all are busy

if TYPE_CHECKING:
    from .holdings import Hold

Event = tuple[float, int, Callable[[], None]]


class World(BaseWorld["Process"]):
    """One simulated run of several processes. Everything random in it comes from its seed."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        super().__init__(0.0, traced=traced)
        self.seed = seed
        self.random = random.Random(seed)
        self.trip = 0.0  # seconds one way, about
        self.faults: Counter[str] = Counter()
        self.turned: Callable[[Process], None]  # looks at a process after each turn
        self._events: list[Event] = []
        self._count = 0

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1
        self.note("FAULT", kind)

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Have *event* happen at *moment*; those of one moment in the order of asking."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, event))

    def after(self, delay: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay, event)

    def run(self, most: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen for *most* seconds, or until *until*. Returns whether it came true."""
        deadline = self.now + most
        while not self.violations:
            if until():
                return True
            if not self._step(deadline):
                self.now = max(self.now, deadline) if math.isfinite(deadline) else self.now
                return until()
        return False

    def _step(self, deadline: float) -> bool:
        able = [process for process in self.processes if process.able()]
        due = bool(self._events) and self._events[0][0] <= self.now
        if not (able or due):
            moment = min(
                [process.next_moment() for process in self.processes]
                + [self._events[0][0] if self._events else math.inf]
            )
            if moment > deadline or moment == math.inf:
                return False
            self.now = max(self.now, moment)
            return True
        if self.now > deadline:
            return False
        choice = self.random.randrange(len(able) + due)
        if choice == len(able):
            heapq.heappop(self._events)[2]()
        else:
            able[choice].turn()
            self.now += TURN
        return True


class Process(BaseProcess):
    """A process: a loop with a clock of its own, that may stall or be killed.

    Args:
        rate: of its clock; the server's is 1.
    """

    def __init__(self, world: World, name: str, *, rate: float = 1.0) -> None:
        self._rate = rate
        self._offset = offset = 1000.0 * (1 + len(world.processes))
        super().__init__(world, name, lambda: offset + rate * world.now)
        self.world = world
        self.no_push = False
        self.hubs: set[str] = set()  # the ids that it was known by
        self.stalled_at = self.stalled_until = 0.0
        self.stalled = 0.0  # seconds, altogether
        self.woken_busy = False  # this turn runs what was ready before a stall
        self.cancelled: set[asyncio.Task[Any]] = set()
        self.watched: dict[Hold, None] = {}  # what it trusts, looked at after each turn
        self._blocked = False
        self._stall_due: float | None = None
        self._cancels: list[tuple[int, asyncio.Task[Any]]] = []
        world.processes.append(self)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(coroutine)

    def world_time(self, local: float) -> float:
        return (local - self._offset) / self._rate

    # -- turns

    @property
    def idle(self) -> bool:
        """Whether nothing is left that it could ever do."""
        loop = self.loop
        done = not loop.ready and loop.next_timer() is None and not loop.tasks
        return done or not self.alive

    def able(self) -> bool:
        if not self.alive or self.stalled_until > self.world.now:
            return False
        if self.loop.ready:
            return True
        if self._stall_due is not None:
            self._stall(self._stall_due)
            return False
        timer = self.loop.next_timer()
        return timer is not None and timer < self.loop.time() + RESOLUTION

    def next_moment(self) -> float:
        if not self.alive:
            return math.inf
        timer = self.loop.next_timer()
        if timer is None:
            return math.inf
        moment = self.world_time(timer)
        while self._offset + self._rate * moment < timer:
            moment = math.nextafter(moment, math.inf)
        return max(moment, self.stalled_until)

    def turn(self) -> None:
        """One turn of its loop, and of those who are to be cancelled after so many turns."""
        self.woken_busy, self._blocked = self._blocked, False
        self.loop.turn()
        self.woken_busy = False
        self.world.turned(self)
        if self._cancels:
            due = [task for turn, task in self._cancels if turn <= self.loop.turns]
            self._cancels = [(t, task) for t, task in self._cancels if t > self.loop.turns]
            for task in due:
                self.cancel(task)

    def cancel_after(self, turns: int, task: "asyncio.Task[Any]") -> None:
        """Cancel *task* so many turns from now, wherever it is then."""
        self._cancels.append((self.loop.turns + turns, task))

    # -- faults

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel *task* from outside, and remember it where that has to be obeyed."""
        with running(self.loop):
            if self.alive and task.cancel("by the simulation"):
                self.world.fault("cancelled task")
                self.cancelled.add(task)

    @property
    def stalled_so_far(self) -> float:
        """For how many seconds it was stalled, altogether."""
        return self.stalled - max(0.0, self.stalled_until - self.world.now)

    def stall(self, seconds: float) -> None:
        """Stop it when it has nothing to do next."""
        if self.alive:
            self._stall_due = seconds

    def block(self, seconds: float) -> None:
        """Stop it after this turn: something in it does not come back to the loop."""
        self._stall(seconds)
        self._blocked = True

    def _stall(self, seconds: float) -> None:
        self._stall_due = None
        if self.stalled_until < self.world.now:  # else no turn came between two stalls
            self.stalled_at = self.world.now
        self.stalled_until = self.world.now + seconds
        self.stalled += seconds
        self.world.fault("stalled process")
        self.world.note(self.name, "stalls for", seconds)
        self.world.at(self.stalled_until, lambda: None)

    def kill(self) -> None:
        self.alive = False
        self.world.fault("killed process")
        self.world.note(self.name, "is killed")

    def resume(self) -> None:
        self._stall_due = None
        self.stalled_until = min(self.stalled_until, self.world.now)
