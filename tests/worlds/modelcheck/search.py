"""The search: every order of events within a scenario's budget.

A path cannot be taken back, so every branch is a new run from the start. What prunes the tree is
the key of a state (`World.key`): what was explored from it once is not explored again. A path that
is wrong is made shorter before it is shown.
"""

import gc
from collections.abc import Sequence

from tests.worlds.server import Memory
from tests.worlds.stand_ins import Even, in_place, uncollected
from tests.worlds.world import Event, Violation

from .path import Path
from .scenarios import Budget, Scenario

HORIZON = 90.0  # seconds in which everything has ended once nothing goes wrong any more
ROUND = 400  # events in a row in which no time passes
DEEPEST = 150  # events of a path
COLLECT = 400  # runs between two collections of garbage


class Search:
    """One scenario, explored.

    Attributes:
        complete: whether all of it was.
        wrong: what is, and how it came about.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.complete = False
        self.wrong: str | None = None
        self._memory = Memory()
        self._scenario = scenario
        self._world: Path
        self._seen: set[bytes] = set()
        self._runs = 0

    def __str__(self) -> str:
        states = f"{len(self._seen):,} states in {self._runs:,} runs"
        return f"{self._scenario}: {states}{'' if self.complete else ' (not all of them)'}"

    def run(self, most: int) -> None:
        """Explore up to *most* states, or to the first that is wrong."""
        gc.freeze()
        try:
            with uncollected(), in_place(lambda: self._world.now, Even, self):
                self._explore(most)
        finally:
            gc.unfreeze()

    def token_hex(self, count: int) -> str:
        return self._world.token_hex(count)

    def _explore(self, most: int) -> None:
        path: list[Event] = []
        nodes: list[list[Event]] = []  # what is still to be tried, where each event of it begins
        while True:
            if self._descend(path, nodes) is not None:
                self.wrong = self._explained(path)
                return
            while nodes and not nodes[-1]:
                nodes.pop()
            self.complete = not nodes
            if not nodes or len(self._seen) >= most:
                return
            del path[len(nodes) - 1 :]
            path.append(nodes[-1].pop())

    def _descend(self, path: list[Event], nodes: list[list[Event]]) -> str | None:
        """Take *path*, and go on from its end until nothing new comes. Returns what is wrong."""
        try:
            world = self._begin()
            for event in path:
                world.do(event)
            while True:
                world.check()
                key = world.key()
                if key in self._seen:
                    return None
                self._seen.add(key)
                world.check_quiet()
                world.unless(len(path) <= DEEPEST, "events beget events without end")
                events = world.choices()
                goes_on = next(iter(world.due()), None) is not None
                if not goes_on:  # this world is over: the rest needs another
                    self._end(world)
                if events:
                    nodes.append(events[:0:-1] if goes_on else events[::-1])
                if not events or not goes_on:
                    return None
                path.append(events[0])
                world.do(events[0])
        except Violation as wrong:
            return str(wrong)
        finally:
            self._world.end()

    def _end(self, world: Path) -> None:
        """With nothing unkind any more, everything ends."""
        deadline = world.now + HORIZON
        world.budget, world.ending = Budget(), True
        taken = 0
        while world.now < deadline:
            due = next(iter(world.due()), None)
            if due is not None:
                taken += 1
                if taken > ROUND:
                    raise Violation("commands beget commands without end")
                world.note(world.described(due))
                world.do(due)
                world.check()
                continue
            taken = 0
            world.check_quiet()
            busy = any(job.in_call for p in world.members if p.alive for job in p.jobs)
            moment = world.next_moment()
            if moment is None or not (busy or world.look().holders):
                break
            world.pass_time(moment)
            world.check()
        world.check_end()

    def _begin(self) -> Path:
        """A world in which happened what the scenario opens with."""
        self._runs += 1
        if self._runs % COLLECT == 0:
            gc.collect()
        world = self._world = Path(self._scenario, self._memory)
        for word in self._scenario.opening:
            world.do(Event("go", int(word[0]), int(word[1])))
            while word.endswith(".") and (moving := [e for e in world.due() if e.what != "go"]):
                world.do(moving[0])
        return world

    # -- explaining

    def _explained(self, path: Sequence[Event]) -> str:
        """The same fault without the events that it does not need, and how it came about."""
        wrong, steps = self._replayed(path)
        for k in reversed(range(len(steps))):
            found, taken = self._replayed([*steps[:k], *steps[k + 1 :]])
            if found is not None and _kind(found) == _kind(wrong):
                steps = taken
        trace: list[str] = []
        wrong, _ = self._replayed(steps, trace)
        return "\n".join([str(wrong), *trace])

    def _replayed(
        self, path: Sequence[Event], trace: list[str] | None = None
    ) -> tuple[str | None, list[Event]]:
        """What is wrong with *path*, less what cannot happen, and how much of it it takes."""
        taken: list[Event] = []
        try:
            world = self._begin()
            world.trace = trace
            for event in path:
                if event in world.enabled():
                    taken.append(event)
                    world.note(world.described(event))
                    world.do(event)
                    world.check()
                    world.check_quiet()
            world.note("from here on nothing goes wrong any more")
            self._end(world)
        except Violation as wrong:
            return str(wrong), taken
        finally:
            self._world.end()
        return None, taken


def _kind(wrong: str | None) -> str:
    """What two failures have in common that are alike."""
    return "".join(c for c in str(wrong).partition("(")[0] if not (c.isdigit() or c in ".abcdef"))
