"""One path through a scenario: the real client on loops and links that do what they are told.

Everything from the public methods down to the letters is the package's own code; the server is
the executable specification. Nothing happens by itself: `enabled` says what could happen next, and
`do` makes it happen. Between two events every loop runs until it has nothing to do.
"""

import asyncio
import hashlib
import logging
import random
import secrets
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from redsem_async import (
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
    Semaphore,
    _clock,
    _hub,
    _keys,
    _refresher,
)
from redsem_async._backend import Letter, Link, Listener, OneNode
from redsem_async._protocol import Answered, Fault, Message, Trouble
from redsem_async.testing._model import (
    FairModel,
    Held,
    Model,
    Reordered,
    Stranger,
    Tell,
    ZsetModel,
)
from tests.simulation.loop import RESOLUTION, SimulatedLoop, close_coroutine

from .scenario import Budget, Scenario, Script

START_US = 1_700_000_000_000_000  # by the server's clock
TURNS = 1000  # of a loop, in which nothing comes from outside

Make = Callable[[Tell], Model]


class Event(NamedTuple):
    """What happens, to which process, and to which of its jobs or links."""

    what: str
    who: int = 0
    which: int = 0


class Wrong(AssertionError):
    """A promise was broken."""


class Said(NamedTuple):
    """Something on its way from the server: an answer to a letter, or a message."""

    letter: Letter | None
    prefix: str
    content: Answered | Fault | Message


