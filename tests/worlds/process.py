"""A process: its loop, its clock, and its links to the server, of which each has two ends."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from redsem_async._hub.hub import known_hub
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import AnyReply, Listener, OneNode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import AnyOperation, Release, SemaphoreRef, StartBackOff
from redsem_async._protocol.pushes import Push
from tests.worlds.loop import RESOLUTION, SimulatedLoop, running
from tests.worlds.world import Event, Violation, World

TURNS = 5000  # of a loop, in which nothing comes from outside


class Sent(NamedTuple):
    """A command on its way to the server, with the hub that wrote it, and when."""

    command: AnyOperation
    hub: str
    at: float


class Said(NamedTuple):
    """Something on its way from the server: an answer to a command, or a message."""

    content: object
    arrives: Callable[[], None]


class Link:
    """A connection. Its two ends may have different opinions of it.

    Attributes:
        known: the server has subscribed it.
        deaf: nothing comes over it any more, and no error says so.
        dumb: nothing arrives at the server any more.
        unsure: messages were lost, and no error says so.
        unread: what came while the process stood still.
        blocked_until: nothing arrives at the server before.
    """

    def __init__(self, process: "Process", listener: Listener) -> None:
        self.fresh_at: float | None = None
        self.uncounted = False
        self.process = process
        self.listener = listener
        self.number = len(process.links)
        self.open = self.open_there = True
        self.unnoticed = self.known = self.deaf = self.dumb = self.unsure = False
        self.going: deque[Sent] = deque()
        self.coming: deque[Said] = deque()
        self.unread = 0
        self.blocked_until = 0.0
        self._paused_until = 0.0
        process.links.append(self)
        if process.no_push:
            listener.push_unavailable(PermissionError("the server denies subscriptions"))

    def event(self, what: str) -> Event:
        return Event(what, self.process.index, self.number)

    def subscribed(self, owner: str) -> bool:
        """Whether messages to the hub *owner* go out here, as the server believes."""
        return self.open_there and self.known and self.listener.hub_id == owner

    # -- for its process

    @property
    def writable(self) -> bool:
        return self.open and self._paused_until <= self.process.world.now

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        hub, world = self.listener.hub_id, self.process.world
        released = set[SemaphoreRef]()
        for command in commands:
            command.sent_at = now
            match command:
                case Release():
                    released.add(command.semaphore)
                case StartBackOff(token=int()) if command.semaphore in released:
                    world.violated(f"{command} comes after a release")
                case _:
                    pass
            if not self.dumb:
                self.going.append(Sent(command, hub, world.now))
                world.on_way(self.event("run"))

    def abort(self) -> None:
        if self.open:
            self.open = False
            self.process.world.on_way(self.event("notice"))
            self.coming.clear()
            self.unread = 0

    async def close(self) -> None:
        self.abort()

    # -- for the server

    def say(self, content: object, arrival: Callable[[], None]) -> None:
        if self.open and not self.deaf:
            self.coming.append(Said(content, arrival))
            self.process.world.on_way(self.event("receive"))

    def receive(self) -> None:
        """What comes next has come."""
        if self.process.stopped:
            self.unread += 1
        else:
            self.process.told(self._read_one)

    def _read_one(self) -> None:
        if self.process.stopped:  # again, in the same turn
            self.unread += 1
        elif self.open and self.coming:
            said = self.coming.popleft()
            self.process.noted("receive", said.content)
            said.arrives()
            self.process.world.now += self.process.world.turn_takes

    def read(self) -> None:
        """All that came meanwhile is read in one turn, before any timer."""
        for _ in range(self.unread):
            self.process.loop.call_soon(self._read_one)
        self.unread = 0

    def answered(self, command: AnyOperation, answer: AnyReply | CommandError) -> None:
        """The answer to *command* has arrived."""
        self.fresh_at = command.sent_at
        self.listener.reply_received(command, answer)
        self.process.world.heard(self, answer, command)
        if isinstance(answer, CommandError) and answer.kind is ErrorKind.READ_ONLY:
            self._fail(answer.error)

    def notified(self, prefix: str, message: Push) -> None:
        """A message has arrived."""
        self.listener.push_received(prefix, message)
        self.process.world.heard(self, message, None)

    # -- trouble

    def strike(self, event: Event) -> None:
        world = self.process.world
        match event.what:
            case "cut":  # what is on its way runs after some seconds, unless it is lost
                self.blocked_until = world.now + event.seconds
                self.unnoticed = bool(event.which)
                self.process.told(self._fail, ConnectionResetError("the link was cut"))
            case "lose":  # what is on its way there
                self.going.clear()
                self.dumb = True
            case "deafen":  # nothing comes back, and perhaps nothing arrives, or late
                self.deaf = True
                self.coming.clear()
                self.unread = 0
                self.blocked_until = world.now + event.seconds
                if event.which:
                    self.going.clear()
                    self.dumb = True
            case "press":  # it takes no commands
                self._paused_until = world.now + event.seconds
                world.on_way(self.event("relieve")._replace(seconds=event.seconds))
            case "relieve":
                self.process.told(self._writable_again)
            case _:
                raise AssertionError(event)

    def _writable_again(self) -> None:
        if self.open:
            self.listener.resume_writing()

    def _fail(self, error: Exception) -> None:
        if self.open:
            self.abort()
            self.listener.connection_lost(error)


class Node(OneNode):
    """The way from one process to the server."""

    place = "the scripts in memory"

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def connect(self, listener: Listener) -> Link:
        process = self._process
        if process.links or process.world.dials:
            dialled: asyncio.Future[None] = process.loop.create_future()
            process.dials.append(dialled)
            process.world.on_way(Event("connect", process.index, len(process.dials) - 1))
            await dialled
        return Link(process, listener)


class Process:
    """A process.

    Args:
        rate: of its clock; the server's is 1.

    Attributes:
        backend: what its semaphores have for a client.
        no_push: the server denies it subscriptions.
        woken_busy: this turn runs what was ready before a stall.
        cancelled: those of its tasks that were, from outside, and have to obey.
        seen: everything that came to it so far, as a number.
    """

    def __init__(self, world: World, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.index = len(world.processes)
        self.name = "ABCDEFG"[self.index]
        self._rate, self._offset = rate, offset
        self.loop = SimulatedLoop(lambda: offset + rate * world.now)
        self.loop.set_exception_handler(self._unhandled)
        self.backend = Node(self)
        self.alive = True
        self.stopped = self.no_push = self.woken_busy = False
        self.hubs: list[str] = []  # the ids that it was known by
        self.links: list[Link] = []
        self.dials: list[asyncio.Future[None]] = []
        self.cancelled: set[asyncio.Task[Any]] = set()
        self.seen = 0
        self.stalled_at = self.stalled_until = 0.0
        self._stalled = 0.0  # seconds, altogether, before the last time
        self._blocked = False
        self._cancels: list[tuple[int, asyncio.Task[Any]]] = []
        world.processes.append(self)

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped

    @property
    def link(self) -> Link | None:
        """The one that is open."""
        return self.links[-1] if self.links and self.links[-1].open else None

    @property
    def remotes(self) -> list[RemoteSemaphore]:
        """What it knows of semaphores."""
        with running(self.loop):
            hub = known_hub(self.backend)
        return list(hub._semaphores.values()) if hub else []

    @property
    def idle(self) -> bool:
        """Whether nothing is left that it could ever do."""
        loop = self.loop
        done = not loop.ready and loop.next_timer() is None and not loop.tasks
        return done or not self.alive

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(coroutine)

    def new_hub(self) -> str:
        hub = f"{self.index + 1:016x}{len(self.hubs) + 1:016x}"
        self.hubs.append(hub)
        self.world.owners[hub] = self
        return hub

    def noted(self, *what: object) -> None:
        """Something came to it."""

    def told(self, call: Callable[..., None], *facts: object) -> None:
        """Have *call* happen in its loop, now or when it goes on."""
        if self.stopped:
            self.loop.call_soon(call, *facts)
        else:
            with running(self.loop):
                call(*facts)
            self.world.turned(self)

    def dialled(self, which: int) -> None:
        """An attempt to connect is a success."""
        if not self.dials[which].done():
            self.dials[which].set_result(None)

    def refused(self) -> None:
        """All attempts to connect fail."""
        for dialled in self.dials:
            if not dialled.done():
                dialled.set_exception(ConnectionRefusedError("the server refuses connections"))

    # -- time

    def world_time(self, local: float) -> float:
        return (local - self._offset) / self._rate

    def next_moment(self) -> float:
        """When its next timer is due; never, while it stands still."""
        timer = self.loop.next_timer() if self.runs else None
        if timer is None:
            return math.inf
        moment = self.world_time(timer)
        while self._offset + self._rate * moment < timer:
            moment = math.nextafter(moment, math.inf)
        return moment

    def settle(self) -> None:
        """Run its loop until there is nothing to do at this moment."""
        loop, world = self.loop, self.world
        for turn in range(TURNS):
            if not self.runs:
                return
            if turn % 50 == 49:
                world.now += RESOLUTION  # a timer came early, by less than a clock shows
            timer = None if loop.ready else loop.next_timer()
            if not loop.ready and (timer is None or timer > loop.time() + RESOLUTION):
                return
            self._turn()
        raise Violation(f"{self.name} does not come to rest")

    def _turn(self) -> None:
        """One turn of its loop, and of those who are to be cancelled after so many turns."""
        world = self.world
        self.woken_busy, self._blocked = self._blocked, False
        self.loop.turn()
        self.woken_busy = False
        world.now += world.turn_takes
        world.turned(self)
        if self._cancels:
            due = [task for turn, task in self._cancels if turn <= self.loop.turns]
            self._cancels = [(t, task) for t, task in self._cancels if t > self.loop.turns]
            for task in due:
                self.cancel(task)

    # -- trouble

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel *task* from outside, and remember it where that has to be obeyed."""
        with running(self.loop):
            if self.alive and task.cancel("by the world"):
                self.cancelled.add(task)

    def cancel_after(self, turns: int, task: "asyncio.Task[Any]") -> None:
        """Cancel *task* so many turns from now, wherever it is then."""
        self._cancels.append((self.loop.turns + turns, task))

    @property
    def stalled_so_far(self) -> float:
        """For how many seconds it was stalled, altogether."""
        return self._stalled + (self.world.now - self.stalled_at) * self.stopped

    def stop(self, seconds: float) -> None:
        """Stand still for so many seconds at least."""
        if not self.stopped:
            self.stopped, self.stalled_at = True, self.world.now
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)
        self.world.on_way(Event("go on", self.index, 0, self.stalled_until - self.world.now))

    def block(self, seconds: float) -> None:
        """Stop it after this turn: something in it does not come back to the loop."""
        self.stop(seconds)
        self._blocked = True

    def go_on(self) -> None:
        if self.stopped and self.stalled_until <= self.world.now:
            self._stalled, self.stopped = self.stalled_so_far, False
            self.stalled_until = self.world.now
            for link in self.links:
                link.read()

    def kill(self, *, unnoticed: bool) -> None:
        self.alive = False
        for link in self.links:
            link.unnoticed = unnoticed
            link.abort()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.violated(f"unhandled in {self.name}: {error or context['message']!r}", error)
