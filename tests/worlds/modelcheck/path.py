"""One path through a scenario: `enabled` says what could happen next, within the budget."""

import hashlib
from collections import deque
from collections.abc import Iterator

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation
from tests.worlds.judge import Judge
from tests.worlds.look import Look
from tests.worlds.loop import RESOLUTION
from tests.worlds.process import Link
from tests.worlds.server import Edit, Memory
from tests.worlds.world import PREFIX, Event, World

from . import rules
from .process import NAME, Member
from .scenario import Budget, Scenario

_COSTS = {
    "tick": "ticks",
    "run late": "lates",
    "cancel": "cancels",
    "receive and cancel": "cancels",
    "cut": "cuts",
    "kill": "kills",
    "stop": "stops",
}


class Path(World):
    """One path."""

    dials = False

    def __init__(self, scenario: Scenario, memory: Memory, edits: tuple[Edit, ...] = ()) -> None:
        super().__init__(1000.0, memory=memory, edits=edits)
        self.scenario = scenario
        self.budget: Budget = scenario.budget
        self.calm = True  # no link broke, nobody died or stood still
        self.ticked = False  # time has passed
        self.ending = False  # nothing goes wrong any more
        self.late = False  # a command of a broken link has run
        self.forgotten_since: float | None = None  # a permit is free, and somebody waits
        self.ids: deque[str] = deque()
        self.detached: dict[str, int] = {}  # latest expiry in ms, by id
        self.judge = Judge()
        self.address = Address(scenario.mode, PREFIX, NAME, "server")
        self.members = [Member(self, party) for party in scenario.parties]

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
            for process in self.members:
                if (own := self._sure(process)) is not None:
                    return own
        return self.enabled()

    def _sure(self, process: Member) -> list[Event] | None:
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
            return [link.event("receive")]
        return list(_dialling(process)) or None

    def due(self) -> Iterator[Event]:
        """What happens sooner or later by itself."""
        for process in self.members:
            link = process.link
            if link is not None and link.going and process.alive:
                yield link.event("run")
            if not process.runs:
                if process.stopped and process.alive:
                    yield Event("go on", process.index)
                continue
            if link is not None and link.coming:
                yield link.event("receive")
            yield from _dialling(process)
            for k, job in enumerate(process.jobs):
                if job.may_go:
                    yield Event("go", process.index, k)

    def _unkind(self) -> Iterator[Event]:
        budget = self.budget
        for process in self.members:
            if budget.lates:
                late = (link for link in process.links if link.going and not link.open)
                yield from (link.event("run late") for link in late)
            if process.alive:
                yield from self._unkind_to(process)
        if budget.ticks and self.next_moment(self.scenario.grain) is not None:
            yield Event("tick")

    def _unkind_to(self, process: Member) -> Iterator[Event]:
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

    def do(self, event: Event, *, rests: bool = True) -> None:
        what, who, which, _ = event
        process = self.members[who]
        if what in _COSTS:
            self._spend(what, unnoticed=which if what in ("cut", "kill") else 0)
        match what:
            case "tick":
                self.calm &= all(process.quiet for process in self.members)
                moment = self.next_moment(self.scenario.grain)
                assert moment is not None
                self.pass_time(moment)
            case "run late":
                self.late = True
                super().do(event._replace(what="run"))
            case "receive and cancel":
                assert process.link is not None
                process.link.receive()
                process.jobs[which].cancel()
                process.noted(event)
                process.settle()
            case "cancel" | "go":
                job = process.jobs[which]
                process.noted(event, job.go() if what == "go" else None)
                if what == "cancel":
                    job.cancel()
                process.settle()
            case "run" | "receive":
                super().do(event)
            case _:
                process.noted(event)
                super().do(event)

    def _spend(self, what: str, unnoticed: int) -> None:
        name = _COSTS[what]
        left = {name: getattr(self.budget, name) - 1}
        left["unnoticed"] = self.budget.unnoticed - unnoticed
        self.budget = self.budget._replace(**left)
        if name not in ("cancels", "ticks"):
            self.calm = False

    def on_way(self, event: Event) -> None:
        """It stays where it is until the search moves it; who closes a link says so at once."""
        if event.what == "notice":
            link = self.members[event.who].links[event.which]
            self.calm &= not (link.going or link.coming)
            link.open_there = link.unnoticed

    def ran(
        self,
        link: Link,
        command: AnyOperation,
        hub: str,
        before: Look,
        answer: AnyReply | CommandError,
        after: Look,
    ) -> None:
        rules.check_call(self, before, command, hub, answer, after)

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

    def look(self, address: Address | None = None) -> Look:
        return super().look(address or self.address)

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
        standing = [self._standing(process) for process in self.members]
        all_of_it = (
            self.now,
            self.budget,
            self.calm,
            self.forgotten_since,
            self.server.state,
            self.detached,
            self.orders[NAME].standing,
            self.judge.last_token,
            sorted(self.judge.taken.items()),
            self.ids,
            standing,
        )
        return hashlib.blake2b(repr(all_of_it).encode(), digest_size=16).digest()

    def _standing(self, process: Member) -> tuple[object, ...]:
        link = process.link
        there: tuple[object, ...] = ()
        if link is not None:
            there = (link.known, len(link.going), [said.content for said in link.coming])
        closed = [each for each in process.links if not each.open]
        late = tuple(len(each.going) for each in closed)
        ghosts = tuple(each.known for each in closed if each.open_there)
        return process.seen, there, late, ghosts


def _dialling(process: Member) -> Iterator[Event]:
    for k, dialled in enumerate(process.dials):
        if not dialled.done():
            yield Event("connect", process.index, k)