class Loop(SimulatedLoop):
    """A loop that knows its tasks: whoever asks asyncio for them goes through everybody's."""

    process: "Process"

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._own: list[asyncio.Task[Any]] = []

    def create_task(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        task = super().create_task(*args, **kwargs)
        self._own.append(task)
        return task

    def bury(self) -> None:
        self.gone = True
        self.set_exception_handler(lambda loop, context: None)
        while self._own:
            task = self._own.pop()
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                close_coroutine(task.get_coro())
        self._ready.clear()
        self._scheduled.clear()
        # The package knows loops for as long as their hubs, which nothing of them must keep.
        self._clock = float
        del self.process


class FakeLink:
    """A link whose letters lie where they are until they are run, and heard of."""

    def __init__(self, process: "Process", listener: Listener) -> None:
        self.fresh_at: float | None = None
        self.listener = listener
        self.going: deque[tuple[Letter, str]] = deque()  # with the hub that wrote
        self.coming: deque[Said] = deque()
        self.open = True
        self.known = False  # the server has subscribed it
        self._process = process

    @property
    def writable(self) -> bool:
        return self.open

    def send(self, letters: Sequence[Letter], now: float) -> None:
        hub = self.listener.hub_id
        for letter in letters:
            letter.sent_at = now
            self.going.append((letter, hub))

    def abort(self) -> None:
        if self.open:
            self.open = False
            if self.going or self.coming:
                self._process.world.calm = False
            self.coming.clear()
            self._process.closed(self)

    async def close(self) -> None:
        self.abort()


class FakeNode(OneNode):
    """The way from one process to the server."""

    place = "the specification"

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def connect(self, listener: Listener) -> Link:
        process = self._process
        if process.links:
            process.dialling = process.loop.create_future()
            try:
                await process.dialling
            finally:
                process.dialling = None
        process.link = FakeLink(process, listener)
        process.links += 1
        return process.link


class Job:
    """A task of a process. Its script is ordinary code, and waits where the search decides."""

    def __init__(self, process: "Process", script: Script) -> None:
        self.process = process
        self.name: str = getattr(script, "__name__", "job")
        self.task: asyncio.Task[None] | None = None
        self.waits_for: str | None = "to begin"
        self.cancelled = False
        self.acquiring = False
        self._script = script
        self._going: asyncio.Future[str] | None = None

    @property
    def semaphore(self) -> AnySemaphore:
        return self.process.semaphore

    @property
    def world(self) -> "World":
        return self.process.world

    # -- for scripts

    async def pause(self, before: str) -> None:
        """Wait until the search lets it go on."""
        self.waits_for = before
        self._going = self.process.loop.create_future()
        await self._going

    async def mail(self) -> str:
        """Wait for the id of a permit that another job has sent, and take it."""
        self.waits_for = "mail"
        self._going = self.process.loop.create_future()
        return await self._going

    async def acquire(self, *, timeout: float | None = None, permits: int = 1) -> Permit:
        """Acquire; the permit counts as this process's from now on."""
        self.acquiring = True
        try:
            permit = await self.semaphore.acquire(timeout=timeout, permits=permits)
        finally:
            self.acquiring = False
        self.process.permits.append(permit)
        return permit

    async def release(self, permit: Permit) -> None:
        """Release, and have nothing to do with it any more, whatever comes of that."""
        try:
            await permit.release()
        finally:
            self.process.permits.remove(permit)

    async def detach(self, permit: Permit, expires_in: float) -> str:
        """Detach. Where that fails, the permit is this process's as before."""
        identity = await permit.detach(expires_in)
        self.process.permits.remove(permit)
        self.world.ledger.detached[identity] = permit.fencing_token
        return identity

    async def adopt(self, identity: str) -> Permit:
        """Adopt; whoever is told that it is lost must not find it there."""
        world = self.world
        try:
            permit = await self.semaphore.adopt(identity)
        except PermitLost:
            if world.holds(identity):
                raise Wrong(f"{self.process.name} was told that what it adopts is lost") from None
            raise
        self.process.permits.append(permit)
        return permit

    async def set_limit(self, limit: int | None) -> None:
        """Set a limit, which is in force once this returns, until another is asked for."""
        ledger = self.world.ledger
        ledger.limits += 1
        await self.semaphore.set_limit(limit)
        ledger.limits -= 1  # not where it failed: it may come into force yet
        ledger.limit = limit

    async def clear(self) -> None:
        """Clear: once this returns, nothing is taken any more."""
        ledger = self.world.ledger
        ledger.clearing += 1
        await self.semaphore.clear()
        ledger.clearing -= 1

    # -- for the search

    @property
    def in_call(self) -> bool:
        return self.task is not None and not self.task.done() and self.waits_for is None

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def may_go(self) -> bool:
        if self.waits_for == "mail":
            return bool(self.world.mail)
        return self.waits_for is not None

    def go(self) -> str:
        """Let it go on, with the mail it waits for."""
        what, self.waits_for = self.waits_for, None
        text = self.world.mail.popleft() if what == "mail" else ""
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

    async def _run(self) -> None:
        try:
            await self._script(self)
        except asyncio.CancelledError:
            if not self.cancelled:
                raise Wrong(f"{self.process.name} was cancelled by nobody") from None
        except BackendUnavailable:
            if self.world.calm:
                raise


class Process:
    """A process: a loop, a hub, a link at a time, and its jobs."""

    def __init__(self, world: "World", index: int) -> None:
        party = self.party = world.scenario.parties[index]
        self.world = world
        self.index = index
        self.name = "ABCDEFG"[index]
        self.loop = Loop(lambda: world.now)
        self.loop.process = self
        self.loop.set_exception_handler(self._unhandled)
        self.alive = True
        self.stopped = False
        self.hubs = 0
        self.links = 0
        self.link: FakeLink | None = None
        self.ghosts: list[FakeLink] = []  # that the server believes in
        self.late: list[deque[tuple[Letter, str]]] = []  # of links that are closed
        self.dialling: asyncio.Future[None] | None = None
        self.permits: list[Permit] = []
        self.heard = 0  # all that it was told so far, as a number
        node = FakeNode(self)
        kind = FairSemaphore if world.scenario.mode == "fair" else Semaphore
        self.semaphore = kind(node, "jobs", party.limit, lease=party.lease)
        self.jobs = [Job(self, script) for script in party.scripts]
        self.cancellable = [k for k in party.cancels if k < len(self.jobs)]

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way to or from it."""
        link = self.link
        return self.dialling is None and not (link and (link.going or link.coming))

    def closed(self, link: FakeLink) -> None:
        """Its end of *link* is closed."""
        if link.going:
            self.late.append(link.going)
            link.going = deque()
        if link is self.link:
            self.link = None

    def new_hub(self) -> str:
        self.hubs += 1
        hub = f"{self.index + 1:016x}{self.hubs:016x}"
        self.world.owners[hub] = self
        return hub

    def settle(self) -> None:
        """Run its loop until there is nothing to do at this moment."""
        loop = self.loop
        if not self.runs:
            return
        for _ in range(TURNS):
            timer = None if loop.ready else loop.next_timer()
            if not loop.ready and (timer is None or timer > self.world.now + RESOLUTION):
                return
            loop.turn()
        raise Wrong(f"{self.name} does not come to rest")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.unhandled.append(f"unhandled in {self.name}: {error or context['message']!r}")


@dataclass
class Ledger:
    """What is known beside what the processes and the server know: for the rules alone."""

    excused: set[str] = field(default_factory=set[str])  # ids taken from those who trust them
    detached: dict[str, int] = field(default_factory=dict[str, int])  # tokens, by id
    clearing: int = 0  # clears that were asked for, and are not known to have ended
    limits: int = 0  # set limits, likewise
    limit: int | None = None  # the set limit that was confirmed last
    last_token: int = 0


class World:
    """One path."""

    def __init__(self, scenario: Scenario, make: Make | None = None) -> None:
        self.scenario = scenario
        self.now = 1000.0
        self.budget: Budget = scenario.budget
        self.calm = True  # no link broke, nobody died or stood still
        self.owners: dict[str, Process] = {}
        self.mail: deque[str] = deque()
        self.ledger = Ledger()
        self.unhandled: list[str] = []
        self.trace: list[str] | None = None
        standard: Make = FairModel if scenario.mode == "fair" else ZsetModel
        self.model = (make or standard)(self._tell)
        self.model.kept_by = self.model.server
        self.processes = [Process(self, index) for index in range(len(scenario.parties))]

    def end(self) -> None:
        """Take everything apart."""
        for process in self.processes:
            process.loop.bury()
        _refresher._REFRESHERS.clear()  # what is held until now would keep its hub

    # -- what can happen

    def enabled(self) -> list[Event]:
        """Everything that can happen next, within the budget."""
        return [*self.due(), *self._unkind()]

    def choices(self) -> list[Event]:
        """What has to be explored from here: all that can happen, or as much as stands for it.

        Where time does not pass meanwhile and nothing unkind can come between, it makes no
        difference when a process hears what it is sure to hear next, or begins, while others
        act: it is told the same. So that comes first, and the orders in which others act before
        it are left out. No rule is looked at too late: what a process has not heard yet, the
        server has done, and that was looked at.
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
        if any(job.waits_for == "mail" for job in process.jobs):
            return None
        gos = [Event("go", process.index, k) for k, job in enumerate(process.jobs) if job.may_go]
        if not process.hubs:
            return gos or None
        cancels = budget.cancels and any(process.jobs[k].in_call for k in process.cancellable)
        if gos or cancels or (party.breaks and budget.cuts):
            return None
        if link is not None and link.coming:
            return [Event("hear", process.index)]
        if process.dialling is not None and not process.dialling.done():
            return [Event("connect", process.index)]
        return None

    def due(self) -> Iterable[Event]:
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
                yield Event("hear", i)
            if process.dialling is not None and not process.dialling.done():
                yield Event("connect", i)
            for k, job in enumerate(process.jobs):
                if job.may_go:
                    yield Event("go", i, k)

    def _unkind(self) -> Iterable[Event]:
        budget = self.budget
        for i, process in enumerate(self.processes):
            party, link = process.party, process.link
            if budget.lates:
                for k, letters in enumerate(process.late):
                    if letters:
                        yield Event("run late", i, k)
            if not process.alive:
                continue
            if budget.kills and party.dies:
                yield Event("kill", i)
                if budget.unnoticed:
                    yield Event("kill", i, 1)
            if process.stopped:
                continue
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
                            yield Event("hear and cancel", i, k)
        if budget.ticks and self.next_moment(self.scenario.grain) is not None:
            yield Event("tick")

    # -- what happens

    def do(self, event: Event) -> None:
        """Let *event* happen, and everything that follows from it in its process."""
        what, who, which = event
        process = self.processes[who]
        match what:
            case "tick":
                self._spend(ticks=1)
                moment = self.next_moment(self.scenario.grain)
                assert moment is not None
                self.pass_time(moment)
                return
            case "run" | "run late":
                self._run(process, which, late=what == "run late")
                return
            case "hear":
                self._hear(process)
            case "hear and cancel":
                self._spend(cancels=1)
                self._hear(process)
                process.jobs[which].cancel()
                self._told(process, event)
            case "cancel":
                self._spend(cancels=1)
                process.jobs[which].cancel()
                self._told(process, event)
            case "connect":
                assert process.dialling is not None
                process.dialling.set_result(None)
                self._told(process, event)
            case "go":
                self._told(process, event, process.jobs[which].go())
            case "cut":
                self._spend(cuts=1, unnoticed=which)
                self._cut(process, unnoticed=bool(which))
                self._told(process, event)
            case "kill":
                self._spend(kills=1, unnoticed=which)
                process.alive = False
                if process.link is not None:
                    if which:
                        process.ghosts.append(process.link)
                    process.link.abort()
                self._told(process, event)
            case "stop" | "go on":
                if what == "stop":
                    self._spend(stops=1)
                process.stopped = what == "stop"
                self._told(process, event)
            case _:
                raise AssertionError(event)
        process.settle()

    def _spend(self, **costs: int) -> None:
        left = {name: getattr(self.budget, name) - cost for name, cost in costs.items()}
        self.budget = self.budget._replace(**left)
        if not costs.keys() <= {"cancels", "ticks"}:
            self.calm = False

    def _told(self, process: Process, *what: object) -> None:
        process.heard = number_of((process.heard, self.now, repr(what)))

    def _run(self, process: Process, which: int, *, late: bool) -> None:
        if late:
            self._spend(lates=1)
            letters = process.late[which]
            link = None
        else:
            link = process.link
            assert link is not None
            letters, link.known = link.going, True
        letter, hub = letters.popleft()
        answer = self._carry_out(letter, hub)
        if link is not None:
            link.coming.append(Said(letter, "", answer))
        if self.trace is not None:
            self.trace.append(f"    {process.name}: {letter.call} -> {answer}")

    def _carry_out(self, letter: Letter, hub: str) -> Answered | Fault:
        from . import rules

        before = rules.look(self)
        try:
            answer = self.model.run(letter.wire.address, letter.call, hub, self.server_us)
        except (Reordered, Stranger) as again:
            return Fault(Trouble.AGAIN, again)
        rules.check_call(self, before, letter.call)
        return answer

    def _tell(self, owner: str, message: Message) -> int:
        process = self.owners.get(owner)
        if process is None:
            return 0
        link = process.link
        if self.trace is not None:
            self.trace.append(f"    {process.name} is told {message}")
        if link is not None and link.known and link.listener.hub_id == owner:
            link.coming.append(Said(None, "redsem", message))
            return 1
        return sum(ghost.known and ghost.listener.hub_id == owner for ghost in process.ghosts)

    def _hear(self, process: Process) -> None:
        link = process.link
        assert link is not None
        letter, prefix, content = link.coming.popleft()
        self._told(process, "hear", content)
        with running(process.loop):
            if letter is None:
                link.listener.told(prefix, content)  # type: ignore[arg-type]
            else:
                link.fresh_at = letter.sent_at
                link.listener.answered(letter, content)  # type: ignore[arg-type]

    def _cut(self, process: Process, *, unnoticed: bool) -> None:
        link = process.link
        assert link is not None
        if unnoticed:
            process.ghosts.append(link)
        link.abort()
        with running(process.loop):
            link.listener.link_lost(ConnectionResetError("the link was cut"))

    # -- time

    @property
    def server_us(self) -> int:
        return START_US + round(self.now * 1_000_000)

    def seconds_left(self, expiry_ms: int) -> float:
        """Until a moment by the server's clock."""
        return (1000 * expiry_ms - self.server_us) / 1e6

    def next_moment(self, grain: float = 0.0) -> float | None:
        """When something changes by itself, at least *grain* seconds from now."""
        moments = [p.loop.next_timer() for p in self.processes if p.runs]
        moments += [self.now + self.seconds_left(h.expiry_ms) for h in self._holders()]
        to_come = [m for m in moments if m is not None and m > self.now + RESOLUTION]
        later = [m for m in to_come if m >= self.now + grain]
        if later:
            return min(later)
        return self.now + grain if to_come else None

    def _holders(self) -> Iterable[Held]:
        return self.model.holders.values()

    def holds(self, identity: str) -> bool:
        """Whether the server holds that permit now."""
        held = self.model.holders.get(identity)
        return held is not None and self.seconds_left(held.expiry_ms) > 0

    def pass_time(self, until: float) -> None:
        """Let time pass, and every timer run at its own time."""
        while True:
            timers = [p.loop.next_timer() for p in self.processes if p.runs]
            moment = min((t for t in timers if t is not None), default=until)
            if moment > until:
                break
            self.now = max(self.now, moment)
            for process in self.processes:
                process.settle()
            if moment == until:
                break
        self.now = until
        for process in self.processes:
            process.settle()

    # -- where it stands

    def key(self) -> bytes:
        """What tells this state from others.

        A process is what it was told, and when: it has no other input. The server is what the
        specification keeps. So two orders of events that no process and not the server could
        tell apart come to one state, and what is not the same is never taken for it.
        """
        model = {k: v for k, v in vars(self.model).items() if k != "_tell"}
        standing = [self._standing(process) for process in self.processes]
        all_of_it = (self.now, self.budget, self.calm, model, self.ledger, self.mail, standing)
        return hashlib.blake2b(repr(all_of_it).encode(), digest_size=16).digest()

    def _standing(self, process: Process) -> tuple[object, ...]:
        link = process.link
        there: tuple[object, ...] = ()
        if link is not None:
            there = (link.known, len(link.going), [said.content for said in link.coming])
        late = tuple(len(letters) for letters in process.late)
        ghosts = tuple(ghost.known for ghost in process.ghosts)
        return process.heard, there, late, ghosts


_numbers: dict[object, int] = {}


def number_of(thing: object) -> int:
    """The same number for the same thing."""
    return _numbers.setdefault(thing, len(_numbers) + 1)


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


class _Even:
    """Chance that is always the same, so that a process has no input but what it is told."""

    @staticmethod
    def random() -> float:
        return 0.5


class _Ids:
    """Ids that say whose they are, and depend on nobody else's."""

    @staticmethod
    def token_hex(count: int) -> str:
        process: Process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        return process.new_hub()


class Clock:
    """The package's clock while paths are taken."""

    def __init__(self) -> None:
        self.world: World | None = None

    def __call__(self) -> float:
        assert self.world is not None
        return self.world.now

    @contextmanager
    def in_place(self) -> Generator[Self]:
        """Put clock, chance and ids in the place of the real ones."""
        replaced: list[tuple[object, str, object]] = [
            (_hub, "who_text", lambda **_: "a process"),
            (_keys, "secrets", _Ids),
        ]
        for name, module in list(sys.modules.items()):
            if name.startswith("redsem_async"):
                for key, value in list(vars(module).items()):
                    if value is _clock.now:
                        replaced.append((module, key, self))
                    elif value is random:
                        replaced.append((module, key, _Even))
        saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        assert secrets is _keys.secrets
        logger = logging.getLogger("redsem_async")
        level = logger.level
        for owner, name, stand_in in replaced:
            setattr(owner, name, stand_in)
        logger.setLevel(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield self
        finally:
            for owner, name, original in saved:
                setattr(owner, name, original)
            logger.setLevel(level)
