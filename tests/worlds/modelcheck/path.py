"""One path through a scenario: `enabled` says what could happen next, within the budget."""

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from redsem_async import AcquireTimeout, BackendUnavailable, Permit, PermitLost
from redsem_async._core.keys import Address
from tests.worlds.judge import Broken, Judge, forgotten
from tests.worlds.look import Look, Ran
from tests.worlds.look import Permit as Held
from tests.worlds.loop import RESOLUTION, running
from tests.worlds.orders import BACK_OFF, DELETE, LIMIT, of_key
from tests.worlds.process import Link, Process
from tests.worlds.server import Memory
from tests.worlds.world import PREFIX, Event, Violation, World

from .scenarios import NAME, Budget, Party, Scenario

DETACHED = 0.5  # seconds
SENT = 20.0
TIMEOUT = 0.3
AT_END, AN_ID = "at the end", "an id"
PROMPT = 0.1  # seconds in which somebody sees that a lease has ended
_COSTS = {
    "tick": "ticks",
    "run late": "lates",
    "cancel": "cancels",
    "receive and cancel": "cancels",
    "cut": "cuts",
    "kill": "kills",
    "stop": "stops",
}
_numbers: dict[object, int] = {}


class Job:
    """A task of a process, which waits where the search decides.

    What it does is a line of words, such as ``take:2@a>5 wait detach``: acquire two permits for
    the key ``a`` with five seconds ahead, wait, and detach. What it holds then it gives back.
    """

    def __init__(self, process: "Member", line: str) -> None:
        self.process = process
        self.name = line
        self.task: asyncio.Task[None] | None = None
        self.waits_for: str | None = "to begin"
        self.cancelled = False
        self._going: asyncio.Future[str] | None = None

    async def _run(self) -> None:
        try:
            with suppress(PermitLost):
                await self._do_all()
        except asyncio.CancelledError:
            if not self.cancelled:
                raise Violation(f"{self.process.name} was cancelled by nobody") from None
        except BackendUnavailable:
            if self.process.path.calm:
                raise

    async def _do_all(self) -> None:
        held: list[Permit] = []
        until = "to release"
        try:
            for word in self.name.split():
                what, _, key = word.partition("@")
                verb, _, number = what.partition(":")
                if verb == "stay":
                    until = AT_END
                elif not await self._do(held, verb, number, *key.partition(">")[::2]):
                    return
        finally:
            for permit in [p for p in held if p in self.process.permits]:
                await self._pause(until)
                try:
                    await permit.release()
                finally:
                    self.process.permits.remove(permit)

    async def _do(self, held: list[Permit], verb: str, number: str, key: str, ahead: str) -> bool:
        """Carry out a word. Returns whether the job goes on."""
        process, path = self.process, self.process.path
        semaphore = process.semaphore
        match verb:
            case "take" | "try":
                permits = int(number or 1)
                asked: dict[str, Any] = {"permits": permits}
                if "zset" not in path.scenario.mode:
                    asked |= {"key": key or None, "ahead": float(ahead or 0)}
                try:
                    timeout = TIMEOUT if verb == "try" else None
                    permit = await semaphore.acquire(timeout=timeout, **asked)
                except AcquireTimeout:
                    if verb == "try":
                        return False
                    raise
                if permit.permits != permits:
                    raise Violation(f"{process.name} got {permit.permits} permits, not {permits}")
                held.append(permit)
                process.permits.append(permit)
            case "wait":
                await self._pause("to go on")
            case "detach":
                await self._detach(held[-1], DETACHED)
            case "detach-again":
                try:
                    await self._detach(held[-1], DETACHED)
                finally:
                    if held[-1] in process.permits:
                        await self._detach(held[-1], DETACHED)
            case "send":
                path.ids.append(await self._detach(held[-1], SENT))
            case "show":  # or send once more
                path.ids.append(held[-1]._lease.id)
            case "adopt":
                held.append(await self._adopt(await self._pause(AN_ID)))
            case "settle":
                held[-1].settle(float(number))
            case "revoke":
                await semaphore.release(await self._pause(AN_ID))
            case _:
                await self._order(held, verb, number, key)
        return True

    async def _order(self, held: list[Permit], verb: str, number: str, key: str) -> None:
        process, orders = self.process, self.process.path.orders[NAME]
        match verb:
            case "limit":
                limit, what = int(number) if number else None, of_key(key) if key else LIMIT
                await orders.carry_out(process, process.semaphore, what, limit)
            case "delete":
                await orders.carry_out(process, process.semaphore, DELETE)
            case "back-off":
                orders.ordered(process, BACK_OFF)
                held[-1].back_off(float(number or 1))
            case _:
                assert verb == "end-back-off", verb
                await process.semaphore.back_off(0)

    async def _pause(self, before: str) -> str:
        self.waits_for = before
        self._going = self.process.loop.create_future()
        return await self._going

    async def _detach(self, permit: Permit, seconds: float) -> str:
        """Detach. Where that fails, the permit is this process's as before."""
        path = self.process.path
        identity = await permit.detach(seconds)
        self.process.permits.remove(permit)
        path.detached[identity] = math.ceil((path.server_us + round(1e6 * seconds)) / 1000)
        return identity

    async def _adopt(self, identity: str) -> Permit:
        """Adopt; where that says that the permit is lost, the server does not hold it."""
        try:
            permit = await self.process.semaphore.adopt(identity)
        except PermitLost:
            if identity in self.process.path.look().live:
                raise Violation(f"{self.process.name} adopts what is held, as lost") from None
            raise
        self.process.permits.append(permit)
        return permit

    # -- for the search

    @property
    def in_call(self) -> bool:
        return self.task is not None and not self.task.done() and self.waits_for is None

    @property
    def may_go(self) -> bool:
        path = self.process.path
        if self.waits_for == AN_ID:
            return bool(path.ids)
        return path.ending if self.waits_for == AT_END else self.waits_for is not None

    def go(self) -> str:
        what, self.waits_for = self.waits_for, None
        text = self.process.path.ids.popleft() if what == AN_ID else ""
        if self._going is None:
            self.task = self.process.loop.create_task(self._run())
        else:
            self._going.set_result(text)
        return text

    def cancel(self) -> None:
        assert self.task is not None
        self.cancelled = True
        with running(self.process.loop):
            self.task.cancel()


