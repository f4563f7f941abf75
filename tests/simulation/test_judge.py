"""The judge, by itself: whom it takes for the head of the line."""

from redsem_async._keys import Address
from redsem_async._protocol import Acquire, Call, Introduction, Message, Reap, Release
from redsem_async.testing._model import FairModel
from tests.simulation.judge import Around, Judge
from tests.simulation.world import World

HERE, THERE = "a" * 32, "b" * 32


class Line:
    """A fair semaphore of 5 permits, its judge, and hubs that hear while they listen."""

    def __init__(self) -> None:
        self.world = World(0)
        self.judge = Judge(self.world, "jobs")
        self.model = FairModel(self._tell)
        self.listening = {HERE, THERE}

    def _tell(self, hub: str, _: Message) -> int:
        return int(hub in self.listening)

    def head(self) -> str | None:
        waiter = self.judge.head(self.model, self.world.server_us // 1000)
        return None if waiter is None else waiter.id

    def run(self, hub: str, call: Call) -> None:
        now_us = self.world.server_us
        before = self.judge.look(self.model, now_us // 1000)
        answer = self.model.run(Address("fair", "redsem", "jobs", "server"), call, hub, now_us)
        hears = frozenset(self.listening)
        self.judge.ran(self.model, before, call, hub, answer, Around(hears, hears, late=False))
        assert not self.world.violations

    def ask(self, hub: str, number: int, permits: int) -> None:
        unusual, who = {number: (permits, True)}, Introduction("a process")
        self.run(hub, Acquire([number], 10_000, 5, unusual, introduction=who))


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
    assert [waiter.id for waiter in line.model.line] == [f"{HERE}.2", f"{THERE}.3"]
    assert line.head() is None
    line.run(THERE, Reap())
    assert [waiter.id for waiter in line.model.line] == [f"{HERE}.2"]
