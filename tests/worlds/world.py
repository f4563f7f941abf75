"""A time, processes with a loop each, links between them and a server, and what can happen.

Everything from the public methods down to the scripts is the package's own code. Nothing happens
by itself: a driver, which is a world of its own kind, decides which `Event` is next.
"""

import asyncio
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from redsem_async._core.keys import Address, permit_id
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation
from redsem_async._protocol.pushes import Granted, Push
from tests.worlds.heads import Heads
from tests.worlds.invariants import of_state
from tests.worlds.look import Look, Ran
from tests.worlds.loop import running
from tests.worlds.orders import Orders
from tests.worlds.server import Memory, ScriptServer

if TYPE_CHECKING:
    from redsem_async._hub.pipeline import Pipeline
    from tests.worlds.process import Link, Process

T = TypeVar("T")
START_US = 1_700_000_000_000_000  # by the server's clock
PREFIX = "redsem"


class Violation(AssertionError):
    """A promise was broken."""


class Event(NamedTuple):
    """What happens, to which process, to which of its jobs or links, and for how long."""

    what: str
    who: int = 0
    which: int = 0
    seconds: float = 0.0


class Made(dict[str, T]):
    """Makes what it does not have, of a name."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make

    def __missing__(self, name: str) -> T:
        made = self[name] = self._make(name)
        return made


class World:
    """Some processes in one time.

    Attributes:
        owners: processes, by the ids of their hubs.
        orders: for each semaphore, by its name.
        trace: lines that tell what happened, where they are wanted.
        told: permits that a message of this call tells of, as the server believes.
    """

    turn_takes = 0.0  # seconds, of a loop
    dials = True  # for the first link of a process, too
    prompt = 0.1  # seconds in which a process does what it knows is due
    trips = False  # take time, so that what is on its way is not held up

    def __init__(self, now: float, *, traced: bool = False, memory: Memory | None = None) -> None:
        self.now = now
        self.processes: list[Process] = []
        self.owners: dict[str, Process] = {}
        self.orders = Made(lambda _: Orders(self))
        self.violations: list[str] = []
        self.trace: list[str] | None = [] if traced else None
        self.told: set[str] = set()
        self.server = ScriptServer(self._publish, memory, self._reached)
        self.heads = Heads(self)
        self._began = now

    def note(self, *what: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now - self._began:12.6f} " + " ".join(map(str, what)))

    def violated(self, what: str, error: BaseException | None = None) -> None:
        """A promise was broken, perhaps by an *error* that nobody expected."""
        self.violations.append(f"at {self.now - self._began:.6f}: {what}")
        self.note("VIOLATED", what, "".join(traceback.format_exception(error)) if error else "")

    def unless(self, holds: bool, otherwise: str) -> None:
        """*otherwise* is violated, unless it *holds*."""
        if not holds:
            self.violated(otherwise)

    def end(self) -> None:
        for process in self.processes:
            process.loop.bury()
            process.loop.close()

    def token_hex(self, count: int) -> str:
        """Ids that name their process, and depend on no other's."""
        loop = asyncio.get_running_loop()
        return next(p for p in self.processes if p.loop is loop).new_hub()

    @property
    def server_us(self) -> int:
        return self.server_us_at(self.now)

    @staticmethod
    def server_us_at(moment: float) -> int:
        """What the server's clock shows at a *moment* of the world's time."""
        return START_US + round(moment * 1_000_000)

    @staticmethod
    def by_server_clock(moment_ms: int) -> float:
        """The world's time of a moment by the server's clock."""
        return (moment_ms - START_US // 1000) / 1000

    # -- what a driver decides, and what it judges

    def on_way(self, event: Event) -> None:
        """*event* happens sooner or later by itself."""

    def refusal(self, command: AnyOperation, sent: float) -> ErrorKind | None:
        """How the server refuses a *command*, if it does."""
        return None

    def ran(self, link: "Link", ran: Ran) -> None:
        """The server has carried out a command that came over *link*."""

    def heard(self, link: "Link", content: object, command: AnyOperation | None) -> None:
        """A process has received an answer to its *command*, or a message."""

    def turned(self, process: "Process") -> None:
        """A turn of the loop of *process* is over."""

    def check_state(self, process: "Process") -> None:
        """See that what *process* knows agrees with itself."""
        for remote in process.remotes:
            in_flight = cast("Pipeline", remote.writer).redirects.in_flight
            with running(process.loop):
                found = [*of_state(remote, in_flight)]
            for wrong in found:
                self.violated(f"{process.name} knows of {remote.name}: {wrong}")

    def hears(self, process: "Process") -> bool:
        """Whether it runs, and what is sent to it and by it arrives."""
        link = process.link
        if link is None or not (link.known and link.open_there and link.writable):
            return False
        stuck = (link.going or link.coming) and not self.trips
        return process.runs and not (link.deaf or link.dumb or link.unsure or stuck)

    def wait_until(self, moment: float) -> None:
        """Nothing happens until then. See that nobody waits for longer than the rates have it."""
        for now in dict.fromkeys((self.now, max(self.now, moment))):
            self.now = now
            for wrong in self.heads.late():
                self.violated(wrong)

    # -- what happens

    def do(self, event: Event, *, rests: bool = True) -> None:
        """Let *event* happen, and everything that follows from it in its process.

        That waits for the next event, unless the process *rests*.
        """
        what, who, which, seconds = event
        process = self.processes[who]
        match what:
            case "run":
                self._run(process.links[which])
                return
            case "receive":
                process.links[which].receive()
            case "notice":
                process.links[which].open_there = False
            case "connect":
                process.dialled(which)
            case "kill":
                process.kill(unnoticed=bool(which))
            case "stop":
                process.stop(seconds)
            case "go on":
                process.go_on()
            case "refuse":
                process.refused()
            case _:
                for link in [link for link in process.links if link.open]:
                    link.strike(event)
        if rests:
            process.settle()

    def _run(self, link: "Link") -> None:
        if not link.going:
            return
        command, hub, sent = link.going.popleft()
        address = command.semaphore.address
        if link.open_there and not link.process.no_push:
            link.known = True
        self.told.clear()
        answer: AnyReply | CommandError
        if (trouble := self.refusal(command, sent)) is not None:
            answer = CommandError(trouble, RuntimeError(f"{trouble.name} (simulated)"))
        else:
            ran = self.server.run(address, command, hub, self.server_us)
            answer = ran.answer
            self.note(f"  {link.process.name}: {command} -> {answer}")
            self.ran(link, ran._replace(told=self.told))
            for wrong in self.server.broken:
                self.violated(f"{command} left {address.name} so: {wrong}")
        link.say(answer, lambda: link.answered(command, answer))

    def _publish(self, prefix: str, owner: str, message: Push) -> int:
        """Publish *message* to a hub. Returns how many connections it went to."""
        process = self.owners.get(owner)
        links = [link for link in process.links if link.subscribed(owner)] if process else []
        for link in links:
            if isinstance(message, Granted):
                self.told |= {permit_id(owner, number) for number, _ in message.grants}
            link.say(message, self._arrival(link, prefix, message))
            self.note(f"  {link.process.name} is sent {message}")
        return len(links)

    @staticmethod
    def _arrival(link: "Link", prefix: str, message: Push) -> Callable[[], None]:
        return lambda: link.notified(prefix, message)

    def _reached(self) -> tuple[object, ...]:
        """Which hubs the server reaches by a message."""
        links = (link for process in self.processes for link in process.links)
        return tuple(link.listener.hub_id for link in links if link.known and link.open_there)

    # -- the server

    def look(self, address: Address) -> Look:
        """How a semaphore stands now."""
        return self.server.look(address, self.server_us)

    @property
    def looks(self) -> dict[str, Look]:
        """How each semaphore stands that was called."""
        return {name: self.look(address) for name, address in self.server.addresses.items()}
