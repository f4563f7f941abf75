"""The judge, by itself: whom it takes for the head of the line."""

from redsem_async._core.keys import Address
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import Acquire, Clear, Operation, Reap, Release, SetLimit
from redsem_async._protocol.pushes import Push
from redsem_async.testing._spec.fair import FairSpecification
from tests.worlds.simulation.judge import Around, Judge
from tests.worlds.simulation.world import Process, World

HERE, THERE = "a" * 32, "b" * 32


A_PROCESS = Process(World(0), "somebody")
A_PROCESS.hubs |= {HERE, THERE}


class Line:
    """A fair semaphore of 5 permits, its judge, and hubs that hear while they listen."""

    def __init__(self) -> None:
        self.world = World(0)
        self.judge = Judge(self.world, "jobs")
        self.model = FairSpecification(self._tell)
        self.listening = {HERE, THERE}

    def _tell(self, hub: str, _: Push) -> int:
        return int(hub in self.listening)

    def head(self) -> str | None:
        now = self.world.server_us // 1000
        first = self.judge.first(self.model, now)
        blocks = first and first.request.permits > self.judge.room(self.model, first, now)
        return first.id if first and blocks else None

    def run(self, hub: str, call: Operation, *, right: bool = True) -> None:
        now_us = self.world.server_us
        before = self.judge.look(self.model, now_us // 1000)
        answer = self.model.run(Address("fair", "redsem", "jobs", "server"), call, hub, now_us)
        hears = frozenset(self.listening)
        self.judge.ran(self.model, before, call, hub, answer, Around(hears, hears, late=False))
        assert right is not bool(self.world.violations)
        self.world.violations.clear()

    def ask(self, hub: str, number: int, permits: int) -> None:
        unusual, who = {number: (permits, True)}, HubInfo("a process")
        self.run(hub, Acquire([number], 10_000, 5, unusual, hub_info=who))


def test_who_is_not_there_is_passed_over_unless_it_calls() -> None:
    """Its call shows that it is there: its heavy request is the head again, and blocks."""
    line = Line()
    line.ask(HERE, 1, permits=1)
    line.ask(THERE, 1, permits=4)
    line.ask(HERE, 2, permits=4)
    line.ask(THERE, 2, permits=4)
    line.ask(THERE, 3, permits=1)
    assert line.head() == f"{HERE}.2"
    line.listening.remove(HERE)
    line.run(THERE, Release(THERE, [1]))
    assert line.head() == f"{THERE}.3"
    line.run(HERE, Release(HERE, [1]))  # with room for one
    assert line.head() == f"{HERE}.2"
    line.run(THERE, Reap())
    assert [waiter.id for waiter in line.model.line] == [f"{HERE}.2", f"{THERE}.3"]


def test_what_is_set_is_what_somebody_asks_for() -> None:
    """Once, and not when who asked was answered, or has been answered another since."""
    line = Line()
    line.run(HERE, SetLimit(3, call=1), right=False)  # nobody asked for that
    answered = line.judge.ordered(A_PROCESS, 2)
    line.run(HERE, SetLimit(2, call=2))
    line.judge.obeyed(answered)
    given_up = line.judge.ordered(A_PROCESS, 1)
    line.judge.given_up(given_up)
    line.world.now += 1
    line.judge.obeyed(line.judge.ordered(A_PROCESS, 2))
    line.world.now += 1
    line.run(HERE, SetLimit(1, call=3), right=False)
    assert not line.world.violations
    line.judge.obeyed(line.judge.ordered(A_PROCESS, 5))
    assert line.world.violations  # it was never set


def test_a_clear_that_comes_late_takes_what_it_was_not_asked_for() -> None:
    """What was acquired since then is not its."""
    line = Line()
    line.ask(HERE, 1, permits=1)
    line.world.now += 1
    line.judge.obeyed(line.judge.ordered(A_PROCESS, None, clears=True))
    assert line.world.violations  # what was held before is held still
    line.world.violations.clear()
    line.world.now += 1
    line.run(THERE, Clear(call=1), right=False)


def test_full_is_what_it_was_a_moment_ago() -> None:
    """And not what it was before: a permit that is free is a permit that is free."""
    line = Line()
    line.world.now = 5.0
    line.ask(HERE, 1, permits=5)
    line.world.now = 6.0
    line.run(HERE, Release(HERE, [1]))
    line.world.now = 7.0
    assert line.judge.was_full(5.9, 5, 1, {HERE})
    assert not line.judge.was_full(6.9, 5, 1, {HERE})
