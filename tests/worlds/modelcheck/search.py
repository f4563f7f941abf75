"""The search: every order of events within a scenario's budget.

A path cannot be taken back, so every branch is a new run from the start. What prunes the tree is
the key of a state (`World.key`): what was explored from it once is not explored again.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.worlds.server import Memory
from tests.worlds.shorten import kind_of, shortened
from tests.worlds.stand_ins import in_place
from tests.worlds.world import Event, Violation

from .path import Path
from .scenarios import Budget, Scenario

HORIZON = 90.0  # seconds in which everything has ended once nothing goes wrong any more
ROUND = 400  # events in a row in which no time passes
TRIES = 500  # runs at most, to find a shorter path
COLLECT = 400  # runs between two collections of garbage


@dataclass
class Outcome:
    """What a search came to."""

    scenario: Scenario
    states: int = 0
    steps: int = 0
    runs: int = 0
    met: int = 0  # runs that came to what was seen before
    complete: bool = False
    wrong: str | None = None
    path: list[Event] = field(default_factory=list[Event])
    trace: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        found = f"{self.wrong}\n" + "\n".join(self.trace) if self.wrong else "nothing wrong"
        bounded = "" if self.complete or self.wrong else " (not all of them)"
        return (
            f"{self.scenario}: {self.states:,} states{bounded},"
            f" {self.steps:,} steps in {self.runs:,} runs, {self.met:,} of them met: {found}"
        )


class _Even:
    """Chance that is always the same, so that a process has no input but what comes to it."""

    @staticmethod
    def random() -> float:
        return 0.5


class Search:
    """One scenario, explored."""

    def __init__(self, scenario: Scenario) -> None:
        self.memory = Memory()
        self._scenario = scenario
        self._world: Path
        self._seen: set[bytes] = set()
        self._outcome = Outcome(scenario)

    def run(self, most: int = 1_000_000) -> Outcome:
        """Explore up to *most* states, or to the first that is wrong."""
        outcome = self._outcome
        collecting = gc.isenabled()
        gc.disable()
        gc.freeze()
        try:
            with in_place(lambda: self._world.now, _Even, self):
                self._explore(most)
        finally:
            gc.unfreeze()
            gc.collect()
            if collecting:
                gc.enable()
        return outcome

    def token_hex(self, count: int) -> str:
        return self._world.token_hex(count)

    def _explore(self, most: int) -> None:
        outcome = self._outcome
        path: list[Event] = []
        nodes: list[list[Event]] = []  # what is still to be tried, where each event of it begins
        while True:
            wrong = self._descend(path, nodes)
            if wrong is not None:
                self._explain(path)
                return
            while nodes and not nodes[-1]:
                nodes.pop()
            if not nodes:
                outcome.complete = True
                return
            if len(self._seen) >= most:
                return
            del path[len(nodes) - 1 :]
            path.append(nodes[-1].pop())

    def _descend(self, path: list[Event], nodes: list[list[Event]]) -> str | None:
        """Take *path*, and go on from its end until nothing new comes. Returns what is wrong."""
        outcome = self._outcome
        world = self._begin()
        try:
            self._open(world)
            for event in path[:-1]:
                world.do(event)
            outcome.steps += len(path)
            if path:
                world.do(path[-1])
            while True:
                world.check()
                key = world.key()
                if key in self._seen:
                    outcome.met += 1
                    return None
                self._seen.add(key)
                outcome.states += 1
                world.check_quiet()
                world.check_depth(len(path))
                events = world.choices()
                if next(iter(world.due()), None) is None:
                    self._end(world)
                    first: Event | None = None  # this world is over: the rest needs another
                else:
                    first = events[0]
                if not events:
                    return None
                nodes.append(events[::-1])
                if first is None:
                    return None
                nodes[-1].remove(first)
                path.append(first)
                outcome.steps += 1
                world.do(first)
        except Violation as wrong:
            return str(wrong)
        finally:
            world.end()

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
                world.note(describe(world, due))
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
        outcome = self._outcome
        outcome.runs += 1
        if outcome.runs % COLLECT == 0:
            gc.collect()
        world = self._world = Path(self._scenario, self.memory)
        return world

    def _open(self, world: Path) -> None:
        for word in self._scenario.opening.split():
            world.do(Event("go", int(word[0]), int(word[1])))
            while word.endswith(".") and (moving := [e for e in world.due() if e.what != "go"]):
                world.do(moving[0])

    # -- explaining

    def _explain(self, path: Sequence[Event]) -> None:
        """The same fault with fewer events, and how it came about."""
        outcome = self._outcome
        wrong, taken = self._replayed(path)
        kind = kind_of(wrong or "")

        def same(events: Sequence[Event]) -> Sequence[Event] | None:
            found, taken = self._replayed(events)
            return taken if found is not None and kind_of(found) == kind else None

        outcome.path = list(shortened(taken, same, TRIES))
        outcome.wrong, _ = self._replayed(outcome.path, outcome.trace)

    def _replayed(
        self, path: Sequence[Event], trace: list[str] | None = None
    ) -> tuple[str | None, list[Event]]:
        """What is wrong with *path*, less what cannot happen, and how much of it it takes."""
        world = self._begin()
        world.trace = trace
        taken: list[Event] = []
        try:
            self._open(world)
            for event in path:
                if event in world.enabled():
                    taken.append(event)
                    world.note(describe(world, event))
                    world.do(event)
                    world.check()
                    world.check_quiet()
            world.note("from here on nothing goes wrong any more")
            self._end(world)
        except Violation as wrong:
            return str(wrong), taken
        finally:
            world.end()
        return None, taken


def describe(world: Path, event: Event) -> str:
    what, who, which, _ = event
    process = world.members[who]
    match what:
        case "tick":
            return "time passes"
        case "go":
            job = process.jobs[which]
            return f"{process.name}: {job.name} goes on {job.waits_for}"
        case "cancel" | "receive and cancel":
            return f"{process.name}: {what} {process.jobs[which].name}"
        case "cut" | "kill" if which:
            return f"{process.name}: {what}, and the server does not notice"
        case _:
            return f"{process.name}: {what}"
