"""One path through a scenario: the real client on loops and links that the search moves.

Everything from the public methods down to the scripts is the package's own code. Nothing happens
by itself: `enabled` says what could happen next, and `do` makes it happen. Between two events
every loop runs until it has nothing to do.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation
from redsem_async._protocol.pushes import Push
from tests.worlds.judge import Judge
from tests.worlds.look import Look
from tests.worlds.loop import RESOLUTION, running
from tests.worlds.server import Edit
from tests.worlds.world import BaseWorld

from . import rules
from .process import NAME, Process, Said
from .scenario import Budget, Scenario
from .server import Memory, RememberingServer

PREFIX = "redsem"


class Event(NamedTuple):
    """What happens, to which process, and to which of its jobs or links."""

    what: str
    who: int = 0
    which: int = 0


@dataclass
class Ledger:
    """What is known beside what the processes and the server know: for the rules alone."""

    detached: dict[str, int] = field(default_factory=dict[str, int])  # latest expiry in ms, by id
    deleting: int = 0  # deletions that were asked for, and are not known to have ended
    limits: int = 0  # set limits, likewise
    limit: int | None = None  # the set limit that was confirmed last
    overloads: int = 0  # that were met, and have begun no back-off
    key_limits: dict[str, int | None] = field(default_factory=dict[str, int | None])


class World(BaseWorld[Process]):
    """One path."""

    def __init__(self, scenario: Scenario, memory: Memory, edits: Sequence[Edit] = ()) -> None:
        super().__init__(1000.0)
        self.scenario = scenario
        self.budget: Budget = scenario.budget
        self.calm = True  # no link broke, nobody died or stood still
        self.ticked = False  # time has passed
        self.ending = False  # nothing goes wrong any more
        self.late = False  # a command of a broken link has run
        self.forgotten_since: float | None = None  # a permit is free, and somebody waits
        self.ids: deque[str] = deque()
        self.ledger = Ledger()
        self.judge = Judge()
        self.address = Address(scenario.mode, PREFIX, NAME, "server")
        self.server = RememberingServer(self._publish, self._reached, memory, edits)
        self.processes = [Process(self, index) for index in range(len(scenario.parties))]

    # -- what can happen

    def enabled(self) -> list[Event]:
        return [*self.due(), *self._unkind()]

    def choices(self) -> list[Event]:
        """What has to be explored from here: all that can happen, or as much as stands for it.

        Where no time passes and no fault can come between, the events that a process is sure of
        are the same whenever they happen, so they come first, and other orders are left out. No
        rule is checked too late: what a process has not received yet was checked at the server.
        """
        if not self.budget.ticks:
            for process in self.processes:
                if (own := self._sure(process)) is not None:
                    return own
        return self.enabled()

    def _sure(self, process: Process) -> list[Event] | None:
        """What *process* does next, whatever others do meanwhile; None where that is not sure."""
        budget, party, link = self.budget, process.party, process.link
        if not process.runs or (party.dies and (budget.kills or budget.stops)):
            return None
        if any(job.waits_for == "an id" for job in process.jobs):
            return None
        gos = [Event("go", process.index, k) for k, job in enumerate(process.jobs) if job.may_go]
        if not process.hubs:
            return gos or None
        cancels = budget.cancels and any(process.jobs[k].in_call for k in process.cancellable)
        if gos or cancels or (party.breaks and budget.cuts):
            return None
        if link is not None and link.coming:
            return [Event("receive", process.index)]
        if process.dialling is not None and not process.dialling.done():
            return [Event("connect", process.index)]
        return None

    def due(self) -> Iterator[Event]:
        """What happens sooner or later by itself."""
        for i, process in enumerate(self.processes):
            link = process.link
            if link is not None and link.going and process.alive:
                yield Event("run", i)
            if not process.runs:
                if process.stopped and process.alive:
                    yield Event("go on", i)
                continue
            if link is not None and link.coming:
                yield Event("receive", i)
            if process.dialling is not None and not process.dialling.done():
                yield Event("connect", i)
            for k, job in enumerate(process.jobs):
                if job.may_go:
                    yield Event("go", i, k)

    def _unkind(self) -> Iterator[Event]:
        budget = self.budget
        for i, process in enumerate(self.processes):
            if budget.lates:
                yield from (Event("run late", i, k) for k, late in enumerate(process.late) if late)
            if process.alive:
                yield from self._unkind_to(process)
        if budget.ticks and self.next_moment(self.scenario.grain) is not None:
            yield Event("tick")

    def _unkind_to(self, process: Process) -> Iterator[Event]:
        budget, i = self.budget, process.index
        party, link = process.party, process.link
        if budget.kills and party.dies:
            yield Event("kill", i)
            if budget.unnoticed:
                yield Event("kill", i, 1)
        if process.stopped:
            return
        if budget.stops and party.dies:
            yield Event("stop", i)
        if budget.cuts and party.breaks and link is not None:
            yield Event("cut", i)
            if budget.unnoticed:
                yield Event("cut", i, 1)
        if budget.cancels:
            for k in process.cancellable:
                if process.jobs[k].in_call:
                    yield Event("cancel", i, k)
                    if link is not None and link.coming:
                        yield Event("receive and cancel", i, k)

    # -- what happens

    def do(self, event: Event) -> None:
        """Let *event* happen, and everything that follows from it in its process."""
        what, who, which = event
        process = self.processes[who]
        match what:
            case "tick":
                self._spend(ticks=1)
                self.calm &= all(process.quiet for process in self.processes)
                moment = self.next_moment(self.scenario.grain)
                assert moment is not None
                self.pass_time(moment)
                return
            case "run" | "run late":
                self._run(process, which, late=what == "run late")
                return
            case "receive":
                self._receive(process)
            case "receive and cancel":
                self._spend(cancels=1)
                self._receive(process)
                process.jobs[which].cancel()
                self._note(process, event)
            case "cancel":
                self._spend(cancels=1)
                process.jobs[which].cancel()
                self._note(process, event)
            case "connect":
                assert process.dialling is not None
                process.dialling.set_result(None)
                self._note(process, event)
            case "go":
                self._note(process, event, process.jobs[which].go())
            case "cut":
                self._spend(cuts=1, unnoticed=which)
                self._cut(process, unnoticed=bool(which))
                self._note(process, event)
            case "kill":
                self._spend(kills=1, unnoticed=which)
                process.alive = False
                if process.link is not None:
                    if which:
                        process.ghosts.append(process.link)
                    process.link.abort()
                self._note(process, event)
            case "stop" | "go on":
                if what == "stop":
                    self._spend(stops=1)
                process.stopped = what == "stop"
                self._note(process, event)
            case _:
                raise AssertionError(event)
        process.settle()

    def _spend(self, **costs: int) -> None:
        left = {name: getattr(self.budget, name) - cost for name, cost in costs.items()}
        self.budget = self.budget._replace(**left)
        if not costs.keys() <= {"cancels", "ticks"}:
            self.calm = False

    def _note(self, process: Process, *what: object) -> None:
        process.seen = number_of((process.seen, self.now, repr(what)))

    def _run(self, process: Process, which: int, *, late: bool) -> None:
        if late:
            self._spend(lates=1)
            self.late = True
            commands = process.late[which]
            link = None
        else:
            link = process.link
            assert link is not None
            commands, link.known = link.going, True
        command, hub = commands.popleft()
        answer = self._carry_out(command, hub)
        if link is not None:
            link.coming.append(Said(answer, partial(link.answered, command, answer)))
        self.note(f"  {process.name}: {command} -> {answer}")

    def _carry_out(self, command: AnyOperation, hub: str) -> AnyReply | CommandError:
        call = command
        assert command.semaphore.address == self.address
        before, answer, after = self.server.run(self.address, call, hub, self.server_us)
        rules.check_call(self, before, call, hub, answer, after)
        return answer

    def _publish(self, prefix: str, owner: str, message: Push) -> int:
        process = self.owners.get(owner)
        if process is None:
            return 0
        link = process.link
        self.note(f"  {process.name} is sent {message}")
        if link is not None and link.known and link.listener.hub_id == owner:
            link.coming.append(Said(message, partial(link.notified, prefix, message)))
            return 1
        return sum(ghost.known and ghost.listener.hub_id == owner for ghost in process.ghosts)

    def _reached(self) -> tuple[object, ...]:
        """Which hubs the server reaches by a message."""
        links = (link for p in self.processes for link in (p.link, *p.ghosts) if link)
        return tuple(link.listener.hub_id for link in links if link.known)

    def _receive(self, process: Process) -> None:
        link = process.link
        assert link is not None
        said = link.coming.popleft()
        self._note(process, "receive", said.content)
        with running(process.loop):
            said.arrives()

    def _cut(self, process: Process, *, unnoticed: bool) -> None:
        link = process.link
        assert link is not None
        if unnoticed:
            process.ghosts.append(link)
        link.abort()
        with running(process.loop):
            link.listener.connection_lost(ConnectionResetError("the link was cut"))

    # -- time

    def next_moment(self, grain: float = 0.0) -> float | None:
        """When something changes by itself, at least *grain* seconds from now."""
        moments = [p.loop.next_timer() for p in self.processes if p.runs]
        moments += [self.by_server_clock(h.expiry_ms) for h in self.look().holders.values()]
        to_come = [m for m in moments if m is not None and m > self.now + RESOLUTION]
        later = [m for m in to_come if m >= self.now + grain]
        if later:
            return min(later)
        return self.now + grain if to_come else None

    def look(self) -> Look:
        return self.server.look(self.address, self.server_us)

    def holds(self, identity: str) -> bool:
        return identity in self.look().live

    def pass_time(self, until: float) -> None:
        self.ticked = True
        while True:
            timers = [p.loop.next_timer() for p in self.processes if p.runs]
            moment = min((t for t in timers if t is not None), default=until)
            self.now = max(self.now, min(moment, until))
            for process in self.processes:
                process.settle()
            if moment >= until:
                return

    # -- where it stands

    def key(self) -> bytes:
        """What distinguishes this state from others.

        A process is what came to it, and when: it has no other input. The server is what it
        keeps. So orders of events that neither can distinguish are one state.
        """
        standing = [self._standing(process) for process in self.processes]
        all_of_it = (
            self.now,
            self.budget,
            self.calm,
            self.forgotten_since,
            self.server.state,
            self.ledger,
            self.judge.last_token,
            sorted(self.judge.taken.items()),
            self.ids,
            standing,
        )
        return hashlib.blake2b(repr(all_of_it).encode(), digest_size=16).digest()

    def _standing(self, process: Process) -> tuple[object, ...]:
        link = process.link
        there: tuple[object, ...] = ()
        if link is not None:
            there = (link.known, len(link.going), [said.content for said in link.coming])
        late = tuple(len(commands) for commands in process.late)
        ghosts = tuple(ghost.known for ghost in process.ghosts)
        return process.seen, there, late, ghosts


_numbers: dict[object, int] = {}


def number_of(thing: object) -> int:
    return _numbers.setdefault(thing, len(_numbers) + 1)