class Member(Process):
    """A process with its jobs."""

    def __init__(self, path: "Path", party: Party) -> None:
        super().__init__(path)
        self.path = path
        self.may = party.may
        self.permits: list[Permit] = []
        self.semaphore = party.semaphore(self.backend, path.scenario.mode)
        self.jobs = [Job(self, line) for line in party.jobs]
        some = [int(digit) for digit in party.may if digit.isdigit()]
        self.cancellable = [*range(len(self.jobs))] if "c" in party.may else some

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way to or from it."""
        link = self.link
        on_way = link is not None and (link.going or link.coming)
        return not on_way and all(dialled.done() for dialled in self.dials)

    def noted(self, *what: object) -> None:
        thing = self.seen, self.path.now, repr(what)
        self.seen = _numbers.setdefault(thing, len(_numbers) + 1)


class Path(World):
    """One path."""

    dials = False

    def __init__(self, scenario: Scenario, memory: Memory) -> None:
        super().__init__(1000.0, memory=memory)
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
        rates = ("requests",) * ("+rate" in scenario.mode)
        self.address = Address(scenario.mode, PREFIX, NAME, "server", rates)
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
        budget, link = self.budget, process.link
        if not process.runs or ("d" in process.may and (budget.kills or budget.stops)):
            return None
        if any(job.waits_for == AN_ID for job in process.jobs):
            return None
        gos = [Event("go", process.index, k) for k, job in enumerate(process.jobs) if job.may_go]
        if not process.hubs:
            return gos or None
        cancels = budget.cancels and any(process.jobs[k].in_call for k in process.cancellable)
        if gos or cancels or ("b" in process.may and budget.cuts):
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
            for link in process.links if budget.lates else ():
                if link.going and not link.open:
                    yield link.event("run late")
            if process.alive:
                yield from self._unkind_to(process)
        if budget.ticks and self.next_moment(self.scenario.grain) is not None:
            yield Event("tick")

    def _unkind_to(self, process: Member) -> Iterator[Event]:
        budget, i, link = self.budget, process.index, process.link
        unnoticed = (0, 1) if budget.unnoticed else (0,)
        if budget.kills and "d" in process.may:
            yield from (Event("kill", i, which) for which in unnoticed)
        if process.stopped:
            return
        if budget.stops and "d" in process.may:
            yield Event("stop", i)
        if budget.cuts and "b" in process.may and link is not None:
            yield from (Event("cut", i, which) for which in unnoticed)
        for k in process.cancellable if budget.cancels else ():
            if process.jobs[k].in_call:
                yield Event("cancel", i, k)
                if link is not None and link.coming:
                    yield Event("receive and cancel", i, k)

    # -- what happens

    def do(self, event: Event, *, rests: bool = True) -> None:
        what, who, which, _ = event
        process = self.members[who]
        if (name := _COSTS.get(what)) is not None:
            unnoticed = self.budget.unnoticed - (which if what in ("cut", "kill") else 0)
            left = {name: getattr(self.budget, name) - 1, "unnoticed": unnoticed}
            self.budget = self.budget._replace(**left)
            self.calm &= name in ("cancels", "ticks")
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

    def on_way(self, event: Event) -> None:
        """It stays where it is until the search moves it; who closes a link says so at once."""
        if event.what == "notice":
            link = self.members[event.who].links[event.which]
            self.calm &= not (link.going or link.coming)
            link.open_there = link.unnoticed

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

    def pass_time(self, until: float) -> None:
        self.ticked = True
        while True:
            timers = [p.loop.next_timer() for p in self.processes if p.runs]
            moment = min((t for t in timers if t is not None), default=until)
            self.wait_until(min(moment, until))
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
        all_of_it = (
            *(self.now, self.budget, self.calm, self.forgotten_since, self.server.state),
            *(self.detached, self.orders[NAME].standing, self.judge.last_token),
            *(sorted(self.judge.taken.items()), self.ids),
            [self._standing(process) for process in self.members],
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

    # -- what must hold: of each call, at each moment, and where nothing is on its way

    def ran(self, link: Link, ran: Ran) -> None:
        self._raise_first(self.judge.ran(ran))
        if ran.done:
            self._raise_first(self.orders[NAME].ran(ran))

    def _raise_first(self, found: Iterable[Broken]) -> None:
        for broken in found:
            raise Violation(str(broken))

    def check(self) -> None:
        """Raise Violation where something is wrong at this moment."""
        for process in [process for process in self.members if process.alive]:
            self.check_state(process)
            for job in process.jobs:
                if job.task is not None and job.task.done():
                    self._check_end(job, job.task)
        for identity, latest_ms in self.detached.items():
            held = self.look().holders.get(identity)
            if held is not None and held.expiry_ms > latest_ms and not self.late:
                raise Violation(f"{identity} was detached, and is held for longer than was said")
        for what in self.violations:
            raise Violation(what)
        trusted = [
            (lease.id, Held.trusted(lease, self.server_us_at(lease.trusted_until)))
            for process in self.members
            for permit in process.permits * process.alive
            if permit.expires_in > 0
            for lease in [permit._lease]
        ]
        self._raise_first(self.judge.trust(trusted, self.look().holders))

    def _check_end(self, job: Job, task: "asyncio.Task[None]") -> None:
        who = f"{job.process.name}'s {job.name}"
        if task.cancelled():
            raise Violation(f"{who} was cancelled by nobody")
        if isinstance(error := task.exception(), Violation):
            raise error
        if error is not None:
            raise Violation(f"{who} ended with {error!r}") from error

    def check_quiet(self) -> None:
        """Raise Violation where somebody is forgotten: nobody will come back to it."""
        if not all(p.quiet and not p.stopped for p in self.members if p.alive):
            return
        for identity in self.look().live:
            owner = self.owners[identity.partition(".")[0]]
            ids = [permit._lease.id for permit in self.members[owner.index].permits]
            if owner.alive and identity not in (*ids, *self.detached):
                raise Violation(f"{identity} is held, and nobody has it")
        first = forgotten(self.look()) if self.calm else None
        if first is None:
            self.forgotten_since = None
            return
        if self.forgotten_since is None:
            self.forgotten_since = self.now
        if self.now >= self.forgotten_since + (PROMPT if self.ticked else 0.0):
            raise Violation(f"{first.id} waits for a permit that is free")

    def check_end(self) -> None:
        """Raise Violation where something is left."""
        for job in [job for process in self.members if process.alive for job in process.jobs]:
            if job.in_call:
                raise Violation(f"{job.process.name}'s {job.name} is never answered")
        for identity in self.look().live:
            raise Violation(f"{identity} is never given back")

    def described(self, event: Event) -> str:
        process = self.members[event.who]
        of_job = event.what in ("go", "cancel", "receive and cancel")
        which = process.jobs[event.which].name if of_job else event.which
        return f"{process.name}: {event.what} {which}"


def _dialling(process: Member) -> Iterator[Event]:
    for k, dialled in enumerate(process.dials):
        if not dialled.done():
            yield Event("connect", process.index, k)
